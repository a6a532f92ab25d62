// Vector types of kVectorBytes, and portable versions of everything that a
// vec_<isa>.h provides, written with the vector extensions of GCC and Clang.
//
// Included by a vec_<isa>.h behind its kVectorBytes, for the functions that it
// has no instructions for.

#ifndef TF_BN_OPS_CC_CPU_ISA_VEC_PORTABLE_H_
#define TF_BN_OPS_CC_CPU_ISA_VEC_PORTABLE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/host_device.h"

namespace tf_bn_ops {
namespace {

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

// Lane by lane `mask ? a : b`; lanes of mask are all ones or all zeros. Blend
// instructions look at the sign bit alone.
TFBN_INLINE VU Select(VU mask, VU a, VU b) { return (mask >> 31) != 0 ? a : b; }

// The scalar conversions of cc/core/dtype.h, lane by lane. All float operands
// are normal, so flushing of subnormals cannot change a result.
TFBN_INLINE VF WidenFloat16(V16 v) {
  const VU h = __builtin_convertvector(v, VU);
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
TFBN_INLINE V16 NarrowFloat16(VF v) {
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
  return __builtin_convertvector(sign | result, V16);
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

// None; vec.h has that of all element types.
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

// Plain stores, which need no fence.
template <typename V>
TFBN_INLINE void StoreNonTemporalBits(void* p, V v) {
  StoreBits(p, v);
}
TFBN_INLINE void NonTemporalFence() {}

}  // namespace portable
}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_VEC_PORTABLE_H_
