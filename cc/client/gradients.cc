// Gradients of the ops for tensorflow::AddSymbolicGradients.
//
// They follow TensorFlow's Python gradient of FusedBatchNormGrad: in training,
// mean and variance count as functions of x and are computed from it anew, and
// the inputs that hold them get no gradient. The op FusedBatchNormGradGrad
// computes that. Where it has no kernel, on another device than the CPU, and
// for its own gradient, the same is composed of TensorFlow's ops, half and
// bfloat16 in float:
//
// Notation: dy, x, scale are inputs of the op; gx, gs, go the gradients with
// respect to its outputs x_backprop, scale_backprop, offset_backprop; mean()
// and sum() run over a channel; `c` at the end of a name means that the mean of
// the channel is subtracted; n = xc * r with r = 1/sqrt(mean(xc^2) + epsilon).
//
// Training. The op computes
//   x_backprop = scale r (dyc - n mean(dyc n)),  scale_backprop = sum(dy n),
//   offset_backprop = sum(dy)
// and with a = mean(gxc n), s = mean(dyc n), t = gxc (dyc - n s):
//   d dy    = scale r (gxc - n a) + gs n + go
//   d scale = r sum(t)
//   d x     = r (h - n mean(h n)) - scale r^2 n mean(t)
//             where h = gs dyc - scale r (gxc s + dyc a), whose mean is 0
// The first term of d x comes through n at constant r (the usual gradient of a
// normalization), the second through the factor r.
//
// Frozen, r = 1/sqrt(variance + epsilon):
//   d dy = gx scale r + gs (x - mean) r + go,  d x = gs dy r,
//   d scale = sum(gx dy) r

#include "tensorflow/cc/framework/gradients.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
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

// Tensors of one layout and any rank, in one element type.
class Channels {
 public:
  // `like`: a tensor of the layout.
  Channels(const Scope& scope, const Output& like, bool channels_last)
      : scope_(scope), channels_last_(channels_last) {
    const auto rank = tf::ops::Rank(scope, like);
    if (channels_last) {
      others_ = tf::ops::Range(scope, 0, tf::ops::Sub(scope, rank, 1), 1);
      return;
    }
    const auto concat = [&scope](std::initializer_list<tf::Input> parts) {
      return tf::ops::Concat(scope, parts, 0);
    };
    const auto vector = [&scope](int value) {
      return tf::ops::Const(scope, {value});
    };
    others_ = concat({vector(0), tf::ops::Range(scope, 2, rank, 1)});
    const auto inner_rank = tf::ops::Sub(scope, rank, vector(2));
    broadcast_shape_ =
        concat({vector(1), vector(-1), tf::ops::Fill(scope, inner_rank, 1)});
  }

  // Sum and mean over each channel, in the shape that broadcasts.
  Output Sum(const Output& x) const {
    return tf::ops::Sum(scope_, x, others_, tf::ops::Sum::KeepDims(true));
  }
  Output Mean(const Output& x) const {
    return tf::ops::Mean(scope_, x, others_, tf::ops::Mean::KeepDims(true));
  }
  Output Centered(const Output& x) const {
    return tf::ops::Sub(scope_, x, Mean(x));
  }
  // A vector of one element per channel, in the shape that broadcasts.
  Output Broadcast(const Output& vector) const {
    if (channels_last_) return vector;
    return tf::ops::Reshape(scope_, vector, broadcast_shape_);
  }
  // The reverse of Broadcast: `like` is a vector.
  Output Vector(const Output& x, const Output& like) const {
    return tf::ops::Reshape(scope_, x, tf::ops::Shape(scope_, like));
  }

 private:
  const Scope& scope_;
  const bool channels_last_;
  Output others_;           // all dimensions but the channels'
  Output broadcast_shape_;  // [1, -1, 1, ...]
};

// What the gradients of all four ops are made from.
struct Terms {
  Output dy, x, scale;    // inputs of the op
  Output mean, variance;  // inputs too; read only if not is_training
  Output gx, gs, go;      // gradients with respect to its outputs
  double epsilon;
  bool channels_last;
  bool is_training;
};

struct Gradients {
  Output dy, x, scale;
};

Gradients Compose(const Scope& scope, const Terms& op) {
  const tf::DataType type = op.x.type();
  const tf::DataType computed_in =
      type == tf::DT_DOUBLE ? tf::DT_DOUBLE : tf::DT_FLOAT;
  const auto cast = [&scope](const Output& value, tf::DataType to) -> Output {
    if (value.type() == to) return value;
    return tf::ops::Cast(scope, value, to);
  };
  const auto add = [&scope](const Output& a, const Output& b) -> Output {
    return tf::ops::AddV2(scope, a, b);
  };
  const auto sub = [&scope](const Output& a, const Output& b) -> Output {
    return tf::ops::Sub(scope, a, b);
  };
  const auto mul = [&scope](const Output& a, const Output& b) -> Output {
    return tf::ops::Multiply(scope, a, b);
  };

  const Output x = cast(op.x, computed_in);
  const Output dy = cast(op.dy, computed_in);
  const Output gx = cast(op.gx, computed_in);
  const Channels channels(scope, x, op.channels_last);
  const auto channel_values = [&](const Output& vector) {
    return channels.Broadcast(cast(vector, computed_in));
  };
  const Output scale = channel_values(op.scale);
  const Output gs = channel_values(op.gs);
  const Output go = channel_values(op.go);
  const Output epsilon = cast(tf::ops::Const(scope, op.epsilon), computed_in);

  Gradients result;
  if (op.is_training) {
    const Output xc = channels.Centered(x);
    const Output dyc = channels.Centered(dy);
    const Output gxc = channels.Centered(gx);
    const Output r = tf::ops::Rsqrt(
        scope, add(channels.Mean(tf::ops::Square(scope, xc)), epsilon));
    const Output n = mul(xc, r);
    const Output a = channels.Mean(mul(gxc, n));
    const Output s = channels.Mean(mul(dyc, n));
    const Output t = mul(gxc, sub(dyc, mul(n, s)));
    const Output scale_r = mul(scale, r);
    const Output h =
        sub(mul(gs, dyc), mul(scale_r, add(mul(gxc, s), mul(dyc, a))));
    result.dy = add(mul(scale_r, sub(gxc, mul(n, a))), add(mul(gs, n), go));
    result.scale = mul(r, channels.Sum(t));
    result.x = sub(mul(r, sub(h, mul(n, channels.Mean(mul(h, n))))),
                   mul(mul(mul(scale_r, r), channels.Mean(t)), n));
  } else {
    const Output r =
        tf::ops::Rsqrt(scope, add(channel_values(op.variance), epsilon));
    const Output xc = sub(x, channel_values(op.mean));
    result.dy = add(mul(gx, mul(scale, r)), add(mul(mul(gs, r), xc), go));
    result.scale = mul(channels.Sum(mul(gx, dy)), r);
    result.x = mul(mul(gs, r), dy);
  }
  result.dy = cast(result.dy, op.dy.type());
  result.x = cast(result.x, type);
  result.scale = cast(channels.Vector(result.scale, op.scale), op.scale.type());
  return result;
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

constexpr char kSecondOrder[] = "TfBnOps>FusedBatchNormGradGrad";

// Whether FusedBatchNormGradGrad has kernels where `op` was asked to run.
// Nowhere in particular: it will be placed where there are.
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

Gradients Differentiate(const Scope& scope, const tf::Operation& op,
                        const Terms& terms) {
  if (!HasKernel(op)) return Compose(scope, terms);
  std::vector<float> epsilon = AsFloats(terms.epsilon);
  using Op = ops::FusedBatchNormGradGrad;
  const Op::Attrs attrs =
      Op::Epsilon(epsilon[0])
          .EpsilonRest({epsilon.begin() + 1, epsilon.end()})
          .DataFormat(terms.channels_last ? "NHWC" : "NCHW")  // of any rank
          .IsTraining(terms.is_training);
  const Op result(scope, terms.gx, terms.gs, terms.go, terms.dy, terms.x,
                  terms.scale, terms.mean, terms.variance, attrs);
  return {result.y_backprop_grad, result.x_grad, result.scale_grad};
}

absl::Status FusedBatchNormGradGrad(const Scope& scope, const tf::Operation& op,
                                    const std::vector<Output>& grad_inputs,
                                    std::vector<Output>* grad_outputs) {
  const auto attrs = op.node()->attrs();
  float epsilon;
  std::string data_format;
  Terms terms;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "epsilon", &epsilon));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "data_format", &data_format));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "is_training", &terms.is_training));
  terms.epsilon = epsilon;
  terms.channels_last = data_format.back() == 'C';
  terms.dy = op.input(0);
  terms.x = op.input(1);
  terms.scale = op.input(2);
  terms.mean = op.input(3);
  terms.variance = op.input(4);
  terms.gx = grad_inputs[0];
  terms.gs = grad_inputs[1];
  terms.go = grad_inputs[2];
  const Gradients gradients = Differentiate(scope, op, terms);
  *grad_outputs = {gradients.dy, gradients.x, gradients.scale};
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
  return scope.status();
}

absl::Status BatchNormTrainingBackpropGrad(
    const Scope& scope, const tf::Operation& op,
    const std::vector<Output>& grad_inputs, std::vector<Output>* grad_outputs) {
  tf::Tensor epsilon;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(op.node()->attrs(), "epsilon", &epsilon));
  if (epsilon.dtype() != tf::DT_DOUBLE || epsilon.dims() != 0) {
    return absl::InvalidArgumentError(
        "epsilon must be a scalar of type double");
  }
  Terms terms;
  terms.epsilon = epsilon.scalar<double>()();
  terms.channels_last = false;
  terms.is_training = true;
  terms.x = op.input(0);
  terms.scale = op.input(1);
  terms.mean = op.input(3);
  terms.variance = op.input(4);
  terms.dy = op.input(5);
  terms.gx = grad_inputs[0];
  terms.gs = grad_inputs[1];
  terms.go = grad_inputs[2];
  const Gradients gradients = Differentiate(scope, op, terms);
  const Output none = tf::NoGradient();
  *grad_outputs = {gradients.x, gradients.scale, none, none,
                   none,        gradients.dy};
  return scope.status();
}

// The third order, by differentiating what the second is composed of.
absl::Status SecondOrderGrad(const Scope& scope, const tf::Operation& op,
                             const std::vector<Output>& grad_inputs,
                             std::vector<Output>* grad_outputs) {
  const auto attrs = op.node()->attrs();
  float epsilon;
  std::vector<float> epsilon_rest;
  std::string data_format;
  Terms terms;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "epsilon", &epsilon));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "epsilon_rest", &epsilon_rest));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "data_format", &data_format));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "is_training", &terms.is_training));
  terms.epsilon = epsilon;
  for (float part : epsilon_rest) terms.epsilon += part;
  terms.channels_last = data_format.back() == 'C';
  std::vector<Output> inputs;
  // Copies: the gradient with respect to the composed part alone is wanted, not
  // to what else becomes of the inputs.
  for (int i = 0; i < op.num_inputs(); ++i) {
    inputs.push_back(tf::ops::Identity(scope, op.input(i)));
  }
  terms.gx = inputs[0];
  terms.gs = inputs[1];
  terms.go = inputs[2];
  terms.dy = inputs[3];
  terms.x = inputs[4];
  terms.scale = inputs[5];
  terms.mean = inputs[6];
  terms.variance = inputs[7];
  const Gradients composed = Compose(scope, terms);
  TF_RETURN_IF_ERROR(scope.status());
  const std::vector<Output> differentiable(inputs.begin(), inputs.begin() + 6);
  TF_RETURN_IF_ERROR(
      tf::AddSymbolicGradients(scope, {composed.dy, composed.x, composed.scale},
                               differentiable, grad_inputs, grad_outputs));
  grad_outputs->resize(op.num_inputs(), tf::NoGradient());
  return scope.status();
}

REGISTER_GRADIENT_OP(kSecondOrder, SecondOrderGrad);
REGISTER_GRADIENT_OP("TfBnOps>FusedBatchNormGrad", FusedBatchNormGradGrad);
REGISTER_GRADIENT_OP("TfBnOps>FusedBatchNormGradV2", FusedBatchNormGradGrad);
REGISTER_GRADIENT_OP("TfBnOps>FusedBatchNormGradV3", FusedBatchNormGradGrad);
REGISTER_GRADIENT_OP("TfBnOps>BatchNormTrainingBackprop",
                     BatchNormTrainingBackpropGrad);

}  // namespace
}  // namespace tf_bn_ops
