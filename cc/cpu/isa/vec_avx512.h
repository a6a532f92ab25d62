// Vectors of 64 bytes: AVX-512 F, BW, VL and DQ.

#pragma once

#define TFBN_VECTOR_BYTES 64
#define TFBN_REGISTERS 32
#include "cc/cpu/isa/vec_portable.h"

namespace tf_bn_ops {
namespace {
namespace avx512 {

using namespace portable;

TFBN_INLINE VF WidenFloat16(V16 v) { return _mm512_cvtph_ps((__m256i)v); }
TFBN_INLINE V16 NarrowFloat16(VF v) {
  return (V16)_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

TFBN_INLINE VF WidenBfloat16(V16 v) {
  return (VF)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)v), 16);
}
TFBN_INLINE V16 NarrowBfloat16(VF v) {
  return (V16)_mm512_cvtepi32_epi16(
      (__m512i)(portable::RoundToBfloat16(v) >> 16));
}

TFBN_INLINE WideF Widen(VF v) {
  return WideF{{_mm512_cvtps_pd(_mm512_castps512_ps256(v)),
                _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))}};
}
TFBN_INLINE WideF LoadWide(const float* p) {
  return WideF{{_mm512_cvtps_pd(_mm256_loadu_ps(p)),
                _mm512_cvtps_pd(_mm256_loadu_ps(p + kDoubleLanes))}};
}
TFBN_INLINE WideF LoadWide(const Float16* p) {
  return WideF{
      {_mm512_cvtps_pd(_mm256_cvtph_ps(LoadBits<__m128i>(p))),
       _mm512_cvtps_pd(_mm256_cvtph_ps(LoadBits<__m128i>(p + kDoubleLanes)))}};
}

TFBN_INLINE __mmask16 FirstLanes(int n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
template <typename V>
TFBN_INLINE V LoadPartialBits(const void* p, int n) {
  if constexpr (sizeof(V{}[0]) == 8) {
    return (V)_mm512_maskz_loadu_pd(static_cast<__mmask8>(FirstLanes(n)), p);
  } else if constexpr (sizeof(V{}[0]) == 4) {
    return (V)_mm512_maskz_loadu_ps(FirstLanes(n), p);
  } else if constexpr (sizeof(V{}[0]) == 2) {
    return (V)_mm256_maskz_loadu_epi16(FirstLanes(n), p);
  } else {
    return portable::LoadPartialBits<V>(p, n);
  }
}
using portable::StorePartialBits;
TFBN_INLINE void StorePartialBits(void* p, VF v, int n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), v);
}
TFBN_INLINE void StorePartialBits(void* p, VD v, int n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(FirstLanes(n)), v);
}
TFBN_INLINE void StorePartialBits(void* p, V16 v, int n) {
  _mm256_mask_storeu_epi16(p, FirstLanes(n), (__m256i)v);
}

}  // namespace avx512
}  // namespace
}  // namespace tf_bn_ops
