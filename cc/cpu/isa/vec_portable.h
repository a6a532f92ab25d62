// Vector types of kVectorBytes, and portable versions of everything that a
// vec_<isa>.h provides, written with the vector extensions of GCC and Clang.
//
// Included by a vec_<isa>.h behind its TFBN_VECTOR_BYTES, for the functions
// that it has no instructions for.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {
namespace {

constexpr int kVectorBytes = TFBN_VECTOR_BYTES;
constexpr int kRegisters = TFBN_REGISTERS;
constexpr int kFloatLanes = kVectorBytes / 4;
constexpr int kDoubleLanes = kVectorBytes / 8;

typedef float VF __attribute__((vector_size(kVectorBytes)));
typedef double VD __attribute__((vector_size(kVectorBytes)));
typedef uint32_t VU __attribute__((vector_size(kVectorBytes)));
// As many 16-bit lanes as VF has.
typedef uint16_t V16 __attribute__((vector_size(kVectorBytes / 2)));

// `kParts` vectors of double that together hold the lanes of a vector of
// elements, in order.
struct WideF {
  static constexpr int kParts = 2;
  VD part[kParts];
};
struct WideD {
  static constexpr int kParts = 1;
  VD part[kParts];
};

// Loads and stores of whole vectors, any alignment.
template <typename V>
TFBN_INLINE V LoadBits(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}
template <typename V>
TFBN_INLINE void StoreBits(void* p, V v) {
  std::memcpy(p, &v, sizeof(V));
}

namespace portable {

constexpr bool kBfloat16Alone = false;

TFBN_INLINE VF WidenFloat16(V16 v) {
  return WidenHalf<VF>(__builtin_convertvector(v, VU));
}
TFBN_INLINE V16 NarrowFloat16(VF v) {
  return __builtin_convertvector(NarrowToHalf<VU>(v), V16);
}

TFBN_INLINE VF WidenBfloat16(V16 v) {
  return (VF)(__builtin_convertvector(v, VU) << 16);
}
// Rounds to bfloat16, to nearest even: the upper halves of the 32-bit lanes.
TFBN_INLINE VU RoundToBfloat16(VF v) {
  const VU bits = (VU)v;
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}
TFBN_INLINE V16 NarrowBfloat16(VF v) {
  return __builtin_convertvector(RoundToBfloat16(v) >> 16, V16);
}
struct Bfloat16Pairs {
  static constexpr bool kDefined = false;
};

// A NarrowBfloat16 that keeps subnormal numbers has nothing to add.
TFBN_INLINE V16 KeepSubnormals(V16 narrowed, VF) { return narrowed; }

TFBN_INLINE WideF Widen(VF v) {
  WideF w;
  for (int i = 0; i < kDoubleLanes; ++i) {
    w.part[0][i] = v[i];
    w.part[1][i] = v[i + kDoubleLanes];
  }
  return w;
}

// None; vec.h has LoadWide of all element types.
void LoadWide(std::nullptr_t) = delete;

// Partial vectors go through memory.
template <typename V>
TFBN_INLINE V LoadPartialBits(const void* p, int n) {
  using Lane = std::decay_t<decltype(V{}[0])>;
  Lane padded[sizeof(V) / sizeof(Lane)] = {};
  for (int i = 0; i < n; ++i) padded[i] = static_cast<const Lane*>(p)[i];
  return LoadBits<V>(padded);
}
template <typename V>
TFBN_INLINE void StorePartialBits(void* p, V v, int n) {
  using Lane = std::decay_t<decltype(V{}[0])>;
  Lane padded[sizeof(V) / sizeof(Lane)];
  StoreBits(padded, v);
  for (int i = 0; i < n; ++i) static_cast<Lane*>(p)[i] = padded[i];
}

#if defined(__SSE2__)
// Streaming stores, which every build of x86 has for its vectors.
template <typename V>
TFBN_INLINE void StoreNonTemporalBits(void* p, V v) {
  if constexpr (sizeof(V) == 8) {
    _mm_stream_si64(static_cast<long long*>(p), BitCast<long long>(v));
  } else if constexpr (sizeof(V) == 16) {
    _mm_stream_si128(static_cast<__m128i*>(p), (__m128i)v);
  }
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(static_cast<__m256i*>(p), (__m256i)v);
  } else if constexpr (sizeof(V) == 64) {
    _mm512_stream_si512(static_cast<__m512i*>(p), (__m512i)v);
  }
#endif
}
TFBN_INLINE void NonTemporalFence() { _mm_sfence(); }
#else
// Plain stores, which need no fence.
template <typename V>
TFBN_INLINE void StoreNonTemporalBits(void* p, V v) {
  StoreBits(p, v);
}
TFBN_INLINE void NonTemporalFence() {}
#endif

}  // namespace portable
}  // namespace
}  // namespace tf_bn_ops
