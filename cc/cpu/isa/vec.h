// The vectors of one instruction set: loads, stores, conversions. All
// arithmetic in this folder is written with the operators that GCC and Clang
// give to vector types.
//
// Included only by translation units of this folder, each of which is compiled
// once per line of isa_builds.txt. Everything is static: nothing of it may be
// shared between builds.

#ifndef TF_BN_OPS_CC_CPU_ISA_VEC_H_
#define TF_BN_OPS_CC_CPU_ISA_VEC_H_

#include <cstdint>
#include <cstring>

#include "cc/core/dtype.h"

#if defined(__x86_64__)
// GCC 12 reports the deliberately undefined pass-through operands inside its
// own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#define TFBN_INLINE static inline __attribute__((always_inline))

namespace tf_bn_ops {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kFloatLanes = kVectorBytes / 4;
constexpr int kDoubleLanes = kVectorBytes / 8;
constexpr int kCacheLineBytes = 64;

typedef float VF __attribute__((vector_size(kVectorBytes)));
typedef double VD __attribute__((vector_size(kVectorBytes)));
typedef uint32_t VU __attribute__((vector_size(kVectorBytes)));

// -----------------------------------------------------------------------------
// Plain loads and stores, any alignment

template <typename V, typename T>
TFBN_INLINE V LoadBits(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}
template <typename T, typename V>
TFBN_INLINE void StoreBits(T* p, V v) {
  std::memcpy(p, &v, sizeof(V));
}

TFBN_INLINE VF Load(const float* p) { return LoadBits<VF>(p); }
TFBN_INLINE VD Load(const double* p) { return LoadBits<VD>(p); }
TFBN_INLINE void Store(float* p, VF v) { StoreBits(p, v); }
TFBN_INLINE void Store(double* p, VD v) { StoreBits(p, v); }

// -----------------------------------------------------------------------------
// 16-bit types: a vector of them is half as long as VF

#if defined(__AVX512F__)
using Half = __m256i;
TFBN_INLINE VU WidenBits(Half v) { return (VU)_mm512_cvtepu16_epi32(v); }
TFBN_INLINE Half NarrowBits(VU v) { return _mm512_cvtepi32_epi16((__m512i)v); }
#elif defined(__AVX2__)
using Half = __m128i;
TFBN_INLINE VU WidenBits(Half v) { return (VU)_mm256_cvtepu16_epi32(v); }
TFBN_INLINE Half NarrowBits(VU v) {
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
#else
typedef uint16_t Half __attribute__((vector_size(kVectorBytes / 2)));
TFBN_INLINE VU WidenBits(Half v) { return __builtin_convertvector(v, VU); }
TFBN_INLINE Half NarrowBits(VU v) { return __builtin_convertvector(v, Half); }
#endif

// Lane by lane `mask ? a : b`; lanes of mask are all ones or all zeros.
TFBN_INLINE VU Select(VU mask, VU a, VU b) { return (mask & a) | (~mask & b); }

TFBN_INLINE VF WidenBfloat16(Half v) { return (VF)(WidenBits(v) << 16); }

// Round to nearest even; NaN stays NaN.
#if defined(__AVX512BF16__)
// The instruction flushes subnormals, of which there are none in the results of
// arithmetic that flushes them itself (cc/core/fp_env.h).
TFBN_INLINE Half NarrowBfloat16(VF v) { return (Half)_mm512_cvtneps_pbh(v); }
#elif defined(__AVX512F__)
TFBN_INLINE Half NarrowBfloat16(VF v) {
  // As below, with the NaN lanes in a mask register.
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i truncated = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(truncated, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd),
      16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_or_epi32(rounded, nan, truncated, _mm512_set1_epi32(0x0040)));
}
#else
TFBN_INLINE Half NarrowBfloat16(VF v) {
  const VU bits = (VU)v;
  const VU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VU quiet_nan = (bits >> 16) | 0x0040u;
  return NarrowBits(
      Select((VU)((bits & 0x7fffffffu) > 0x7f800000u), quiet_nan, rounded));
}
#endif

#if defined(__AVX512F__)
TFBN_INLINE VF WidenFloat16(Half v) { return _mm512_cvtph_ps(v); }
TFBN_INLINE Half NarrowFloat16(VF v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__F16C__)
TFBN_INLINE VF WidenFloat16(Half v) { return _mm256_cvtph_ps(v); }
TFBN_INLINE Half NarrowFloat16(VF v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
#else
// The scalar conversions of cc/core/dtype.h, lane by lane with selects. All
// float operands are normal, so flushing of subnormals cannot change a result.
TFBN_INLINE VF WidenFloat16(Half v) {
  const VU h = WidenBits(v);
  const VU magnitude = h & 0x7fffu;
  const VU sign = (h & 0x8000u) << 16;
  const VU normal = (magnitude << 13) + ((127u - 15u) << 23);
  const VU non_finite = 0x7f800000u | ((magnitude & 0x3ffu) << 13);
  // Subnormal halves: 2^-14 plus the fraction, minus 2^-14 (0x38800000).
  const VU two_to_minus_14 = VU{} + 0x38800000u;
  const VU subnormal =
      (VU)((VF)(two_to_minus_14 | (magnitude << 13)) - (VF)two_to_minus_14);
  VU bits = Select((VU)(magnitude < 0x0400u), subnormal, normal);
  bits = Select((VU)(magnitude >= 0x7c00u), non_finite, bits);
  return (VF)(sign | bits);
}
TFBN_INLINE Half NarrowFloat16(VF v) {
  const VU bits = (VU)v;
  const VU sign = (bits >> 16) & 0x8000u;
  const VU magnitude = bits & 0x7fffffffu;
  const VF half = VF{} + 0.5f;
  const VU subnormal = (VU)((VF)magnitude + half) - (VU)half;
  const VU rebiased = magnitude - ((127u - 15u) << 23);
  const VU normal = (rebiased + 0x0fffu + ((rebiased >> 13) & 1u)) >> 13;
  VU result = Select((VU)(magnitude < 0x38800000u), subnormal, normal);
  result = Select((VU)(magnitude >= 0x477ff000u), VU{} + 0x7c00u, result);
  result = Select((VU)(magnitude > 0x7f800000u),
                  0x7e00u | ((magnitude >> 13) & 0x3ffu), result);
  return NarrowBits(sign | result);
}
#endif

TFBN_INLINE VF Load(const Float16* p) {
  return WidenFloat16(LoadBits<Half>(p));
}
TFBN_INLINE VF Load(const Bfloat16* p) {
  return WidenBfloat16(LoadBits<Half>(p));
}
TFBN_INLINE void Store(Float16* p, VF v) { StoreBits(p, NarrowFloat16(v)); }
TFBN_INLINE void Store(Bfloat16* p, VF v) { StoreBits(p, NarrowBfloat16(v)); }

// -----------------------------------------------------------------------------
// The vector that elements of T are computed in

template <typename T>
struct Compute {
  using Scalar = float;
  using Vector = VF;
  static constexpr int kLanes = kFloatLanes;
};
template <>
struct Compute<double> {
  using Scalar = double;
  using Vector = VD;
  static constexpr int kLanes = kDoubleLanes;
};

// `kParts` vectors of double that together hold the lanes of a compute vector,
// in order.
struct WideF {
  static constexpr int kParts = 2;
  VD part[kParts];
};
struct WideD {
  static constexpr int kParts = 1;
  VD part[kParts];
};

TFBN_INLINE WideD Widen(VD v) { return WideD{{v}}; }

#if defined(__AVX512F__)
TFBN_INLINE WideF Widen(VF v) {
  return WideF{{_mm512_cvtps_pd(_mm512_castps512_ps256(v)),
                _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))}};
}
#elif defined(__AVX2__)
TFBN_INLINE WideF Widen(VF v) {
  return WideF{{_mm256_cvtps_pd(_mm256_castps256_ps128(v)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))}};
}
#elif defined(__SSE2__)
TFBN_INLINE WideF Widen(VF v) {
  return WideF{{_mm_cvtps_pd(v), _mm_cvtps_pd(_mm_movehl_ps(v, v))}};
}
#else
TFBN_INLINE WideF Widen(VF v) {
  WideF w;
  for (int i = 0; i < kDoubleLanes; ++i) {
    w.part[0][i] = v[i];
    w.part[1][i] = v[i + kDoubleLanes];
  }
  return w;
}
#endif

// Load and widen in one: a vector is read in halves, which saves taking it
// apart again. (Not worth it for bfloat16, whose way to float takes two
// instructions.)
template <typename T>
TFBN_INLINE auto LoadWide(const T* p) {
  return Widen(Load(p));
}
#if defined(__AVX512F__)
TFBN_INLINE WideF LoadWide(const float* p) {
  return WideF{{_mm512_cvtps_pd(_mm256_loadu_ps(p)),
                _mm512_cvtps_pd(_mm256_loadu_ps(p + kDoubleLanes))}};
}
TFBN_INLINE WideF LoadWide(const Float16* p) {
  const auto widen = [](const Float16* half) {
    return _mm512_cvtps_pd(_mm256_cvtph_ps(LoadBits<__m128i>(half)));
  };
  return WideF{{widen(p), widen(p + kDoubleLanes)}};
}
#elif defined(__AVX2__)
TFBN_INLINE WideF LoadWide(const float* p) {
  return WideF{{_mm256_cvtps_pd(_mm_loadu_ps(p)),
                _mm256_cvtps_pd(_mm_loadu_ps(p + kDoubleLanes))}};
}
#endif

// -----------------------------------------------------------------------------
// The last n < lanes elements of a row

#if defined(__AVX512F__)
TFBN_INLINE __mmask16 FirstLanes(int n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
TFBN_INLINE VF LoadPartial(const float* p, int n) {
  return _mm512_maskz_loadu_ps(FirstLanes(n), p);
}
TFBN_INLINE VD LoadPartial(const double* p, int n) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>(FirstLanes(n)), p);
}
TFBN_INLINE VF LoadPartial(const Float16* p, int n) {
  return WidenFloat16(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
}
TFBN_INLINE VF LoadPartial(const Bfloat16* p, int n) {
  return WidenBfloat16(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
}
TFBN_INLINE void StorePartial(float* p, VF v, int n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), v);
}
TFBN_INLINE void StorePartial(double* p, VD v, int n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(FirstLanes(n)), v);
}
TFBN_INLINE void StorePartial(Float16* p, VF v, int n) {
  _mm256_mask_storeu_epi16(p, FirstLanes(n), NarrowFloat16(v));
}
TFBN_INLINE void StorePartial(Bfloat16* p, VF v, int n) {
  _mm256_mask_storeu_epi16(p, FirstLanes(n), NarrowBfloat16(v));
}
#else
template <typename T>
TFBN_INLINE typename Compute<T>::Vector LoadPartial(const T* p, int n) {
  T padded[Compute<T>::kLanes] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return Load(padded);
}
template <typename T>
TFBN_INLINE void StorePartial(T* p, typename Compute<T>::Vector v, int n) {
  T padded[Compute<T>::kLanes];
  Store(padded, v);
  for (int i = 0; i < n; ++i) p[i] = padded[i];
}
#endif

// --- Stores that bypass the cache; `p` is aligned to the size of the stored
// vector --------------

#if defined(__AVX512F__)
TFBN_INLINE void StreamBits(void* p, VF v) {
  _mm512_stream_ps(static_cast<float*>(p), v);
}
TFBN_INLINE void StreamBits(void* p, VD v) {
  _mm512_stream_pd(static_cast<double*>(p), v);
}
TFBN_INLINE void StreamBits(void* p, __m256i v) {
  _mm256_stream_si256(static_cast<__m256i*>(p), v);
}
TFBN_INLINE void StreamFence() { _mm_sfence(); }
#elif defined(__AVX2__)
TFBN_INLINE void StreamBits(void* p, VF v) {
  _mm256_stream_ps(static_cast<float*>(p), v);
}
TFBN_INLINE void StreamBits(void* p, VD v) {
  _mm256_stream_pd(static_cast<double*>(p), v);
}
TFBN_INLINE void StreamBits(void* p, __m128i v) {
  _mm_stream_si128(static_cast<__m128i*>(p), v);
}
TFBN_INLINE void StreamFence() { _mm_sfence(); }
#elif defined(__SSE2__)
TFBN_INLINE void StreamBits(void* p, VF v) {
  _mm_stream_ps(static_cast<float*>(p), v);
}
TFBN_INLINE void StreamBits(void* p, VD v) {
  _mm_stream_pd(static_cast<double*>(p), v);
}
TFBN_INLINE void StreamBits(void* p, Half v) {
  long long bits;
  std::memcpy(&bits, &v, sizeof(bits));
  _mm_stream_si64(static_cast<long long*>(p), bits);
}
TFBN_INLINE void StreamFence() { _mm_sfence(); }
#else
template <typename V>
TFBN_INLINE void StreamBits(void* p, V v) {
  std::memcpy(p, &v, sizeof(v));
}
TFBN_INLINE void StreamFence() {}
#endif

TFBN_INLINE void Stream(float* p, VF v) { StreamBits(p, v); }
TFBN_INLINE void Stream(double* p, VD v) { StreamBits(p, v); }
TFBN_INLINE void Stream(Float16* p, VF v) { StreamBits(p, NarrowFloat16(v)); }
TFBN_INLINE void Stream(Bfloat16* p, VF v) { StreamBits(p, NarrowBfloat16(v)); }

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_VEC_H_
