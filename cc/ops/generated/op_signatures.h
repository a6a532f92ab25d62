// clang-format off
// Signatures of the ops whose checks of shapes follow from them.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#ifndef TF_BN_OPS_CC_OPS_GENERATED_OP_SIGNATURES_H_
#define TF_BN_OPS_CC_OPS_GENERATED_OP_SIGNATURES_H_

#include "cc/ops/op_signature.h"

namespace tf_bn_ops {

inline constexpr OpSignature kBatchNormBackwardElemt = {
    OpSignature::kAxis, 0, 1, 10, 2,
    {{"y_backprop", ArgKind::kView}, {"x", ArgKind::kView}, {"scale", ArgKind::kVector},
     {"offset", ArgKind::kVector}, {"mean", ArgKind::kVector}, {"variance", ArgKind::kVector},
     {"sum_dy", ArgKind::kVector}, {"sum_dy_xmu", ArgKind::kVector}, {"count", ArgKind::kScalar},
     {"y", ArgKind::kViewList}},
    {ArgKind::kView, ArgKind::kViewList}};

inline constexpr OpSignature kBatchNormBackwardReduce = {
    OpSignature::kAxis, 0, 1, 7, 4,
    {{"y_backprop", ArgKind::kView}, {"x", ArgKind::kView}, {"scale", ArgKind::kVector},
     {"offset", ArgKind::kVector}, {"mean", ArgKind::kVector}, {"variance", ArgKind::kVector},
     {"y", ArgKind::kViewList}},
    {ArgKind::kVector, ArgKind::kVector, ArgKind::kVector, ArgKind::kVector}};

inline constexpr OpSignature kBatchNormElemt = {
    OpSignature::kAxis, 0, 0, 6, 1,
    {{"x", ArgKind::kView}, {"scale", ArgKind::kVector}, {"offset", ArgKind::kVector},
     {"mean", ArgKind::kVector}, {"variance", ArgKind::kVector},
     {"side_input", ArgKind::kViewList}},
    {ArgKind::kView}};

inline constexpr OpSignature kBatchNormStats = {
    OpSignature::kAxis, 0, 0, 1, 3,
    {{"x", ArgKind::kView}},
    {ArgKind::kScalar, ArgKind::kVector, ArgKind::kVector}};

inline constexpr OpSignature kBatchNormTrainingBackprop = {
    OpSignature::kChannelsFirst, 1, 0, 6, 3,
    {{"input", ArgKind::kView}, {"gamma", ArgKind::kVector}, {"beta", ArgKind::kVector},
     {"mean", ArgKind::kVector}, {"variance", ArgKind::kVector},
     {"normalized_delta", ArgKind::kView}},
    {ArgKind::kView, ArgKind::kVector, ArgKind::kVector}};

inline constexpr OpSignature kFusedBatchNormGradGrad = {
    OpSignature::kDataFormat, 0, 4, 8, 3,
    {{"x_backprop_grad", ArgKind::kView}, {"scale_backprop_grad", ArgKind::kVector},
     {"offset_backprop_grad", ArgKind::kVector}, {"y_backprop", ArgKind::kView},
     {"x", ArgKind::kView}, {"scale", ArgKind::kVector}, {"reserve_space_1", ArgKind::kVector},
     {"reserve_space_2", ArgKind::kVector}},
    {ArgKind::kView, ArgKind::kView, ArgKind::kVector}};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_GENERATED_OP_SIGNATURES_H_
