// The op classes of tf_bn_ops/ops.h: each adds one node to the scope's graph,
// in the steps of the classes that TensorFlow generates for its own ops.

#include "tf_bn_ops/ops.h"

#include "cc/client/add_node.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_bn_ops {
namespace ops {
namespace {

namespace tf = ::tensorflow;

template <typename Attrs>
auto SetAttrs(const Attrs& attrs) {
  return [&attrs](tf::NodeBuilder& builder) {
    builder.Attr("epsilon", attrs.epsilon_)
        .Attr("data_format", attrs.data_format_)
        .Attr("is_training", attrs.is_training_);
  };
}

template <typename Attrs>
auto SetForwardAttrs(const Attrs& attrs) {
  return [&attrs](tf::NodeBuilder& builder) {
    SetAttrs(attrs)(builder);
    builder.Attr("exponential_avg_factor", attrs.exponential_avg_factor_);
  };
}

}  // namespace

FusedBatchNorm::FusedBatchNorm(const tf::Scope& scope, tf::Input x,
                               tf::Input scale, tf::Input offset,
                               tf::Input mean, tf::Input variance)
    : FusedBatchNorm(scope, x, scale, offset, mean, variance, Attrs()) {}

FusedBatchNorm::FusedBatchNorm(const tf::Scope& scope, tf::Input x,
                               tf::Input scale, tf::Input offset,
                               tf::Input mean, tf::Input variance,
                               const Attrs& attrs) {
  using Op = FusedBatchNorm;
  SetMembers<Op>(
      AddNode(scope, "FusedBatchNorm", {x, scale, offset, mean, variance},
              SetForwardAttrs(attrs)),
      {&Op::y, &Op::batch_mean, &Op::batch_variance, &Op::reserve_space_1,
       &Op::reserve_space_2},
      this);
}

FusedBatchNormV2::FusedBatchNormV2(const tf::Scope& scope, tf::Input x,
                                   tf::Input scale, tf::Input offset,
                                   tf::Input mean, tf::Input variance)
    : FusedBatchNormV2(scope, x, scale, offset, mean, variance, Attrs()) {}

FusedBatchNormV2::FusedBatchNormV2(const tf::Scope& scope, tf::Input x,
                                   tf::Input scale, tf::Input offset,
                                   tf::Input mean, tf::Input variance,
                                   const Attrs& attrs) {
  using Op = FusedBatchNormV2;
  SetMembers<Op>(
      AddNode(scope, "FusedBatchNormV2", {x, scale, offset, mean, variance},
              SetForwardAttrs(attrs)),
      {&Op::y, &Op::batch_mean, &Op::batch_variance, &Op::reserve_space_1,
       &Op::reserve_space_2},
      this);
}

FusedBatchNormV3::FusedBatchNormV3(const tf::Scope& scope, tf::Input x,
                                   tf::Input scale, tf::Input offset,
                                   tf::Input mean, tf::Input variance)
    : FusedBatchNormV3(scope, x, scale, offset, mean, variance, Attrs()) {}

FusedBatchNormV3::FusedBatchNormV3(const tf::Scope& scope, tf::Input x,
                                   tf::Input scale, tf::Input offset,
                                   tf::Input mean, tf::Input variance,
                                   const Attrs& attrs) {
  using Op = FusedBatchNormV3;
  SetMembers<Op>(
      AddNode(scope, "FusedBatchNormV3", {x, scale, offset, mean, variance},
              SetForwardAttrs(attrs)),
      {&Op::y, &Op::batch_mean, &Op::batch_variance, &Op::reserve_space_1,
       &Op::reserve_space_2, &Op::reserve_space_3},
      this);
}

FusedBatchNormEx::FusedBatchNormEx(const tf::Scope& scope, tf::Input x,
                                   tf::Input scale, tf::Input offset,
                                   tf::Input mean, tf::Input variance,
                                   tf::InputList side_input)
    : FusedBatchNormEx(scope, x, scale, offset, mean, variance, side_input,
                       Attrs()) {}

FusedBatchNormEx::FusedBatchNormEx(const tf::Scope& scope, tf::Input x,
                                   tf::Input scale, tf::Input offset,
                                   tf::Input mean, tf::Input variance,
                                   tf::InputList side_input,
                                   const Attrs& attrs) {
  using Op = FusedBatchNormEx;
  SetMembers<Op>(
      AddNode(scope, "FusedBatchNormEx", {x, scale, offset, mean, variance},
              [&](tf::NodeBuilder& builder) {
                builder.Input(tf::ops::AsNodeOutList(scope, side_input));
                SetForwardAttrs(attrs)(builder);
                builder.Attr("activation_mode", attrs.activation_mode_)
                    .Attr("bessel_correction", attrs.bessel_correction_);
              }),
      {&Op::y, &Op::batch_mean, &Op::batch_variance, &Op::reserve_space_1,
       &Op::reserve_space_2, &Op::reserve_space_3},
      this);
}

FusedBatchNormGrad::FusedBatchNormGrad(const tf::Scope& scope,
                                       tf::Input y_backprop, tf::Input x,
                                       tf::Input scale,
                                       tf::Input reserve_space_1,
                                       tf::Input reserve_space_2)
    : FusedBatchNormGrad(scope, y_backprop, x, scale, reserve_space_1,
                         reserve_space_2, Attrs()) {}

FusedBatchNormGrad::FusedBatchNormGrad(
    const tf::Scope& scope, tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input reserve_space_1, tf::Input reserve_space_2, const Attrs& attrs) {
  using Op = FusedBatchNormGrad;
  SetMembers<Op>(
      AddNode(scope, "FusedBatchNormGrad",
              {y_backprop, x, scale, reserve_space_1, reserve_space_2},
              SetAttrs(attrs)),
      {&Op::x_backprop, &Op::scale_backprop, &Op::offset_backprop,
       &Op::reserve_space_3, &Op::reserve_space_4},
      this);
}

FusedBatchNormGradV2::FusedBatchNormGradV2(const tf::Scope& scope,
                                           tf::Input y_backprop, tf::Input x,
                                           tf::Input scale,
                                           tf::Input reserve_space_1,
                                           tf::Input reserve_space_2)
    : FusedBatchNormGradV2(scope, y_backprop, x, scale, reserve_space_1,
                           reserve_space_2, Attrs()) {}

FusedBatchNormGradV2::FusedBatchNormGradV2(
    const tf::Scope& scope, tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input reserve_space_1, tf::Input reserve_space_2, const Attrs& attrs) {
  using Op = FusedBatchNormGradV2;
  SetMembers<Op>(
      AddNode(scope, "FusedBatchNormGradV2",
              {y_backprop, x, scale, reserve_space_1, reserve_space_2},
              SetAttrs(attrs)),
      {&Op::x_backprop, &Op::scale_backprop, &Op::offset_backprop,
       &Op::reserve_space_3, &Op::reserve_space_4},
      this);
}

FusedBatchNormGradV3::FusedBatchNormGradV3(const tf::Scope& scope,
                                           tf::Input y_backprop, tf::Input x,
                                           tf::Input scale,
                                           tf::Input reserve_space_1,
                                           tf::Input reserve_space_2,
                                           tf::Input reserve_space_3)
    : FusedBatchNormGradV3(scope, y_backprop, x, scale, reserve_space_1,
                           reserve_space_2, reserve_space_3, Attrs()) {}

FusedBatchNormGradV3::FusedBatchNormGradV3(
    const tf::Scope& scope, tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input reserve_space_1, tf::Input reserve_space_2,
    tf::Input reserve_space_3, const Attrs& attrs) {
  using Op = FusedBatchNormGradV3;
  SetMembers<Op>(AddNode(scope, "FusedBatchNormGradV3",
                         {y_backprop, x, scale, reserve_space_1,
                          reserve_space_2, reserve_space_3},
                         SetAttrs(attrs)),
                 {&Op::x_backprop, &Op::scale_backprop, &Op::offset_backprop,
                  &Op::reserve_space_4, &Op::reserve_space_5},
                 this);
}

BatchNormTrainingBackprop::BatchNormTrainingBackprop(
    const tf::Scope& scope, tf::Input input, tf::Input gamma, tf::Input beta,
    tf::Input mean, tf::Input variance, tf::Input normalized_delta,
    double epsilon) {
  using Op = BatchNormTrainingBackprop;
  SetMembers<Op>(AddNode(scope, "BatchNormTrainingBackprop",
                         {input, gamma, beta, mean, variance, normalized_delta},
                         [epsilon](tf::NodeBuilder& builder) {
                           builder.Attr("epsilon", tf::Tensor(epsilon));
                         }),
                 {&Op::input_delta, &Op::gamma_delta, &Op::beta_delta}, this);
}

FusedBatchNormGradGrad::FusedBatchNormGradGrad(
    const tf::Scope& scope, tf::Input x_backprop_grad,
    tf::Input scale_backprop_grad, tf::Input offset_backprop_grad,
    tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input reserve_space_1, tf::Input reserve_space_2, const Attrs& attrs) {
  using Op = FusedBatchNormGradGrad;
  SetMembers<Op>(
      AddNode(scope, "FusedBatchNormGradGrad",
              {x_backprop_grad, scale_backprop_grad, offset_backprop_grad,
               y_backprop, x, scale, reserve_space_1, reserve_space_2},
              [&attrs](tf::NodeBuilder& builder) {
                SetAttrs(attrs)(builder);
                builder.Attr("epsilon_rest", attrs.epsilon_rest_);
              }),
      {&Op::y_backprop_grad, &Op::x_grad, &Op::scale_grad}, this);
}

}  // namespace ops
}  // namespace tf_bn_ops
