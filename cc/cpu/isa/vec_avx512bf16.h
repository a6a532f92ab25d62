// vec_avx512.h with the conversion to bfloat16 of AVX-512 BF16.

#pragma once

#include "cc/cpu/isa/vec_avx512.h"

namespace tf_bn_ops {
namespace {
namespace avx512bf16 {

using namespace avx512;

constexpr bool kBfloat16Alone = true;

// The instruction flushes subnormals; there are none in the results of
// arithmetic that flushes them itself (cc/core/fp_env.h).
TFBN_INLINE V16 NarrowBfloat16(VF v) { return (V16)_mm512_cvtneps_pbh(v); }

// Subnormal numbers have nothing in their lower half; nor have zeros, the other
// numbers whose exponent is zero. (For all results it would cost bfloat16 10 to
// 15%.)
TFBN_INLINE V16 KeepSubnormals(V16 narrowed, VF v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __mmask16 kept =
      _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  return (V16)_mm512_mask_cvtepi32_epi16((__m256i)narrowed, kept,
                                         _mm512_srli_epi32(bits, 16));
}

}  // namespace avx512bf16
}  // namespace
}  // namespace tf_bn_ops
