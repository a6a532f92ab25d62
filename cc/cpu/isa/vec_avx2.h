// Vectors of 32 bytes: AVX2 with F16C, which every processor with AVX2 has.

#ifndef TF_BN_OPS_CC_CPU_ISA_VEC_AVX2_H_
#define TF_BN_OPS_CC_CPU_ISA_VEC_AVX2_H_

namespace tf_bn_ops {
namespace {
constexpr int kVectorBytes = 32;
constexpr int kRegisters = 16;
}  // namespace
}  // namespace tf_bn_ops

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
  const __m256i bits = (__m256i)portable::RoundToBfloat16(v);
  return (V16)_mm_packus_epi32(_mm256_castsi256_si128(bits),
                               _mm256_extracti128_si256(bits, 1));
}

TFBN_INLINE WideF Widen(VF v) {
  return WideF{{_mm256_cvtps_pd(_mm256_castps256_ps128(v)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))}};
}
TFBN_INLINE WideF LoadWide(const float* p) {
  return WideF{{_mm256_cvtps_pd(_mm_loadu_ps(p)),
                _mm256_cvtps_pd(_mm_loadu_ps(p + kDoubleLanes))}};
}

using portable::StoreNonTemporalBits;
TFBN_INLINE void StoreNonTemporalBits(void* p, VF v) {
  _mm256_stream_ps(static_cast<float*>(p), v);
}
TFBN_INLINE void StoreNonTemporalBits(void* p, VD v) {
  _mm256_stream_pd(static_cast<double*>(p), v);
}
TFBN_INLINE void StoreNonTemporalBits(void* p, V16 v) {
  _mm_stream_si128(static_cast<__m128i*>(p), (__m128i)v);
}
TFBN_INLINE void NonTemporalFence() { _mm_sfence(); }

}  // namespace avx2
}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_VEC_AVX2_H_
