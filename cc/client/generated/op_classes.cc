// clang-format off
// Constructors of the op classes.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#include "cc/client/add_op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {

namespace ops {

namespace tf = ::tensorflow;

BatchNormBackwardElemt::BatchNormBackwardElemt(const tf::Scope& scope,
    tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input offset, tf::Input mean, tf::Input variance,
    tf::Input sum_dy, tf::Input sum_dy_xmu, tf::Input count,
    tf::InputList y, const Attrs& attrs) {
  AddOp(scope, "BatchNormBackwardElemt", {y_backprop, x, scale, offset, mean, variance, sum_dy,
        sum_dy_xmu, count},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Input(tf::ops::AsNodeOutList(scope, y)).Attr("epsilon", attrs.epsilon_)
              .Attr("num_side_inputs", attrs.num_side_inputs_)
              .Attr("activation_mode", attrs.activation_mode_).Attr("axis", attrs.axis_);
        }, &operation, {&x_backprop}, &side_input_backprop);
}

BatchNormBackwardReduce::BatchNormBackwardReduce(const tf::Scope& scope,
    tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input offset, tf::Input mean, tf::Input variance,
    tf::InputList y, const Attrs& attrs) {
  AddOp(scope, "BatchNormBackwardReduce", {y_backprop, x, scale, offset, mean, variance},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Input(tf::ops::AsNodeOutList(scope, y)).Attr("epsilon", attrs.epsilon_)
              .Attr("activation_mode", attrs.activation_mode_).Attr("axis", attrs.axis_);
        }, &operation, {&sum_dy, &sum_dy_xmu, &scale_backprop, &offset_backprop});
}

BatchNormElemt::BatchNormElemt(const tf::Scope& scope, tf::Input x,
    tf::Input scale, tf::Input offset, tf::Input mean,
    tf::Input variance, tf::InputList side_input, const Attrs& attrs) {
  AddOp(scope, "BatchNormElemt", {x, scale, offset, mean, variance},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Input(tf::ops::AsNodeOutList(scope, side_input))
              .Attr("epsilon", attrs.epsilon_).Attr("activation_mode", attrs.activation_mode_)
              .Attr("axis", attrs.axis_);
        }, &operation, {&y});
}

BatchNormGatherStats::BatchNormGatherStats(const tf::Scope& scope, tf::Input counts,
    tf::Input means, tf::Input m2s) {
  AddOp(scope, "BatchNormGatherStats", {counts, means, m2s},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
        }, &operation, {&count, &mean, &m2});
}

BatchNormStats::BatchNormStats(const tf::Scope& scope, tf::Input x,
    const Attrs& attrs) {
  AddOp(scope, "BatchNormStats", {x},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("axis", attrs.axis_);
        }, &operation, {&count, &mean, &m2});
}

BatchNormTrainingBackprop::BatchNormTrainingBackprop(const tf::Scope& scope,
    tf::Input input, tf::Input gamma, tf::Input beta,
    tf::Input mean, tf::Input variance, tf::Input normalized_delta,
    double epsilon) {
  AddOp(scope, "BatchNormTrainingBackprop", {input, gamma, beta, mean, variance, normalized_delta},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", tf::Tensor(epsilon));
        }, &operation, {&input_delta, &gamma_delta, &beta_delta});
}

FusedBatchNorm::FusedBatchNorm(const tf::Scope& scope, tf::Input x,
    tf::Input scale, tf::Input offset, tf::Input mean,
    tf::Input variance, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNorm", {x, scale, offset, mean, variance},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", attrs.epsilon_)
              .Attr("exponential_avg_factor", attrs.exponential_avg_factor_)
              .Attr("data_format", attrs.data_format_).Attr("is_training", attrs.is_training_);
        }, &operation, {&y, &batch_mean, &batch_variance, &reserve_space_1, &reserve_space_2});
}

FusedBatchNormEx::FusedBatchNormEx(const tf::Scope& scope, tf::Input x,
    tf::Input scale, tf::Input offset, tf::Input mean,
    tf::Input variance, tf::InputList side_input, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormEx", {x, scale, offset, mean, variance},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Input(tf::ops::AsNodeOutList(scope, side_input))
              .Attr("epsilon", attrs.epsilon_)
              .Attr("exponential_avg_factor", attrs.exponential_avg_factor_)
              .Attr("activation_mode", attrs.activation_mode_)
              .Attr("data_format", attrs.data_format_).Attr("is_training", attrs.is_training_)
              .Attr("bessel_correction", attrs.bessel_correction_);
        }, &operation, {&y, &batch_mean, &batch_variance, &reserve_space_1, &reserve_space_2,
        &reserve_space_3});
}

FusedBatchNormGrad::FusedBatchNormGrad(const tf::Scope& scope, tf::Input y_backprop,
    tf::Input x, tf::Input scale, tf::Input reserve_space_1,
    tf::Input reserve_space_2, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGrad", {y_backprop, x, scale, reserve_space_1, reserve_space_2},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", attrs.epsilon_).Attr("data_format", attrs.data_format_)
              .Attr("is_training", attrs.is_training_);
        }, &operation, {&x_backprop, &scale_backprop, &offset_backprop, &reserve_space_3,
        &reserve_space_4});
}

FusedBatchNormGradEx::FusedBatchNormGradEx(const tf::Scope& scope,
    tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input reserve_space_1, tf::Input reserve_space_2,
    tf::Input reserve_space_3, tf::Input offset, tf::Input y,
    const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGradEx", {y_backprop, x, scale, reserve_space_1, reserve_space_2,
        reserve_space_3, offset, y},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", attrs.epsilon_).Attr("num_side_inputs", attrs.num_side_inputs_)
              .Attr("activation_mode", attrs.activation_mode_)
              .Attr("data_format", attrs.data_format_).Attr("is_training", attrs.is_training_);
        }, &operation, {&x_backprop, &scale_backprop, &offset_backprop, &reserve_space_4,
        &reserve_space_5}, &side_input_backprop);
}

FusedBatchNormGradGrad::FusedBatchNormGradGrad(const tf::Scope& scope,
    tf::Input x_backprop_grad, tf::Input scale_backprop_grad,
    tf::Input offset_backprop_grad, tf::Input y_backprop, tf::Input x,
    tf::Input scale, tf::Input reserve_space_1, tf::Input reserve_space_2,
    const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGradGrad", {x_backprop_grad, scale_backprop_grad,
        offset_backprop_grad, y_backprop, x, scale, reserve_space_1, reserve_space_2},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", attrs.epsilon_).Attr("epsilon_rest", attrs.epsilon_rest_)
              .Attr("data_format", attrs.data_format_).Attr("is_training", attrs.is_training_);
        }, &operation, {&y_backprop_grad, &x_grad, &scale_grad});
}

FusedBatchNormGradV2::FusedBatchNormGradV2(const tf::Scope& scope,
    tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input reserve_space_1, tf::Input reserve_space_2, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGradV2", {y_backprop, x, scale, reserve_space_1, reserve_space_2},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", attrs.epsilon_).Attr("data_format", attrs.data_format_)
              .Attr("is_training", attrs.is_training_);
        }, &operation, {&x_backprop, &scale_backprop, &offset_backprop, &reserve_space_3,
        &reserve_space_4});
}

FusedBatchNormGradV3::FusedBatchNormGradV3(const tf::Scope& scope,
    tf::Input y_backprop, tf::Input x, tf::Input scale,
    tf::Input reserve_space_1, tf::Input reserve_space_2,
    tf::Input reserve_space_3, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGradV3", {y_backprop, x, scale, reserve_space_1, reserve_space_2,
        reserve_space_3},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", attrs.epsilon_).Attr("data_format", attrs.data_format_)
              .Attr("is_training", attrs.is_training_);
        }, &operation, {&x_backprop, &scale_backprop, &offset_backprop, &reserve_space_4,
        &reserve_space_5});
}

FusedBatchNormV2::FusedBatchNormV2(const tf::Scope& scope, tf::Input x,
    tf::Input scale, tf::Input offset, tf::Input mean,
    tf::Input variance, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormV2", {x, scale, offset, mean, variance},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", attrs.epsilon_)
              .Attr("exponential_avg_factor", attrs.exponential_avg_factor_)
              .Attr("data_format", attrs.data_format_).Attr("is_training", attrs.is_training_);
        }, &operation, {&y, &batch_mean, &batch_variance, &reserve_space_1, &reserve_space_2});
}

FusedBatchNormV3::FusedBatchNormV3(const tf::Scope& scope, tf::Input x,
    tf::Input scale, tf::Input offset, tf::Input mean,
    tf::Input variance, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormV3", {x, scale, offset, mean, variance},
        [&]([[maybe_unused]] tf::NodeBuilder& builder) {
          builder.Attr("epsilon", attrs.epsilon_)
              .Attr("exponential_avg_factor", attrs.exponential_avg_factor_)
              .Attr("data_format", attrs.data_format_).Attr("is_training", attrs.is_training_);
        }, &operation, {&y, &batch_mean, &batch_variance, &reserve_space_1, &reserve_space_2,
        &reserve_space_3});
}

}

}  // namespace tf_bn_ops
