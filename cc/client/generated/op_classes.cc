// clang-format off
// Constructors of the op classes.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#include "cc/client/add_op.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {

namespace ops {

BatchNormBackwardElemt::BatchNormBackwardElemt(const Scope& scope, Input y_backprop, Input x,
    Input scale, Input offset, Input mean, Input variance, Input sum_dy, Input sum_dy_xmu,
    Input count, InputList y, const Attrs& attrs) {
  AddOp(scope, "BatchNormBackwardElemt", {y_backprop, x, scale, offset, mean, variance, sum_dy,
        sum_dy_xmu, count}, &y, attrs, &operation, {&x_backprop}, &side_input_backprop);
}

BatchNormBackwardReduce::BatchNormBackwardReduce(const Scope& scope, Input y_backprop, Input x,
    Input scale, Input offset, Input mean, Input variance, InputList y, const Attrs& attrs) {
  AddOp(scope, "BatchNormBackwardReduce", {y_backprop, x, scale, offset, mean, variance}, &y, attrs,
        &operation, {&sum_dy, &sum_dy_xmu, &scale_backprop, &offset_backprop});
}

BatchNormElemt::BatchNormElemt(const Scope& scope, Input x, Input scale, Input offset, Input mean,
    Input variance, InputList side_input, const Attrs& attrs) {
  AddOp(scope, "BatchNormElemt", {x, scale, offset, mean, variance}, &side_input, attrs, &operation,
        {&y});
}

BatchNormGatherStats::BatchNormGatherStats(const Scope& scope, Input counts, Input means,
    Input m2s) {
  AddOp(scope, "BatchNormGatherStats", {counts, means, m2s}, nullptr, NoAttrs{}, &operation,
        {&count, &mean, &m2});
}

BatchNormStats::BatchNormStats(const Scope& scope, Input x, const Attrs& attrs) {
  AddOp(scope, "BatchNormStats", {x}, nullptr, attrs, &operation, {&count, &mean, &m2});
}

BatchNormTrainingBackprop::BatchNormTrainingBackprop(const Scope& scope, Input input, Input gamma,
    Input beta, Input mean, Input variance, Input normalized_delta, double epsilon) {
  AddOp(scope, "BatchNormTrainingBackprop", {input, gamma, beta, mean, variance, normalized_delta},
        nullptr, EpsilonTensor{epsilon}, &operation, {&input_delta, &gamma_delta, &beta_delta});
}

FusedBatchNorm::FusedBatchNorm(const Scope& scope, Input x, Input scale, Input offset, Input mean,
    Input variance, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNorm", {x, scale, offset, mean, variance}, nullptr, attrs, &operation,
        {&y, &batch_mean, &batch_variance, &reserve_space_1, &reserve_space_2});
}

FusedBatchNormEx::FusedBatchNormEx(const Scope& scope, Input x, Input scale, Input offset,
    Input mean, Input variance, InputList side_input, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormEx", {x, scale, offset, mean, variance}, &side_input, attrs,
        &operation, {&y, &batch_mean, &batch_variance, &reserve_space_1, &reserve_space_2,
        &reserve_space_3});
}

FusedBatchNormGrad::FusedBatchNormGrad(const Scope& scope, Input y_backprop, Input x, Input scale,
    Input reserve_space_1, Input reserve_space_2, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGrad", {y_backprop, x, scale, reserve_space_1, reserve_space_2},
        nullptr, attrs, &operation, {&x_backprop, &scale_backprop, &offset_backprop,
        &reserve_space_3, &reserve_space_4});
}

FusedBatchNormGradEx::FusedBatchNormGradEx(const Scope& scope, Input y_backprop, Input x,
    Input scale, Input reserve_space_1, Input reserve_space_2, Input reserve_space_3, Input offset,
    Input y, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGradEx", {y_backprop, x, scale, reserve_space_1, reserve_space_2,
        reserve_space_3, offset, y}, nullptr, attrs, &operation, {&x_backprop, &scale_backprop,
        &offset_backprop, &reserve_space_4, &reserve_space_5}, &side_input_backprop);
}

FusedBatchNormGradGrad::FusedBatchNormGradGrad(const Scope& scope, Input x_backprop_grad,
    Input scale_backprop_grad, Input offset_backprop_grad, Input y_backprop, Input x, Input scale,
    Input reserve_space_1, Input reserve_space_2, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGradGrad", {x_backprop_grad, scale_backprop_grad,
        offset_backprop_grad, y_backprop, x, scale, reserve_space_1, reserve_space_2}, nullptr,
        attrs, &operation, {&y_backprop_grad, &x_grad, &scale_grad});
}

FusedBatchNormGradV2::FusedBatchNormGradV2(const Scope& scope, Input y_backprop, Input x,
    Input scale, Input reserve_space_1, Input reserve_space_2, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGradV2", {y_backprop, x, scale, reserve_space_1, reserve_space_2},
        nullptr, attrs, &operation, {&x_backprop, &scale_backprop, &offset_backprop,
        &reserve_space_3, &reserve_space_4});
}

FusedBatchNormGradV3::FusedBatchNormGradV3(const Scope& scope, Input y_backprop, Input x,
    Input scale, Input reserve_space_1, Input reserve_space_2, Input reserve_space_3,
    const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormGradV3", {y_backprop, x, scale, reserve_space_1, reserve_space_2,
        reserve_space_3}, nullptr, attrs, &operation, {&x_backprop, &scale_backprop,
        &offset_backprop, &reserve_space_4, &reserve_space_5});
}

FusedBatchNormV2::FusedBatchNormV2(const Scope& scope, Input x, Input scale, Input offset,
    Input mean, Input variance, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormV2", {x, scale, offset, mean, variance}, nullptr, attrs, &operation,
        {&y, &batch_mean, &batch_variance, &reserve_space_1, &reserve_space_2});
}

FusedBatchNormV3::FusedBatchNormV3(const Scope& scope, Input x, Input scale, Input offset,
    Input mean, Input variance, const Attrs& attrs) {
  AddOp(scope, "FusedBatchNormV3", {x, scale, offset, mean, variance}, nullptr, attrs, &operation,
        {&y, &batch_mean, &batch_variance, &reserve_space_1, &reserve_space_2, &reserve_space_3});
}

}  // namespace ops

}  // namespace tf_bn_ops
