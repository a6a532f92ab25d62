// Vectors of 32 bytes: AVX2 with F16C, which every processor with AVX2 has.

#pragma once

#define TFBN_VECTOR_BYTES 32
#define TFBN_REGISTERS 16
#include "cc/cpu/isa/vec_portable.h"

namespace tf_bn_ops {
namespace {
namespace avx2 {

using namespace portable;

TFBN_INLINE VF WidenFloat16(V16 v) { return _mm256_cvtph_ps((__m128i)v); }
TFBN_INLINE V16 NarrowFloat16(VF v) {
  return (V16)_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

TFBN_INLINE VF WidenBfloat16(V16 v) {
  return (VF)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)v), 16);
}
TFBN_INLINE V16 NarrowBfloat16(VF v) {
  const __m256i bits = (__m256i)(portable::RoundToBfloat16(v) >> 16);
  return (V16)_mm_packus_epi32(_mm256_castsi256_si128(bits),
                               _mm256_extracti128_si256(bits, 1));
}

// The even elements of 16, then the odd ones. Shifts and shuffles have two of
// the ports (AMD Zen 3): widening 16 elements in column order takes four of
// them, narrowing them six; here each takes one.
// docs/adr/0014-rows-in-order-with-software-prefetch.md has what calls gain.
struct Bfloat16Pairs {
  static constexpr bool kDefined = true;
  using Stored = VU;

  static TFBN_INLINE void Widen(Stored stored, VF (&v)[2]) {
    v[0] = (VF)(stored << 16);
    v[1] = (VF)(stored & kOdd);
  }
  static TFBN_INLINE Stored Narrow(const VF (&v)[2]) {
    return (Stored)_mm256_blend_epi16(
        (__m256i)(portable::RoundToBfloat16(v[0]) >> 16),
        (__m256i)portable::RoundToBfloat16(v[1]), 0xaa);
  }
  static TFBN_INLINE void Deinterleave(VF (&v)[2]) {
    const __m256 even = _mm256_shuffle_ps(v[0], v[1], 0x88);
    const __m256 odd = _mm256_shuffle_ps(v[0], v[1], 0xdd);
    v[0] = (VF)_mm256_permute4x64_pd((__m256d)even, 0xd8);
    v[1] = (VF)_mm256_permute4x64_pd((__m256d)odd, 0xd8);
  }
  static TFBN_INLINE void Interleave(VF (&v)[2]) {
    const __m256 low = _mm256_unpacklo_ps(v[0], v[1]);
    const __m256 high = _mm256_unpackhi_ps(v[0], v[1]);
    v[0] = _mm256_permute2f128_ps(low, high, 0x20);
    v[1] = _mm256_permute2f128_ps(low, high, 0x31);
  }

 private:
  static constexpr uint32_t kOdd = 0xffff0000u;
};

TFBN_INLINE WideF Widen(VF v) {
  return WideF{{_mm256_cvtps_pd(_mm256_castps256_ps128(v)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))}};
}
TFBN_INLINE WideF LoadWide(const float* p) {
  return WideF{{_mm256_cvtps_pd(_mm_loadu_ps(p)),
                _mm256_cvtps_pd(_mm_loadu_ps(p + kDoubleLanes))}};
}

}  // namespace avx2
}  // namespace
}  // namespace tf_bn_ops
