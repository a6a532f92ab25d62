// clang-format off
// The calls that ops make: a part of cc/core/op_calls.h.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#pragma once

namespace tf_bn_ops {

inline constexpr OpCalls kOpCalls[] = {
    {FormulaKind::kGradient, CallPart::kWhole, true, true, 1, BitsOf(DType::kFloat32)},
    {FormulaKind::kGradient, CallPart::kWhole, true, true, 1, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32)},
    {FormulaKind::kGradient, CallPart::kWhole, true, false, 1, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32, DType::kFloat64)},
    {FormulaKind::kSecondOrder, CallPart::kWhole, true, true, 1, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32, DType::kFloat64)},
    {FormulaKind::kForward, CallPart::kWhole, true, true, 1, BitsOf(DType::kFloat32)},
    {FormulaKind::kForward, CallPart::kWhole, true, true, 1, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32)},
    {FormulaKind::kForward, CallPart::kWhole, true, true, kNumActivations, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32)},
    {FormulaKind::kGradient, CallPart::kWhole, true, true, kNumActivations, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32)},
    {FormulaKind::kForward, CallPart::kSums, true, false, kNumActivations, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32, DType::kFloat64)},
    {FormulaKind::kForward, CallPart::kWhole, false, true, kNumClamps, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32, DType::kFloat64)},
    {FormulaKind::kGradient, CallPart::kSums, true, false, kNumClamps, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32, DType::kFloat64)},
    {FormulaKind::kGradient, CallPart::kElements, true, false, kNumClamps, BitsOf(DType::kFloat16,
        DType::kBfloat16, DType::kFloat32, DType::kFloat64)},
};

}  // namespace tf_bn_ops
