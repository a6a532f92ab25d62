// Vectors of 16 bytes for device code and, as plain C++, for the host emulator:
// loads, stores and conversions of their elements, which have 2, 4 or 8 bytes.
//
// A vector stays four 32-bit words from its load to its use. Were it elements
// at once, the compiler would convert them behind each load, and the next load
// would wait for that: one load in flight per thread instead of four or more
// (docs/gpu.md).

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_VECTOR_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_VECTOR_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Elements of a vector, V.
template <typename T>
constexpr int kVectorOf = kVectorBytes / sizeof(T);

// The type that outputs of view shape are evaluated in.
template <typename T>
using Compute = ComputeOf<T>;

TFBN_HD unsigned MisalignedBytes(uintptr_t p) {
  return static_cast<unsigned>(p % kVectorBytes);
}

// The 16 bytes of a vector as registers.
struct alignas(kVectorBytes) Words {
  uint32_t word[4];
};

// Loads the vector at `from`, a multiple of 16, if `wanted`; otherwise the
// words are undefined. A predicated instruction rather than a branch, so that
// the loads of a batch follow each other.
TFBN_HD Words LoadWords(uintptr_t from, bool wanted) {
#if defined(__CUDA_ARCH__)
  Words w;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t@p ld.global.v4.u32 "
      "{%0, %1, %2, %3}, [%4];\n\t}"
      : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
      : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))),
        "r"(static_cast<unsigned>(wanted)));
  return w;
#else
  if (wanted && MisalignedBytes(from) != 0) __builtin_trap();  // As a device.
  if (wanted) return *reinterpret_cast<const Words*>(from);
  return Words{{~0u, ~0u, ~0u, ~0u}};  // NaN, which spreads where it is used.
#endif
}

TFBN_HD void StoreWords(uintptr_t to, const Words& words) {
#if defined(__CUDA_ARCH__)
  // Of a uint4 whose words are floats nvcc makes four stores.
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(reinterpret_cast<const void*>(to))),
               "r"(words.word[0]), "r"(words.word[1]), "r"(words.word[2]),
               "r"(words.word[3])
               : "memory");
#else
  if (MisalignedBytes(to) != 0) __builtin_trap();
  *reinterpret_cast<Words*>(to) = words;
#endif
}

// An unsigned integer of the size of T.
template <typename T>
using BitsOf =
    std::conditional_t<sizeof(T) == 2, uint16_t,
                       std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// Elements of a word, where it has several, and the bits of each.
template <typename T>
constexpr int kPerWord = 4 / sizeof(T);
template <typename T>
constexpr int kBits = 8 * sizeof(T);

// Element `e`, a constant, of a vector.
template <typename T>
TFBN_HD T ElementOf(const Words& w, int e) {
  if constexpr (sizeof(T) < 4) {
    return BitCast<T>(static_cast<BitsOf<T>>(w.word[e / kPerWord<T>] >>
                                             (kBits<T> * (e % kPerWord<T>))));
  } else if constexpr (sizeof(T) == 4) {
    return BitCast<T>(w.word[e]);
  } else {
    return BitCast<T>(w.word[2 * e] | static_cast<uint64_t>(w.word[2 * e + 1])
                                          << 32);
  }
}

// Sets element `e`, a constant, of a vector that is zero there.
template <typename T>
TFBN_HD void PutElement(T value, int e, Words* w) {
  if constexpr (sizeof(T) < 4) {
    w->word[e / kPerWord<T>] |= static_cast<uint32_t>(BitCast<BitsOf<T>>(value))
                                << (kBits<T> * (e % kPerWord<T>));
  } else if constexpr (sizeof(T) == 4) {
    w->word[e] = BitCast<uint32_t>(value);
  } else {
    const uint64_t bits = BitCast<uint64_t>(value);
    w->word[2 * e] = static_cast<uint32_t>(bits);
    w->word[2 * e + 1] = static_cast<uint32_t>(bits >> 32);
  }
}

// The vector of some results, rounded to T as by FromDouble; devices round two
// to half or bfloat16 in one instruction.
template <typename T>
TFBN_HD Words RoundToWords(const Compute<T> (&from)[kVectorOf<T>]) {
  Words w = {};
  TFBN_UNROLL
  for (int e = 0; e < kVectorOf<T>; ++e) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 2) {
      if (e % 2 > 0) continue;
      const float first = from[e], second = from[e + 1];
      w.word[e / 2] =
          std::is_same_v<T, Float16>
              ? BitCast<uint32_t>(__floats2half2_rn(first, second))
              : BitCast<uint32_t>(__floats2bfloat162_rn(first, second));
      continue;
    }
#endif
    T to;
    FromDouble(from[e], &to);
    PutElement(to, e, &w);
  }
  return w;
}

// The bits of the element at `from` if `wanted`, otherwise zero: predicated
// like LoadWords.
template <typename Bits>
TFBN_HD Bits LoadBits(uintptr_t from, bool wanted) {
  Bits bits = 0;
#if defined(__CUDA_ARCH__)
#define TFBN_LOAD(type, constraint)                                         \
  asm volatile(                                                             \
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\t@p ld.global." type   \
      " %0, [%1];\n\t}"                                                     \
      : "+" constraint(bits)                                                \
      : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))), \
        "r"(static_cast<unsigned>(wanted)))
  if constexpr (sizeof(Bits) == 2) {
    TFBN_LOAD("u16", "h");
  } else if constexpr (sizeof(Bits) == 4) {
    TFBN_LOAD("u32", "r");
  } else {
    TFBN_LOAD("u64", "l");
  }
#undef TFBN_LOAD
#else
  if (wanted) bits = *reinterpret_cast<const Bits*>(from);
#endif
  return bits;
}

// Elements [begin, end) of the vector at `from`, zeros beside them: loads
// nothing that does not belong to the thread.
template <typename T>
TFBN_HD Words LoadElements(uintptr_t from, int begin, int end) {
  constexpr int kVector = kVectorOf<T>;
  BitsOf<T> bits[kVector];
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    bits[e] = LoadBits<BitsOf<T>>(from + e * sizeof(T), e >= begin && e < end);
  }
  Words w = {};
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) PutElement(BitCast<T>(bits[e]), e, &w);
  return w;
}

// Stores elements [begin, end) of `w` at `to`.
template <typename T>
TFBN_HD void StoreElements(const Words& w, uintptr_t to, int begin, int end) {
  constexpr int kVector = kVectorOf<T>;
  if (MisalignedBytes(to) == 0 && begin <= 0 && end >= kVector) {
    StoreWords(to, w);
    return;
  }
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    if (e < begin || e >= end) continue;
    *reinterpret_cast<BitsOf<T>*>(to + e * sizeof(T)) =
        BitCast<BitsOf<T>>(ElementOf<T>(w, e));
  }
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_VECTOR_H_
