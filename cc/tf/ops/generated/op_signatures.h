// clang-format off
// Signatures of the ops that have an x.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#pragma once

#include "cc/tf/ops/op_signature.h"

namespace tf_bn_ops {

inline constexpr OpSignature kBatchNormBackwardElemt = {
    FormulaKind::kGradient, true, false, OpSignature::kAxis, OpSignature::kByKind, 0, 1, 10, 2,
    {{"y_backprop", Role::kYBackprop}, {"x", Role::kX}, {"scale", Role::kScale},
        {"offset", Role::kOffset}, {"mean", Role::kMean}, {"variance", Role::kVariance},
        {"sum_dy", Role::kSumDy}, {"sum_dy_xmu", Role::kSumDyXmu}, {"count", Role::kCount},
        {"y", Role::kY}},
    {{"x_backprop", Role::kXBackprop}, {"side_input_backprop", Role::kSideInputBackprop}}};

inline constexpr OpSignature kBatchNormBackwardReduce = {
    FormulaKind::kGradient, true, true, OpSignature::kAxis, OpSignature::kByKind, 0, 1, 7, 4,
    {{"y_backprop", Role::kYBackprop}, {"x", Role::kX}, {"scale", Role::kScale},
        {"offset", Role::kOffset}, {"mean", Role::kMean}, {"variance", Role::kVariance},
        {"y", Role::kY}},
    {{"sum_dy", Role::kLocalSumDy}, {"sum_dy_xmu", Role::kLocalSumDyXmu},
        {"scale_backprop", Role::kScaleBackprop}, {"offset_backprop", Role::kOffsetBackprop}}};

inline constexpr OpSignature kBatchNormElemt = {
    FormulaKind::kForward, true, false, OpSignature::kAxis, OpSignature::kByKind, 0, 0, 6, 1,
    {{"x", Role::kX}, {"scale", Role::kScale}, {"offset", Role::kOffset}, {"mean", Role::kMean},
        {"variance", Role::kVariance}, {"side_input", Role::kSideInput}},
    {{"y", Role::kY}}};

inline constexpr OpSignature kBatchNormStats = {
    FormulaKind::kForward, true, true, OpSignature::kAxis, OpSignature::kByKind, 0, 0, 1, 3,
    {{"x", Role::kX}},
    {{"count", Role::kLocalCount}, {"mean", Role::kLocalMean}, {"m2", Role::kLocalM2}}};

inline constexpr OpSignature kBatchNormTrainingBackprop = {
    FormulaKind::kGradient, false, true, OpSignature::kChannelsFirst, OpSignature::kByKind, 1, 0, 6,
        3,
    {{"input", Role::kX}, {"gamma", Role::kScale}, {"beta", Role::kOffset}, {"mean", Role::kMean},
        {"variance", Role::kVariance}, {"normalized_delta", Role::kYBackprop}},
    {{"input_delta", Role::kXBackprop}, {"gamma_delta", Role::kScaleBackprop},
        {"beta_delta", Role::kOffsetBackprop}}};

inline constexpr OpSignature kFusedBatchNorm = {
    FormulaKind::kForward, false, true, OpSignature::kDataFormat, OpSignature::kForward, 0, 0, 5, 5,
    {{"x", Role::kX}, {"scale", Role::kScale}, {"offset", Role::kOffset}, {"mean", Role::kMean},
        {"variance", Role::kVariance}},
    {{"y", Role::kY}, {"batch_mean", Role::kBatchMean}, {"batch_variance", Role::kBatchVariance},
        {"reserve_space_1", Role::kSavedMean}, {"reserve_space_2", Role::kSavedVariance}}};

inline constexpr OpSignature kFusedBatchNormEx = {
    FormulaKind::kForward, false, true, OpSignature::kDataFormat, OpSignature::kForward, 0, 0, 6, 6,
    {{"x", Role::kX}, {"scale", Role::kScale}, {"offset", Role::kOffset}, {"mean", Role::kMean},
        {"variance", Role::kVariance}, {"side_input", Role::kSideInput}},
    {{"y", Role::kY}, {"batch_mean", Role::kBatchMean}, {"batch_variance", Role::kBatchVariance},
        {"reserve_space_1", Role::kSavedMean}, {"reserve_space_2", Role::kSavedVariance},
        {"reserve_space_3", Role::kForwardCoefficients}}};

inline constexpr OpSignature kFusedBatchNormGrad = {
    FormulaKind::kGradient, false, true, OpSignature::kDataFormat, OpSignature::kGradient, 0, 1, 5,
        5,
    {{"y_backprop", Role::kYBackprop}, {"x", Role::kX}, {"scale", Role::kScale},
        {"reserve_space_1", Role::kMean}, {"reserve_space_2", Role::kVariance}},
    {{"x_backprop", Role::kXBackprop}, {"scale_backprop", Role::kScaleBackprop},
        {"offset_backprop", Role::kOffsetBackprop}, {"reserve_space_3", Role::kNone},
        {"reserve_space_4", Role::kNone}}};

inline constexpr OpSignature kFusedBatchNormGradEx = {
    FormulaKind::kGradient, false, true, OpSignature::kDataFormat, OpSignature::kGradient, 0, 1, 8,
        6,
    {{"y_backprop", Role::kYBackprop}, {"x", Role::kX}, {"scale", Role::kScale},
        {"reserve_space_1", Role::kMean}, {"reserve_space_2", Role::kVariance},
        {"reserve_space_3", Role::kForwardCoefficients}, {"offset", Role::kOffset},
        {"y", Role::kY}},
    {{"x_backprop", Role::kXBackprop}, {"scale_backprop", Role::kScaleBackprop},
        {"offset_backprop", Role::kOffsetBackprop}, {"reserve_space_4", Role::kNone},
        {"reserve_space_5", Role::kNone}, {"side_input_backprop", Role::kSideInputBackprop}}};

inline constexpr OpSignature kFusedBatchNormGradGrad = {
    FormulaKind::kSecondOrder, false, true, OpSignature::kDataFormat, OpSignature::kByKind, 0, 4, 8,
        3,
    {{"x_backprop_grad", Role::kXBackpropGrad}, {"scale_backprop_grad", Role::kScaleBackpropGrad},
        {"offset_backprop_grad", Role::kOffsetBackpropGrad}, {"y_backprop", Role::kYBackprop},
        {"x", Role::kX}, {"scale", Role::kScale}, {"reserve_space_1", Role::kMean},
        {"reserve_space_2", Role::kVariance}},
    {{"y_backprop_grad", Role::kYBackpropGrad}, {"x_grad", Role::kXGrad},
        {"scale_grad", Role::kScaleGrad}}};

inline constexpr OpSignature kFusedBatchNormGradV2 = kFusedBatchNormGrad;

inline constexpr OpSignature kFusedBatchNormGradV3 = {
    FormulaKind::kGradient, false, true, OpSignature::kDataFormat, OpSignature::kGradient, 0, 1, 6,
        5,
    {{"y_backprop", Role::kYBackprop}, {"x", Role::kX}, {"scale", Role::kScale},
        {"reserve_space_1", Role::kMean}, {"reserve_space_2", Role::kVariance},
        {"reserve_space_3", Role::kForwardCoefficients}},
    {{"x_backprop", Role::kXBackprop}, {"scale_backprop", Role::kScaleBackprop},
        {"offset_backprop", Role::kOffsetBackprop}, {"reserve_space_4", Role::kNone},
        {"reserve_space_5", Role::kNone}}};

inline constexpr OpSignature kFusedBatchNormV2 = kFusedBatchNorm;

inline constexpr OpSignature kFusedBatchNormV3 = {
    FormulaKind::kForward, false, true, OpSignature::kDataFormat, OpSignature::kForward, 0, 0, 5, 6,
    {{"x", Role::kX}, {"scale", Role::kScale}, {"offset", Role::kOffset}, {"mean", Role::kMean},
        {"variance", Role::kVariance}},
    {{"y", Role::kY}, {"batch_mean", Role::kBatchMean}, {"batch_variance", Role::kBatchVariance},
        {"reserve_space_1", Role::kSavedMean}, {"reserve_space_2", Role::kSavedVariance},
        {"reserve_space_3", Role::kForwardCoefficients}}};


}  // namespace tf_bn_ops
