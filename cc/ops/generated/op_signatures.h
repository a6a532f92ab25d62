// clang-format off
// Signatures of the ops that have an x.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#ifndef TF_BN_OPS_CC_OPS_GENERATED_OP_SIGNATURES_H_
#define TF_BN_OPS_CC_OPS_GENERATED_OP_SIGNATURES_H_

#include "cc/ops/op_signature.h"

namespace tf_bn_ops {

inline constexpr OpSignature kBatchNormBackwardElemt = {
    FormulaKind::kGradient, true, false, OpSignature::kAxis, OpSignature::kByKind, 0, 1, 10, 2,
    {{"y_backprop", ArgKind::kView, Role::kYBackprop}, {"x", ArgKind::kView, Role::kX},
     {"scale", ArgKind::kVector, Role::kScale}, {"offset", ArgKind::kVector, Role::kOffset},
     {"mean", ArgKind::kVector, Role::kMean}, {"variance", ArgKind::kVector, Role::kVariance},
     {"sum_dy", ArgKind::kVector, Role::kSumDy}, {"sum_dy_xmu", ArgKind::kVector, Role::kSumDyXmu},
     {"count", ArgKind::kScalar, Role::kCount}, {"y", ArgKind::kViewList, Role::kY}},
    {{"x_backprop", ArgKind::kView, Role::kXBackprop},
     {"side_input_backprop", ArgKind::kViewList, Role::kSideInputBackprop}}};

inline constexpr OpSignature kBatchNormBackwardReduce = {
    FormulaKind::kGradient, true, true, OpSignature::kAxis, OpSignature::kByKind, 0, 1, 7, 4,
    {{"y_backprop", ArgKind::kView, Role::kYBackprop}, {"x", ArgKind::kView, Role::kX},
     {"scale", ArgKind::kVector, Role::kScale}, {"offset", ArgKind::kVector, Role::kOffset},
     {"mean", ArgKind::kVector, Role::kMean}, {"variance", ArgKind::kVector, Role::kVariance},
     {"y", ArgKind::kViewList, Role::kY}},
    {{"sum_dy", ArgKind::kVector, Role::kLocalSumDy},
     {"sum_dy_xmu", ArgKind::kVector, Role::kLocalSumDyXmu},
     {"scale_backprop", ArgKind::kVector, Role::kScaleBackprop},
     {"offset_backprop", ArgKind::kVector, Role::kOffsetBackprop}}};

inline constexpr OpSignature kBatchNormElemt = {
    FormulaKind::kForward, true, false, OpSignature::kAxis, OpSignature::kByKind, 0, 0, 6, 1,
    {{"x", ArgKind::kView, Role::kX}, {"scale", ArgKind::kVector, Role::kScale},
     {"offset", ArgKind::kVector, Role::kOffset}, {"mean", ArgKind::kVector, Role::kMean},
     {"variance", ArgKind::kVector, Role::kVariance},
     {"side_input", ArgKind::kViewList, Role::kSideInput}},
    {{"y", ArgKind::kView, Role::kY}}};

inline constexpr OpSignature kBatchNormStats = {
    FormulaKind::kForward, true, true, OpSignature::kAxis, OpSignature::kByKind, 0, 0, 1, 3,
    {{"x", ArgKind::kView, Role::kX}},
    {{"count", ArgKind::kScalar, Role::kLocalCount}, {"mean", ArgKind::kVector, Role::kLocalMean},
     {"m2", ArgKind::kVector, Role::kLocalM2}}};

inline constexpr OpSignature kBatchNormTrainingBackprop = {
    FormulaKind::kGradient, false, true, OpSignature::kChannelsFirst, OpSignature::kByKind, 1, 0, 6, 3,
    {{"input", ArgKind::kView, Role::kX}, {"gamma", ArgKind::kVector, Role::kScale},
     {"beta", ArgKind::kVector, Role::kOffset}, {"mean", ArgKind::kVector, Role::kMean},
     {"variance", ArgKind::kVector, Role::kVariance},
     {"normalized_delta", ArgKind::kView, Role::kYBackprop}},
    {{"input_delta", ArgKind::kView, Role::kXBackprop},
     {"gamma_delta", ArgKind::kVector, Role::kScaleBackprop},
     {"beta_delta", ArgKind::kVector, Role::kOffsetBackprop}}};

inline constexpr OpSignature kFusedBatchNorm = {
    FormulaKind::kForward, false, true, OpSignature::kDataFormat, OpSignature::kForward, 0, 0, 5, 5,
    {{"x", ArgKind::kView, Role::kX}, {"scale", ArgKind::kVector, Role::kScale},
     {"offset", ArgKind::kVector, Role::kOffset}, {"mean", ArgKind::kVector, Role::kMean},
     {"variance", ArgKind::kVector, Role::kVariance}},
    {{"y", ArgKind::kView, Role::kY}, {"batch_mean", ArgKind::kVector, Role::kBatchMean},
     {"batch_variance", ArgKind::kVector, Role::kBatchVariance},
     {"reserve_space_1", ArgKind::kVector, Role::kSavedMean},
     {"reserve_space_2", ArgKind::kVector, Role::kSavedVariance}}};

inline constexpr OpSignature kFusedBatchNormEx = {
    FormulaKind::kForward, false, true, OpSignature::kDataFormat, OpSignature::kForward, 0, 0, 6, 6,
    {{"x", ArgKind::kView, Role::kX}, {"scale", ArgKind::kVector, Role::kScale},
     {"offset", ArgKind::kVector, Role::kOffset}, {"mean", ArgKind::kVector, Role::kMean},
     {"variance", ArgKind::kVector, Role::kVariance},
     {"side_input", ArgKind::kViewList, Role::kSideInput}},
    {{"y", ArgKind::kView, Role::kY}, {"batch_mean", ArgKind::kVector, Role::kBatchMean},
     {"batch_variance", ArgKind::kVector, Role::kBatchVariance},
     {"reserve_space_1", ArgKind::kVector, Role::kSavedMean},
     {"reserve_space_2", ArgKind::kVector, Role::kSavedVariance},
     {"reserve_space_3", ArgKind::kOpaque, Role::kForwardCoefficients}}};

inline constexpr OpSignature kFusedBatchNormGrad = {
    FormulaKind::kGradient, false, true, OpSignature::kDataFormat, OpSignature::kGradient, 0, 1, 5, 5,
    {{"y_backprop", ArgKind::kView, Role::kYBackprop}, {"x", ArgKind::kView, Role::kX},
     {"scale", ArgKind::kVector, Role::kScale}, {"reserve_space_1", ArgKind::kVector, Role::kMean},
     {"reserve_space_2", ArgKind::kVector, Role::kVariance}},
    {{"x_backprop", ArgKind::kView, Role::kXBackprop},
     {"scale_backprop", ArgKind::kVector, Role::kScaleBackprop},
     {"offset_backprop", ArgKind::kVector, Role::kOffsetBackprop},
     {"reserve_space_3", ArgKind::kPlaceholder, Role::kNone},
     {"reserve_space_4", ArgKind::kPlaceholder, Role::kNone}}};

inline constexpr OpSignature kFusedBatchNormGradEx = {
    FormulaKind::kGradient, false, true, OpSignature::kDataFormat, OpSignature::kGradient, 0, 1, 8, 6,
    {{"y_backprop", ArgKind::kView, Role::kYBackprop}, {"x", ArgKind::kView, Role::kX},
     {"scale", ArgKind::kVector, Role::kScale}, {"reserve_space_1", ArgKind::kVector, Role::kMean},
     {"reserve_space_2", ArgKind::kVector, Role::kVariance},
     {"reserve_space_3", ArgKind::kOpaque, Role::kForwardCoefficients},
     {"offset", ArgKind::kVector, Role::kOffset}, {"y", ArgKind::kView, Role::kY}},
    {{"x_backprop", ArgKind::kView, Role::kXBackprop},
     {"scale_backprop", ArgKind::kVector, Role::kScaleBackprop},
     {"offset_backprop", ArgKind::kVector, Role::kOffsetBackprop},
     {"reserve_space_4", ArgKind::kPlaceholder, Role::kNone},
     {"reserve_space_5", ArgKind::kPlaceholder, Role::kNone},
     {"side_input_backprop", ArgKind::kViewList, Role::kSideInputBackprop}}};

inline constexpr OpSignature kFusedBatchNormGradGrad = {
    FormulaKind::kSecondOrder, false, true, OpSignature::kDataFormat, OpSignature::kByKind, 0, 4, 8, 3,
    {{"x_backprop_grad", ArgKind::kView, Role::kXBackpropGrad},
     {"scale_backprop_grad", ArgKind::kVector, Role::kScaleBackpropGrad},
     {"offset_backprop_grad", ArgKind::kVector, Role::kOffsetBackpropGrad},
     {"y_backprop", ArgKind::kView, Role::kYBackprop}, {"x", ArgKind::kView, Role::kX},
     {"scale", ArgKind::kVector, Role::kScale}, {"reserve_space_1", ArgKind::kVector, Role::kMean},
     {"reserve_space_2", ArgKind::kVector, Role::kVariance}},
    {{"y_backprop_grad", ArgKind::kView, Role::kYBackpropGrad},
     {"x_grad", ArgKind::kView, Role::kXGrad}, {"scale_grad", ArgKind::kVector, Role::kScaleGrad}}};

inline constexpr OpSignature kFusedBatchNormGradV2 = kFusedBatchNormGrad;

inline constexpr OpSignature kFusedBatchNormGradV3 = {
    FormulaKind::kGradient, false, true, OpSignature::kDataFormat, OpSignature::kGradient, 0, 1, 6, 5,
    {{"y_backprop", ArgKind::kView, Role::kYBackprop}, {"x", ArgKind::kView, Role::kX},
     {"scale", ArgKind::kVector, Role::kScale}, {"reserve_space_1", ArgKind::kVector, Role::kMean},
     {"reserve_space_2", ArgKind::kVector, Role::kVariance},
     {"reserve_space_3", ArgKind::kOpaque, Role::kForwardCoefficients}},
    {{"x_backprop", ArgKind::kView, Role::kXBackprop},
     {"scale_backprop", ArgKind::kVector, Role::kScaleBackprop},
     {"offset_backprop", ArgKind::kVector, Role::kOffsetBackprop},
     {"reserve_space_4", ArgKind::kPlaceholder, Role::kNone},
     {"reserve_space_5", ArgKind::kPlaceholder, Role::kNone}}};

inline constexpr OpSignature kFusedBatchNormV2 = kFusedBatchNorm;

inline constexpr OpSignature kFusedBatchNormV3 = {
    FormulaKind::kForward, false, true, OpSignature::kDataFormat, OpSignature::kForward, 0, 0, 5, 6,
    {{"x", ArgKind::kView, Role::kX}, {"scale", ArgKind::kVector, Role::kScale},
     {"offset", ArgKind::kVector, Role::kOffset}, {"mean", ArgKind::kVector, Role::kMean},
     {"variance", ArgKind::kVector, Role::kVariance}},
    {{"y", ArgKind::kView, Role::kY}, {"batch_mean", ArgKind::kVector, Role::kBatchMean},
     {"batch_variance", ArgKind::kVector, Role::kBatchVariance},
     {"reserve_space_1", ArgKind::kVector, Role::kSavedMean},
     {"reserve_space_2", ArgKind::kVector, Role::kSavedVariance},
     {"reserve_space_3", ArgKind::kOpaque, Role::kForwardCoefficients}}};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_GENERATED_OP_SIGNATURES_H_
