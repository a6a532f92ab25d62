// Gradients of the ops that synchronised batch normalization consists of, for
// tensorflow::AddSymbolicGradients: the forward ones have some, as in Python
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

// An Output with arithmetic operators.
struct Term {
  const Scope* scope;
  Output output;
};
Term operator+(const Term& a, const Term& b) {
  return {a.scope, tf::ops::AddV2(*a.scope, a.output, b.output)};
}
Term operator-(const Term& a, const Term& b) {
  return {a.scope, tf::ops::Sub(*a.scope, a.output, b.output)};
}
Term operator*(const Term& a, const Term& b) {
  return {a.scope, tf::ops::Multiply(*a.scope, a.output, b.output)};
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
      scope, op.input(0), (Number(scope, 2) * d_m2).output,
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
  const Output has = tf::ops::Greater(scope, n.output, Number(scope, 0).output);
  const auto per_element = [&](const Term& v) -> Term {
    return {&scope, tf::ops::DivNoNan(scope, v.output, count)};
  };
  // Parts without elements may hold anything.
  const Term given = {&scope,
                      tf::ops::SelectV2(scope, has, means, mean.output)};
  const Term apart = given - mean;
  const Term d_means =
      per_element(n) * d_mean + Number(scope, 2) * n * apart * d_m2;
  const Term d_m2s = Wide(scope, has) * d_m2;
  const Term by_channel = per_element(apart) * d_mean + apart * apart * d_m2;
  const Term d_counts =
      d_count + Term{&scope, tf::ops::Sum(scope, by_channel.output, 1)};
  const Term has_row = {&scope,
                        tf::ops::Reshape(scope, Wide(scope, has).output, {-1})};
  *grad_outputs = {(has_row * d_counts).output, d_means.output, d_m2s.output};
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
      zeros, zeros, Number(scope, 1).output, tf::InputList(y),
      ops::BatchNormBackwardElemt::Epsilon(epsilon)
          .NumSideInputs(side_inputs)
          .ActivationMode(activation)
          .Axis(axis));
  const Term wide_variance = {&scope, variance};
  const Term sum = wide_variance + Number(scope, epsilon);
  const Term rstd = {
      &scope, tf::ops::Reciprocal(scope, tf::ops::Sqrt(scope, sum.output))};
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

[[maybe_unused]] const bool kSplitRegistered =
    RegisterGradient("TfBnOps>BatchNormStats", StatsGradient) &&
    RegisterGradient("TfBnOps>BatchNormGatherStats", GatherStatsGradient) &&
    RegisterGradient("TfBnOps>BatchNormElemt", ElemtGradient);

}  // namespace
}  // namespace tf_bn_ops
