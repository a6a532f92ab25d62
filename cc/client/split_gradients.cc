// Gradients of the ops that synchronised batch normalization consists of, for
// tensorflow::AddSymbolicGradients: those of the forward ones, as in Python
// (tf_bn_ops/_split_gradients.py, which has the formulas).

#include <string>
#include <vector>

#include "cc/client/register_gradient.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;
using tf::Output;
using tf::Scope;

Output Wide(const Scope& scope, const Output& value) {
  return tf::ops::Cast(scope, value, tf::DT_DOUBLE);
}
Output Times(const Scope& scope, const Output& a, const Output& b) {
  return tf::ops::Multiply(scope, a, b);
}
Output Plus(const Scope& scope, const Output& a, const Output& b) {
  return tf::ops::Add(scope, a, b);
}
Output Number(const Scope& scope, double value) {
  return tf::ops::Const(scope, value);
}

absl::Status StatsGradient(const Scope& scope, const tf::Operation& op,
                           const std::vector<Output>& grad_inputs,
                           std::vector<Output>* grad_outputs) {
  int axis;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(op.node()->attrs(), "axis", &axis));
  const Output mean = op.output(1);
  // d_mean / count + (x - mean) * 2 d_m2, by the op with a deviation of 1.
  const ops::BatchNormElemt d_x(
      scope, op.input(0), Times(scope, Number(scope, 2), grad_inputs[2]),
      tf::ops::DivNoNan(scope, grad_inputs[1], op.output(0)), mean,
      tf::ops::OnesLike(scope, mean), std::initializer_list<tf::Input>{},
      ops::BatchNormElemt::Epsilon(0).Axis(axis));
  grad_outputs->push_back(d_x.y);
  return scope.status();
}

absl::Status GatherStatsGradient(const Scope& scope, const tf::Operation& op,
                                 const std::vector<Output>& grad_inputs,
                                 std::vector<Output>* grad_outputs) {
  const Output count = op.output(0), mean = op.output(1), means = op.input(1);
  const Output& d_mean = grad_inputs[1];
  const Output& d_m2 = grad_inputs[2];
  const Output n = tf::ops::ExpandDims(scope, op.input(0), 1);
  const Output has = tf::ops::Greater(scope, n, Number(scope, 0));
  // Parts without elements may hold anything.
  const Output apart = tf::ops::Subtract(
      scope, tf::ops::SelectV2(scope, has, means, mean), mean);
  const Output share = tf::ops::DivNoNan(scope, n, count);
  const Output d_means =
      Plus(scope, Times(scope, share, d_mean),
           Times(scope, Times(scope, Times(scope, Number(scope, 2), n), apart),
                 d_m2));
  const Output d_m2s = Times(scope, Wide(scope, has), d_m2);
  const Output by_channel =
      Plus(scope, Times(scope, tf::ops::DivNoNan(scope, apart, count), d_mean),
           Times(scope, tf::ops::Square(scope, apart), d_m2));
  const Output d_counts =
      Plus(scope, grad_inputs[0], tf::ops::Sum(scope, by_channel, 1));
  *grad_outputs = {
      Times(scope, tf::ops::Reshape(scope, Wide(scope, has), {-1}), d_counts),
      d_means, d_m2s};
  return scope.status();
}

absl::Status ElemtGradient(const Scope& scope, const tf::Operation& op,
                           const std::vector<Output>& grad_inputs,
                           std::vector<Output>* grad_outputs) {
  int axis;
  float epsilon;
  std::string activation;
  const auto attrs = op.node()->attrs();
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "axis", &axis));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "epsilon", &epsilon));
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(attrs, "activation_mode", &activation));
  const int side_inputs = op.num_inputs() - 5;
  const Output scale = op.input(1), mean = op.input(3), variance = op.input(4);
  // x tells the mask, unless something was added.
  std::vector<tf::Input> y;
  if (side_inputs > 0 && activation != "Identity") y.emplace_back(op.output(0));
  const auto inputs = [&](int i) { return op.input(i); };
  const ops::BatchNormBackwardReduce sums(
      scope, grad_inputs[0], inputs(0), inputs(1), inputs(2), mean, variance,
      tf::InputList(y),
      ops::BatchNormBackwardReduce::Epsilon(epsilon)
          .ActivationMode(activation)
          .Axis(axis));
  // The means that it subtracts are zero: mean and variance are inputs.
  const Output zeros = tf::ops::ZerosLike(scope, mean);
  const ops::BatchNormBackwardElemt elements(
      scope, grad_inputs[0], inputs(0), inputs(1), inputs(2), mean, variance,
      zeros, zeros, Number(scope, 1), tf::InputList(y),
      ops::BatchNormBackwardElemt::Epsilon(epsilon)
          .NumSideInputs(side_inputs)
          .ActivationMode(activation)
          .Axis(axis));
  const Output rstd = tf::ops::Reciprocal(
      scope,
      tf::ops::Sqrt(scope, Plus(scope, variance, Number(scope, epsilon))));
  const Output f = Times(scope, Wide(scope, scale), rstd);
  const Output d_mean = Times(scope, tf::ops::Negate(scope, f), sums.sum_dy);
  const Output d_variance =
      Times(scope,
            Times(scope, Times(scope, Number(scope, -0.5), f),
                  tf::ops::Square(scope, rstd)),
            sums.sum_dy_xmu);
  *grad_outputs = {elements.x_backprop, sums.scale_backprop,
                   sums.offset_backprop, d_mean, d_variance};
  for (const Output& side : elements.side_input_backprop) {
    grad_outputs->push_back(side);
  }
  return scope.status();
}

[[maybe_unused]] const bool kSplitRegistered =
    RegisterGradient("TfBnOps>BatchNormStats", StatsGradient) &&
    RegisterGradient("TfBnOps>BatchNormGatherStats", GatherStatsGradient) &&
    RegisterGradient("TfBnOps>BatchNormElemt", ElemtGradient);

}  // namespace
}  // namespace tf_bn_ops
