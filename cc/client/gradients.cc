// Gradients of the ops for tensorflow::AddSymbolicGradients.
//
// They follow TensorFlow's Python gradients. A forward op has
// FusedBatchNormGradV3 or Ex: y alone is differentiated, by x, scale, offset
// and side_input. The first-order ops have FusedBatchNormGradGrad, which itself
// has no gradient in C++: in training, mean and variance count as functions of
// x and are computed from it anew, and the inputs that hold them get no
// gradient. Of the ops that synchronised batch normalization consists of, the
// forward ones have gradients.

#include "tensorflow/cc/framework/gradients.h"

#include <numeric>
#include <string>
#include <vector>

#include "cc/tf/ops/generated/op_signatures.h"
#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
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

// The gradients of x, scale and offset; mean and variance have none.
template <typename Op>
void SetGradients(const Op& grad, const tf::Operation& op,
                  std::vector<Output>* grad_outputs) {
  *grad_outputs = {grad.x_backprop, grad.scale_backprop, grad.offset_backprop};
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
}

// Of FusedBatchNorm, V2 and V3.
absl::Status ForwardGradient(const Scope& scope, const tf::Operation& op,
                             const std::vector<Output>& grad_inputs,
                             std::vector<Output>* grad_outputs) {
  FusedAttrs attrs;
  TF_RETURN_IF_ERROR(attrs.Read(op));
  using Op = ops::FusedBatchNormGradV3;
  // reserve_space_1 and 2, which are written frozen too; where there is no
  // reserve_space_3, the last again: a vector holds no coefficients.
  const Op grad(scope, grad_inputs[0], op.input(0), op.input(1), op.output(3),
                op.output(4), op.output(op.num_outputs() - 1),
                Op::Epsilon(attrs.epsilon)
                    .DataFormat(attrs.data_format)
                    .IsTraining(attrs.is_training));
  SetGradients(grad, op, grad_outputs);
  return scope.status();
}

// The same by FusedBatchNormGradEx, and of the side input, which a smooth
// activation reads in the place of y.
absl::Status ForwardExGradient(const Scope& scope, const tf::Operation& op,
                               const std::vector<Output>& grad_inputs,
                               std::vector<Output>* grad_outputs) {
  const int side_input = kFusedBatchNormEx.InputOf(Role::kSideInput);
  FusedAttrs attrs;
  TF_RETURN_IF_ERROR(attrs.Read(op));
  const auto given = op.node()->attrs();
  std::string mode;
  float alpha;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(given, "activation_mode", &mode));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(given, "leakyrelu_alpha", &alpha));
  const bool adds = op.num_inputs() > side_input;
  const bool masks_side_input = adds && mode != "Identity";
  const Output y = !IsSmooth(ActivationNamed(mode)) ? op.output(0)
                   : adds                           ? op.input(side_input)
                                                    : op.input(0);
  using Op = ops::FusedBatchNormGradEx;
  const Op grad(scope, grad_inputs[0], op.input(0), op.input(1), op.output(3),
                op.output(4), op.output(5), op.input(2), y,
                Op::Epsilon(attrs.epsilon)
                    .NumSideInputs(masks_side_input)
                    .ActivationMode(mode)
                    .LeakyreluAlpha(alpha)
                    .DataFormat(attrs.data_format)
                    .IsTraining(attrs.is_training));
  SetGradients(grad, op, grad_outputs);
  if (adds) {
    (*grad_outputs)[side_input] =
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

// ---- Synchronised batch normalization ---------------------------------------
// tf_bn_ops/_split_gradients.py has the formulas.

// An Output with arithmetic operators.
struct Term {
  const Scope* scope;
  Output output;
  operator tf::Input() const { return output; }
};
Term operator+(const Term& a, const Term& b) {
  return {a.scope, tf::ops::AddV2(*a.scope, a, b)};
}
Term operator-(const Term& a, const Term& b) {
  return {a.scope, tf::ops::Sub(*a.scope, a, b)};
}
Term operator*(const Term& a, const Term& b) {
  return {a.scope, tf::ops::Multiply(*a.scope, a, b)};
}
Term Wide(const Scope& scope, const Output& value) {
  return {&scope, tf::ops::Cast(scope, value, tf::DT_DOUBLE)};
}
Term Number(const Scope& scope, double value) {
  return {&scope, tf::ops::Const(scope, value)};
}

absl::Status StatsGradient(const Scope& scope, const tf::Operation& op,
                           const std::vector<Output>& grad_inputs,
                           std::vector<Output>* grad_outputs) {
  int axis;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(op.node()->attrs(), "axis", &axis));
  const Output mean = op.output(1);
  const Term d_m2 = {&scope, grad_inputs[2]};
  // d_mean / count + (x - mean) * 2 d_m2, by the op with a deviation of 1.
  const ops::BatchNormElemt d_x(
      scope, op.input(0), Number(scope, 2) * d_m2,
      tf::ops::DivNoNan(scope, grad_inputs[1], op.output(0)), mean,
      tf::ops::OnesLike(scope, mean), std::initializer_list<tf::Input>{},
      ops::BatchNormElemt::Epsilon(0).Axis(axis));
  grad_outputs->push_back(d_x.y);
  return scope.status();
}

absl::Status GatherStatsGradient(const Scope& scope, const tf::Operation& op,
                                 const std::vector<Output>& grad_inputs,
                                 std::vector<Output>* grad_outputs) {
  const Output count = op.output(0), means = op.input(1);
  const Term mean = {&scope, op.output(1)}, d_count = {&scope, grad_inputs[0]},
             d_mean = {&scope, grad_inputs[1]}, d_m2 = {&scope, grad_inputs[2]};
  const Term n = {&scope, tf::ops::ExpandDims(scope, op.input(0), 1)};
  const Output has = tf::ops::Greater(scope, n, Number(scope, 0));
  const auto per_element = [&](const Term& v) -> Term {
    return {&scope, tf::ops::DivNoNan(scope, v, count)};
  };
  // Parts without elements may hold anything.
  const Term given = {&scope, tf::ops::SelectV2(scope, has, means, mean)};
  const Term apart = given - mean;
  const Term d_means =
      per_element(n) * d_mean + Number(scope, 2) * n * apart * d_m2;
  const Term d_m2s = Wide(scope, has) * d_m2;
  const Term by_channel = per_element(apart) * d_mean + apart * apart * d_m2;
  const Term d_counts =
      d_count + Term{&scope, tf::ops::Sum(scope, by_channel, 1)};
  const Term has_row = {&scope,
                        tf::ops::Reshape(scope, Wide(scope, has), {-1})};
  *grad_outputs = {(has_row * d_counts).output, d_means.output, d_m2s.output};
  return scope.status();
}

absl::Status ElemtGradient(const Scope& scope, const tf::Operation& op,
                           const std::vector<Output>& grad_inputs,
                           std::vector<Output>* grad_outputs) {
  int axis;
  float epsilon;
  std::vector<float> epsilon_rest;
  std::string activation;
  const auto attrs = op.node()->attrs();
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "axis", &axis));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "epsilon", &epsilon));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "epsilon_rest", &epsilon_rest));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "activation_mode", &activation));
  const int side_inputs = op.num_inputs() - 5;
  const Output scale = op.input(1), mean = op.input(3), variance = op.input(4);
  // x tells the mask, unless something was added.
  std::vector<tf::Input> y;
  if (side_inputs > 0 && activation != "Identity") y.emplace_back(op.output(0));
  const ops::BatchNormBackwardReduce sums(
      scope, grad_inputs[0], op.input(0), scale, op.input(2), mean, variance,
      tf::InputList(y),
      ops::BatchNormBackwardReduce::Epsilon(epsilon)
          .EpsilonRest(epsilon_rest)
          .ActivationMode(activation)
          .Axis(axis));
  // The means that it subtracts are zero: mean and variance are inputs.
  const Output zeros = tf::ops::ZerosLike(scope, mean);
  const ops::BatchNormBackwardElemt elements(
      scope, grad_inputs[0], op.input(0), scale, op.input(2), mean, variance,
      zeros, zeros, Number(scope, 1), tf::InputList(y),
      ops::BatchNormBackwardElemt::Epsilon(epsilon)
          .EpsilonRest(epsilon_rest)
          .NumSideInputs(side_inputs)
          .ActivationMode(activation)
          .Axis(axis));
  const Term sum =
      Term{&scope, variance} +
      Number(scope, std::accumulate(epsilon_rest.begin(), epsilon_rest.end(),
                                    double{epsilon}));
  const Term rstd = {&scope,
                     tf::ops::Reciprocal(scope, tf::ops::Sqrt(scope, sum))};
  const Term f = Number(scope, -1) * Wide(scope, scale) * rstd;
  const Term d_mean = f * Term{&scope, sums.sum_dy};
  const Term d_variance =
      Number(scope, 0.5) * f * (rstd * rstd) * Term{&scope, sums.sum_dy_xmu};
  *grad_outputs = {elements.x_backprop, sums.scale_backprop,
                   sums.offset_backprop, d_mean.output, d_variance.output};
  for (const Output& side : elements.side_input_backprop) {
    grad_outputs->push_back(side);
  }
  return scope.status();
}

// Once: TensorFlow ends a process in which a second copy of the client library
// registers a gradient again.
bool Register(const char* op, tf::ops::GradFunc gradient) {
  auto* const registry = tf::ops::GradOpRegistry::Global();
  tf::ops::GradFunc registered;
  return registry->Lookup(op, &registered).ok() ||
         registry->Register(op, gradient);
}

[[maybe_unused]] const bool kRegistered =
    Register("TfBnOps>FusedBatchNorm", ForwardGradient) &&
    Register("TfBnOps>FusedBatchNormV2", ForwardGradient) &&
    Register("TfBnOps>FusedBatchNormV3", ForwardGradient) &&
    Register("TfBnOps>FusedBatchNormEx", ForwardExGradient) &&
    Register("TfBnOps>FusedBatchNormGrad",
             FirstOrderGradient<kFusedBatchNormGrad>) &&
    Register("TfBnOps>FusedBatchNormGradV2",
             FirstOrderGradient<kFusedBatchNormGradV2>) &&
    Register("TfBnOps>FusedBatchNormGradV3",
             FirstOrderGradient<kFusedBatchNormGradV3>) &&
    Register("TfBnOps>FusedBatchNormGradEx",
             FirstOrderGradient<kFusedBatchNormGradEx>) &&
    Register("TfBnOps>BatchNormTrainingBackprop",
             FirstOrderGradient<kBatchNormTrainingBackprop>) &&
    Register("TfBnOps>BatchNormStats", StatsGradient) &&
    Register("TfBnOps>BatchNormGatherStats", GatherStatsGradient) &&
    Register("TfBnOps>BatchNormElemt", ElemtGradient);

}  // namespace
}  // namespace tf_bn_ops
