// Gradients of the ops for tensorflow::AddSymbolicGradients.
//
// They follow TensorFlow's Python gradient of FusedBatchNormGrad: in training,
// mean and variance count as functions of x and are computed from it anew, and
// the inputs that hold them get no gradient. The gradient of the first-order
// ops is the op FusedBatchNormGradGrad; where that has no kernel, on another
// device than the CPU, and for its own gradient, it is composed of TensorFlow's
// ops (second_order_composition.h).

#include "tensorflow/cc/framework/gradients.h"

#include <string>
#include <vector>

#include "cc/client/second_order_composition.h"
#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
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
  const auto attrs = op.node()->attrs();
  float epsilon;
  std::string data_format;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "epsilon", &epsilon));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "data_format", &data_format));
  TF_RETURN_IF_ERROR(
      tf::GetNodeAttr(attrs, "is_training", &inputs->is_training));
  inputs->epsilon = epsilon;
  inputs->channels_last = data_format.back() == 'C';
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

REGISTER_GRADIENT_OP("TfBnOps>FusedBatchNormGrad", FusedBatchNormGradGradient);
REGISTER_GRADIENT_OP("TfBnOps>FusedBatchNormGradV2",
                     FusedBatchNormGradGradient);
REGISTER_GRADIENT_OP("TfBnOps>FusedBatchNormGradV3",
                     FusedBatchNormGradGradient);
REGISTER_GRADIENT_OP("TfBnOps>BatchNormTrainingBackprop",
                     BatchNormTrainingBackpropGradient);
REGISTER_GRADIENT_OP(kSecondOrder, FusedBatchNormGradGradGradient);

}  // namespace
}  // namespace tf_bn_ops
