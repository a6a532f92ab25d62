// Gradients of the ops for tensorflow::AddSymbolicGradients.
//
// They follow TensorFlow's Python gradients. That of a forward op is its
// FusedBatchNormGrad: y alone is differentiated, by x, scale, offset and
// side_input. In that of the first-order ops, in training, mean and variance
// count as functions of x and are computed from it anew, and the inputs that
// hold them get no gradient: it is the op FusedBatchNormGradGrad; where that
// has no kernel, on a GPU in a build for CPUs, and for its own gradient, it is
// composed of TensorFlow's ops (second_order_composition.h).

#include "tensorflow/cc/framework/gradients.h"

#include <string>
#include <vector>

#include "cc/client/register_gradient.h"
#include "cc/client/second_order_composition.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;
using tf::Output;
using tf::Scope;

constexpr char kSecondOrder[] = "TfBnOps>FusedBatchNormGradGrad";

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
// or V3 and gets `rest` after the statistics; the other inputs have none.
template <typename Op, typename... Rest>
absl::Status AddFirstOrder(const Scope& scope, const tf::Operation& op,
                           const Output& y_backprop,
                           std::vector<Output>* grad_outputs,
                           const Rest&... rest) {
  FusedAttrs attrs;
  TF_RETURN_IF_ERROR(attrs.Read(op));
  // reserve_space_1 and 2, which are written frozen too.
  const Op grad(scope, y_backprop, op.input(0), op.input(1), op.output(3),
                op.output(4), rest...,
                Op::Epsilon(attrs.epsilon)
                    .DataFormat(attrs.data_format)
                    .IsTraining(attrs.is_training));
  *grad_outputs = {grad.x_backprop, grad.scale_backprop, grad.offset_backprop};
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
  return scope.status();
}

template <typename Op>
absl::Status FusedBatchNormGradient(const Scope& scope, const tf::Operation& op,
                                    const std::vector<Output>& grad_inputs,
                                    std::vector<Output>* grad_outputs) {
  return AddFirstOrder<Op>(scope, op, grad_inputs[0], grad_outputs);
}

absl::Status FusedBatchNormV3Gradient(const Scope& scope,
                                      const tf::Operation& op,
                                      const std::vector<Output>& grad_inputs,
                                      std::vector<Output>* grad_outputs) {
  return AddFirstOrder<ops::FusedBatchNormGradV3>(scope, op, grad_inputs[0],
                                                  grad_outputs, op.output(5));
}

// `y_backprop` where the activation whose result is y passes it on, else zero:
// by Select, which has a registered gradient in C++; ReluGrad and Relu6Grad
// have none (up to TensorFlow 2.21), and a second derivative would be refused.
absl::Status BehindActivation(const Scope& scope, const tf::Operation& op,
                              const Output& y, Output* y_backprop) {
  std::string mode;
  TF_RETURN_IF_ERROR(
      tf::GetNodeAttr(op.node()->attrs(), "activation_mode", &mode));
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

absl::Status FusedBatchNormExGradient(const Scope& scope,
                                      const tf::Operation& op,
                                      const std::vector<Output>& grad_inputs,
                                      std::vector<Output>* grad_outputs) {
  Output y_backprop = grad_inputs[0];
  TF_RETURN_IF_ERROR(BehindActivation(scope, op, op.output(0), &y_backprop));
  TF_RETURN_IF_ERROR(AddFirstOrder<ops::FusedBatchNormGradV3>(
      scope, op, y_backprop, grad_outputs, op.output(5)));
  for (int i = 5; i < op.num_inputs(); ++i) (*grad_outputs)[i] = y_backprop;
  return scope.status();
}

// ---- First-order gradients --------------------------------------------------

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

// Whether FusedBatchNormGradGrad has kernels for the device that `op` requests.
// An op without a request will be placed where kernels are.
bool HasKernel(const tf::Operation& op) {
  tf::DeviceNameUtils::ParsedName device;
  if (!tf::DeviceNameUtils::ParseFullName(op.node()->requested_device(),
                                          &device) ||
      !device.has_type) {
    return true;
  }
  const tf::KernelList registered = tf::GetRegisteredKernelsForOp(kSecondOrder);
  for (const tf::KernelDef& kernel : registered.kernel()) {
    if (kernel.device_type() == device.type) return true;
  }
  return false;
}

// The second-order gradient of `op`, one of the first-order ops.
SecondOrderOutputs SecondOrder(const Scope& scope, const tf::Operation& op,
                               const SecondOrderInputs& inputs) {
  if (!HasKernel(op)) return ComposeSecondOrder(scope, inputs);
  const std::vector<float> epsilon = AsFloats(inputs.epsilon);
  using Op = ops::FusedBatchNormGradGrad;
  const Op::Attrs attrs =
      Op::Epsilon(epsilon[0])
          .EpsilonRest({epsilon.begin() + 1, epsilon.end()})
          .DataFormat(inputs.channels_last ? "NHWC" : "NCHW")  // of any rank
          .IsTraining(inputs.is_training);
  const Op result(scope, inputs.x_backprop_grad, inputs.scale_backprop_grad,
                  inputs.offset_backprop_grad, inputs.y_backprop, inputs.x,
                  inputs.scale, inputs.mean, inputs.variance, attrs);
  return {result.y_backprop_grad, result.x_grad, result.scale_grad};
}

// Reads the attributes that the fused ops and FusedBatchNormGradGrad share.
absl::Status ReadAttrs(const tf::Operation& op, SecondOrderInputs* inputs) {
  FusedAttrs attrs;
  TF_RETURN_IF_ERROR(attrs.Read(op));
  inputs->epsilon = attrs.epsilon;
  inputs->channels_last = attrs.data_format.back() == 'C';
  inputs->is_training = attrs.is_training;
  return absl::OkStatus();
}

void SetGradients(const std::vector<Output>& grad_inputs,
                  SecondOrderInputs* inputs) {
  inputs->x_backprop_grad = grad_inputs[0];
  inputs->scale_backprop_grad = grad_inputs[1];
  inputs->offset_backprop_grad = grad_inputs[2];
}

absl::Status FusedBatchNormGradGradient(const Scope& scope,
                                        const tf::Operation& op,
                                        const std::vector<Output>& grad_inputs,
                                        std::vector<Output>* grad_outputs) {
  SecondOrderInputs inputs;
  TF_RETURN_IF_ERROR(ReadAttrs(op, &inputs));
  SetGradients(grad_inputs, &inputs);
  inputs.y_backprop = op.input(0);
  inputs.x = op.input(1);
  inputs.scale = op.input(2);
  inputs.mean = op.input(3);
  inputs.variance = op.input(4);
  const SecondOrderOutputs grads = SecondOrder(scope, op, inputs);
  *grad_outputs = {grads.y_backprop_grad, grads.x_grad, grads.scale_grad};
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
  return scope.status();
}

// The mask is constant almost everywhere, so this is the gradient of the plain
// op between two masks.
absl::Status FusedBatchNormGradExGradient(
    const Scope& scope, const tf::Operation& op,
    const std::vector<Output>& grad_inputs, std::vector<Output>* grad_outputs) {
  const Output y = op.input(7);
  SecondOrderInputs inputs;
  TF_RETURN_IF_ERROR(ReadAttrs(op, &inputs));
  SetGradients(grad_inputs, &inputs);
  inputs.y_backprop = op.input(0);
  TF_RETURN_IF_ERROR(BehindActivation(scope, op, y, &inputs.y_backprop));
  inputs.x = op.input(1);
  inputs.scale = op.input(2);
  inputs.mean = op.input(3);
  inputs.variance = op.input(4);
  const SecondOrderOutputs grads = SecondOrder(scope, op, inputs);
  Output y_backprop_grad = grads.y_backprop_grad;
  for (size_t i = 5; i < grad_inputs.size(); ++i) {  // Of side inputs.
    y_backprop_grad = tf::ops::AddV2(scope, y_backprop_grad, grad_inputs[i]);
  }
  TF_RETURN_IF_ERROR(BehindActivation(scope, op, y, &y_backprop_grad));
  *grad_outputs = {y_backprop_grad, grads.x_grad, grads.scale_grad};
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
  return scope.status();
}

absl::Status BatchNormTrainingBackpropGradient(
    const Scope& scope, const tf::Operation& op,
    const std::vector<Output>& grad_inputs, std::vector<Output>* grad_outputs) {
  tf::Tensor epsilon;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(op.node()->attrs(), "epsilon", &epsilon));
  if (epsilon.dtype() != tf::DT_DOUBLE || epsilon.dims() != 0) {
    return absl::InvalidArgumentError(
        "epsilon must be a scalar of type double");
  }
  SecondOrderInputs inputs;
  inputs.epsilon = epsilon.scalar<double>()();
  inputs.channels_last = false;
  SetGradients(grad_inputs, &inputs);
  inputs.x = op.input(0);
  inputs.scale = op.input(1);
  inputs.mean = op.input(3);
  inputs.variance = op.input(4);
  inputs.y_backprop = op.input(5);
  const SecondOrderOutputs grads = SecondOrder(scope, op, inputs);
  const Output none = tf::NoGradient();
  *grad_outputs = {grads.x_grad, grads.scale_grad,     none, none,
                   none,         grads.y_backprop_grad};
  return scope.status();
}

// ---- The second-order gradient ----------------------------------------------

// The third-order gradient, by differentiating the composition.
absl::Status FusedBatchNormGradGradGradient(
    const Scope& scope, const tf::Operation& op,
    const std::vector<Output>& grad_inputs, std::vector<Output>* grad_outputs) {
  SecondOrderInputs inputs;
  TF_RETURN_IF_ERROR(ReadAttrs(op, &inputs));
  std::vector<float> epsilon_rest;
  TF_RETURN_IF_ERROR(
      tf::GetNodeAttr(op.node()->attrs(), "epsilon_rest", &epsilon_rest));
  for (float part : epsilon_rest) inputs.epsilon += part;
  // Copies, so that AddSymbolicGradients follows the composition alone, not
  // other uses of the same tensors.
  std::vector<Output> copies;
  for (int i = 0; i < op.num_inputs(); ++i) {
    copies.push_back(tf::ops::Identity(scope, op.input(i)));
  }
  SetGradients(copies, &inputs);
  inputs.y_backprop = copies[3];
  inputs.x = copies[4];
  inputs.scale = copies[5];
  inputs.mean = copies[6];
  inputs.variance = copies[7];
  const SecondOrderOutputs composed = ComposeSecondOrder(scope, inputs);
  TF_RETURN_IF_ERROR(scope.status());
  const std::vector<Output> differentiable(copies.begin(), copies.begin() + 6);
  TF_RETURN_IF_ERROR(tf::AddSymbolicGradients(
      scope, {composed.y_backprop_grad, composed.x_grad, composed.scale_grad},
      differentiable, grad_inputs, grad_outputs));
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
  return scope.status();
}

[[maybe_unused]] const bool kRegistered =
    RegisterGradient("TfBnOps>FusedBatchNorm",
                     FusedBatchNormGradient<ops::FusedBatchNormGrad>) &&
    RegisterGradient("TfBnOps>FusedBatchNormV2",
                     FusedBatchNormGradient<ops::FusedBatchNormGradV2>) &&
    RegisterGradient("TfBnOps>FusedBatchNormV3", FusedBatchNormV3Gradient) &&
    RegisterGradient("TfBnOps>FusedBatchNormEx", FusedBatchNormExGradient) &&
    RegisterGradient("TfBnOps>FusedBatchNormGrad",
                     FusedBatchNormGradGradient) &&
    RegisterGradient("TfBnOps>FusedBatchNormGradV2",
                     FusedBatchNormGradGradient) &&
    RegisterGradient("TfBnOps>FusedBatchNormGradV3",
                     FusedBatchNormGradGradient) &&
    RegisterGradient("TfBnOps>FusedBatchNormGradEx",
                     FusedBatchNormGradExGradient) &&
    RegisterGradient("TfBnOps>BatchNormTrainingBackprop",
                     BatchNormTrainingBackpropGradient) &&
    RegisterGradient(kSecondOrder, FusedBatchNormGradGradGradient);

}  // namespace
}  // namespace tf_bn_ops
