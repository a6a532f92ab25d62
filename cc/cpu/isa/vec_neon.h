// Vectors of 16 bytes: Advanced SIMD (NEON), which every aarch64 has.

#pragma once

#define TFBN_VECTOR_BYTES 16
#define TFBN_REGISTERS 32
#include "cc/cpu/isa/vec_portable.h"

namespace tf_bn_ops {
namespace {
namespace neon {

using namespace portable;

// FPCR's switch that flushes subnormal numbers does not apply to halves.
TFBN_INLINE VF WidenFloat16(V16 v) { return (VF)vcvt_f32_f16((float16x4_t)v); }
TFBN_INLINE V16 NarrowFloat16(VF v) {
  return (V16)vcvt_f16_f32((float32x4_t)v);
}

TFBN_INLINE VF WidenBfloat16(V16 v) {
  return (VF)vshll_n_u16((uint16x4_t)v, 16);
}
TFBN_INLINE V16 NarrowBfloat16(VF v) {
  // portable::RoundToBfloat16 in instructions that narrow as they go.
  const uint32x4_t bits = (uint32x4_t)v;
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t half = vaddq_u32(odd, vdupq_n_u32(0x7fff));
  return (V16)vaddhn_u32(bits, half);
}

TFBN_INLINE WideF Widen(VF v) {
  const float32x4_t f = (float32x4_t)v;
  return WideF{{(VD)vcvt_f64_f32(vget_low_f32(f)), (VD)vcvt_high_f64_f32(f)}};
}

// Partial vectors in two accesses: of the first half, if n covers it, and of
// the lanes behind.
template <typename V>
TFBN_INLINE V LoadPartialBits(const void* p, int n) {
  using Lane = std::decay_t<decltype(V{}[0])>;
  constexpr int kLanes = sizeof(V) / sizeof(Lane);
  if (n >= kLanes) return LoadBits<V>(p);
  if constexpr (kLanes == 2) {
    return V{n >= 1 ? LoadBits<Lane>(p) : Lane{}, Lane{}};
  } else {
    const Lane* const from = static_cast<const Lane*>(p);
    V v = {};
    if (n & 2) std::memcpy(&v, from, 2 * sizeof(Lane));
    if (n & 1) v[n & 2] = LoadBits<Lane>(from + (n & 2));
    return v;
  }
}
template <typename V>
TFBN_INLINE void StorePartialBits(void* p, V v, int n) {
  using Lane = std::decay_t<decltype(V{}[0])>;
  constexpr int kLanes = sizeof(V) / sizeof(Lane);
  if (n >= kLanes) return StoreBits(p, v);
  Lane* const to = static_cast<Lane*>(p);
  if (n & 2) std::memcpy(to, &v, 2 * sizeof(Lane));
  if (n & 1) StoreBits<Lane>(to + (n & 2), v[n & 2]);
}

// STNP, the one non-temporal store there is, takes a pair of registers: the two
// halves of a vector.
#if defined(__clang__)
template <typename V>
TFBN_INLINE void StoreNonTemporalBits(void* p, V v) {
  __builtin_nontemporal_store(v, static_cast<V*>(p));
}
#else
using portable::StoreNonTemporalBits;
// Ump is an address that a pair of this type can be stored to; the second
// output tells the compiler that its other half is written, too.
TFBN_INLINE void StoreNonTemporalBits(void* p, VD v) {
  typedef double Half __attribute__((may_alias));
  Half* const to = static_cast<Half*>(p);
  asm("stnp %d2, %d3, %0" : "=Ump"(to[0]), "=m"(to[1]) : "w"(v[0]), "w"(v[1]));
}
TFBN_INLINE void StoreNonTemporalBits(void* p, VF v) {
  StoreNonTemporalBits(p, (VD)v);
}
TFBN_INLINE void StoreNonTemporalBits(void* p, V16 v) {
  typedef float Half __attribute__((may_alias));
  Half* const to = static_cast<Half*>(p);
  const float32x2_t halves = (float32x2_t)v;
  asm("stnp %s2, %s3, %0"
      : "=Ump"(to[0]), "=m"(to[1])
      : "w"(halves[0]), "w"(halves[1]));
}
#endif
// STNP is ordered as any other store: the release operation by which a thread
// announces its results covers it.
TFBN_INLINE void NonTemporalFence() {}

}  // namespace neon
}  // namespace
}  // namespace tf_bn_ops
