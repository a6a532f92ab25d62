// Gradients of the ops for tensorflow::AddSymbolicGradients.
//
// They follow TensorFlow's Python gradients. A forward op has its
// FusedBatchNormGrad: y alone is differentiated, by x, scale, offset and
// side_input. The first-order ops have FusedBatchNormGradGrad, which itself has
// no gradient in C++: in training, mean and variance count as functions of x
// and are computed from it anew, and the inputs that hold them get no gradient.

#include "tensorflow/cc/framework/gradients.h"

#include <string>
#include <type_traits>
#include <vector>

#include "cc/client/register_gradient.h"
#include "cc/ops/generated/op_signatures.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;
using tf::Output;
using tf::Scope;

// The attributes that the fused ops share.
struct FusedAttrs {
  float epsilon = 0;
  std::string data_format;
  bool is_training = true;

  absl::Status Read(const tf::Operation& op) {
    const auto attrs = op.node()->attrs();
    TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "epsilon", &epsilon));
    TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "data_format", &data_format));
    return tf::GetNodeAttr(attrs, "is_training", &is_training);
  }
};

// ---- Forward ops ------------------------------------------------------------

// The gradients of x, scale and offset by Op, which is FusedBatchNormGrad, V2
// or V3; mean and variance have none.
template <typename Op>
absl::Status ForwardGradient(const Scope& scope, const tf::Operation& op,
                             const std::vector<Output>& grad_inputs,
                             std::vector<Output>* grad_outputs) {
  FusedAttrs attrs;
  TF_RETURN_IF_ERROR(attrs.Read(op));
  const auto add = [&](const auto&... coefficients) {
    // reserve_space_1 and 2, which are written frozen too.
    return Op(scope, grad_inputs[0], op.input(0), op.input(1), op.output(3),
              op.output(4), coefficients...,
              Op::Epsilon(attrs.epsilon)
                  .DataFormat(attrs.data_format)
                  .IsTraining(attrs.is_training));
  };
  if constexpr (std::is_same_v<Op, ops::FusedBatchNormGradV3>) {
    const Op grad = add(op.output(5));
    *grad_outputs = {grad.x_backprop, grad.scale_backprop,
                     grad.offset_backprop};
  } else {
    const Op grad = add();
    *grad_outputs = {grad.x_backprop, grad.scale_backprop,
                     grad.offset_backprop};
  }
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
  return scope.status();
}

// The same by FusedBatchNormGradEx, and of the side input, which a smooth
// activation reads in the place of y.
absl::Status ForwardExGradient(const Scope& scope, const tf::Operation& op,
                               const std::vector<Output>& grad_inputs,
                               std::vector<Output>* grad_outputs) {
  FusedAttrs attrs;
  TF_RETURN_IF_ERROR(attrs.Read(op));
  std::string mode;
  TF_RETURN_IF_ERROR(
      tf::GetNodeAttr(op.node()->attrs(), "activation_mode", &mode));
  const bool is_smooth = mode == "Silu" || mode == "HardSilu";
  const bool adds = op.num_inputs() > 5;
  const bool masks_side_input = adds && mode != "Identity";
  using Op = ops::FusedBatchNormGradEx;
  const Op grad(scope, grad_inputs[0], op.input(0), op.input(1), op.output(3),
                op.output(4), op.output(5), op.input(2),
                is_smooth ? op.input(adds ? 5 : 0) : op.output(0),
                Op::Epsilon(attrs.epsilon)
                    .NumSideInputs(masks_side_input)
                    .ActivationMode(mode)
                    .DataFormat(attrs.data_format)
                    .IsTraining(attrs.is_training));
  *grad_outputs = {grad.x_backprop, grad.scale_backprop, grad.offset_backprop};
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
  if (adds) {
    (*grad_outputs)[5] =
        masks_side_input ? grad.side_input_backprop[0] : grad_inputs[0];
  }
  return scope.status();
}

// ---- First-order gradients --------------------------------------------------

// `y_backprop` where the activation whose result is y passes it on, else zero:
// by Select, which has a registered gradient in C++; ReluGrad and Relu6Grad
// have none (up to TensorFlow 2.21), and a second derivative would be refused.
absl::Status BehindActivation(const Scope& scope, const tf::Operation& op,
                              const Output& y, Output* y_backprop) {
  std::string mode = "Identity";
  tf::TryGetNodeAttr(op.node()->attrs(), "activation_mode", &mode);
  if (mode == "Identity") return absl::OkStatus();
  const Output zeros = tf::ops::ZerosLike(scope, y);
  Output passes = tf::ops::Greater(scope, y, zeros);
  if (mode == "Relu6") {
    const Output six = tf::ops::Cast(scope, 6.0f, y.type());
    passes = tf::ops::LogicalAnd(scope, passes, tf::ops::Less(scope, y, six));
  } else if (mode != "Relu") {
    return absl::UnimplementedError(
        op.node()->type_string() +
        " has a gradient for the activation_mode Identity, Relu and Relu6, "
        "but it is " +
        mode);
  }
  *y_backprop = tf::ops::Where3(scope, passes, *y_backprop, zeros);
  return scope.status();
}

// Numbers of type float with the sum `value`: three hold more bits than double.
std::vector<float> AsFloats(double value) {
  std::vector<float> parts = {static_cast<float>(value)};
  double rest = value - parts[0];
  while (rest != 0 && parts.size() < 3) {
    parts.push_back(static_cast<float>(rest));
    rest -= parts.back();
  }
  return parts;
}

// The attributes of FusedBatchNormGradGrad for `op`, a first-order op.
// BatchNormTrainingBackprop has a tensor as epsilon; its tensors are
// channels-first, its mode is training.
absl::Status ReadAttrs(const tf::Operation& op,
                       ops::FusedBatchNormGradGrad::Attrs* attrs) {
  const auto given = op.node()->attrs();
  if (given.Find("data_format") != nullptr) {
    FusedAttrs fused;
    TF_RETURN_IF_ERROR(fused.Read(op));
    *attrs = attrs->Epsilon(fused.epsilon)
                 .DataFormat(fused.data_format)
                 .IsTraining(fused.is_training);
    return absl::OkStatus();
  }
  tf::Tensor epsilon;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(given, "epsilon", &epsilon));
  if (epsilon.dtype() != tf::DT_DOUBLE || epsilon.dims() != 0) {
    return absl::InvalidArgumentError(
        "epsilon must be a scalar of type double");
  }
  const std::vector<float> parts = AsFloats(epsilon.scalar<double>()());
  *attrs = attrs->Epsilon(parts[0])
               .EpsilonRest({parts.begin() + 1, parts.end()})
               .DataFormat("NCHW");  // Of any rank.
  return absl::OkStatus();
}

// The mask of an activation is constant almost everywhere, so the gradient of
// FusedBatchNormGradEx is the plain op's between two masks.
template <const OpSignature& kOp>
absl::Status FirstOrderGradient(const Scope& scope, const tf::Operation& op,
                                const std::vector<Output>& grad_inputs,
                                std::vector<Output>* grad_outputs) {
  using Op = ops::FusedBatchNormGradGrad;
  Op::Attrs attrs;
  TF_RETURN_IF_ERROR(ReadAttrs(op, &attrs));
  const auto input = [&](Role role) { return op.input(kOp.InputOf(role)); };
  Output y, y_backprop = input(Role::kYBackprop);
  if (kOp.InputOf(Role::kY) < kOp.num_inputs) y = input(Role::kY);
  TF_RETURN_IF_ERROR(BehindActivation(scope, op, y, &y_backprop));
  const Op grads(scope, grad_inputs[0], grad_inputs[1], grad_inputs[2],
                 y_backprop, input(Role::kX), input(Role::kScale),
                 input(Role::kMean), input(Role::kVariance), attrs);
  Output y_backprop_grad = grads.y_backprop_grad;
  for (size_t i = 5; i < grad_inputs.size(); ++i) {  // Of side inputs.
    y_backprop_grad = tf::ops::AddV2(scope, y_backprop_grad, grad_inputs[i]);
  }
  TF_RETURN_IF_ERROR(BehindActivation(scope, op, y, &y_backprop_grad));
  grad_outputs->assign(op.num_inputs(), tf::NoGradient());
  (*grad_outputs)[kOp.InputOf(Role::kYBackprop)] = y_backprop_grad;
  (*grad_outputs)[kOp.InputOf(Role::kX)] = grads.x_grad;
  (*grad_outputs)[kOp.InputOf(Role::kScale)] = grads.scale_grad;
  return scope.status();
}

[[maybe_unused]] const bool kRegistered =
    RegisterGradient("TfBnOps>FusedBatchNorm",
                     ForwardGradient<ops::FusedBatchNormGrad>) &&
    RegisterGradient("TfBnOps>FusedBatchNormV2",
                     ForwardGradient<ops::FusedBatchNormGradV2>) &&
    RegisterGradient("TfBnOps>FusedBatchNormV3",
                     ForwardGradient<ops::FusedBatchNormGradV3>) &&
    RegisterGradient("TfBnOps>FusedBatchNormEx", ForwardExGradient) &&
    RegisterGradient("TfBnOps>FusedBatchNormGrad",
                     FirstOrderGradient<kFusedBatchNormGrad>) &&
    RegisterGradient("TfBnOps>FusedBatchNormGradV2",
                     FirstOrderGradient<kFusedBatchNormGradV2>) &&
    RegisterGradient("TfBnOps>FusedBatchNormGradV3",
                     FirstOrderGradient<kFusedBatchNormGradV3>) &&
    RegisterGradient("TfBnOps>FusedBatchNormGradEx",
                     FirstOrderGradient<kFusedBatchNormGradEx>) &&
    RegisterGradient("TfBnOps>BatchNormTrainingBackprop",
                     FirstOrderGradient<kBatchNormTrainingBackprop>);

}  // namespace
}  // namespace tf_bn_ops
