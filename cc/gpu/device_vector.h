// Vectors of 16 bytes for device code and, as plain C++, for the host emulator:
// loads, stores and conversions of their elements, which have 2, 4 or 8 bytes.
//
// A vector stays four 32-bit words from its load to its use. Were it elements
// at once, the compiler would convert them behind each load, and the next load
// would wait for that: one load in flight per thread instead of four or more
// (docs/gpu.md).

#pragma once

#include <cstdint>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/gpu/launch_config.h"

namespace tf_bn_ops::gpu {

// Elements of a vector, V.
template <typename T>
constexpr int kVectorOf = kVectorBytes / sizeof(T);

TFBN_HD bool IsAligned(uintptr_t p) { return p % kVectorBytes == 0; }

// The 16 bytes of a vector as registers.
struct alignas(kVectorBytes) Words {
  uint32_t word[4];
};

// A vector of the tensors, at `element` on the grid of vectors. Elements
// [begin, end) of it belong to the thread, the others to neighbouring segments
// or to nobody; none where the item is absent.
struct VectorSlot {
  int64_t element;
  int begin, end;
  TFBN_HD bool Present() const { return begin < end; }
  TFBN_HD bool Has(int e) const { return begin <= e && e < end; }
};

// Where the vector of a slot lies in a tensor of T.
template <typename T>
TFBN_HD uintptr_t AddressOf(const void* tensor, const VectorSlot& slot) {
  return reinterpret_cast<uintptr_t>(tensor) +
         static_cast<uintptr_t>(slot.element) * sizeof(T);
}

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
  if (wanted && !IsAligned(from)) __builtin_trap();  // As a device.
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
  if (!IsAligned(to)) __builtin_trap();
  *reinterpret_cast<Words*>(to) = words;
#endif
}

// Elements of a word, and the bits of one; of eight bytes, half an element.
template <typename T>
constexpr int kPerWord = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
template <typename T>
TFBN_HD int ShiftOf(int e) {
  return e % kPerWord<T> * 32 / kPerWord<T>;
}

// Element `e`, a constant, of a vector.
template <typename T>
TFBN_HD T ElementOf(const Words& w, int e) {
  if constexpr (sizeof(T) == 8) {
    return BitCast<T>(w.word[2 * e] | static_cast<uint64_t>(w.word[2 * e + 1])
                                          << 32);
  } else {
    return BitCast<T>(
        static_cast<BitsOf<T>>(w.word[e / kPerWord<T>] >> ShiftOf<T>(e)));
  }
}

// Sets element `e`, a constant, of a vector that is zero there.
template <typename T>
TFBN_HD void PutElement(T value, int e, Words* w) {
  if constexpr (sizeof(T) == 8) {
    const uint64_t bits = BitCast<uint64_t>(value);
    w->word[2 * e] = static_cast<uint32_t>(bits);
    w->word[2 * e + 1] = static_cast<uint32_t>(bits >> 32);
  } else {
    w->word[e / kPerWord<T>] |= uint32_t{BitCast<BitsOf<T>>(value)}
                                << ShiftOf<T>(e);
  }
}

// The vector of some results, rounded to T.
template <typename T>
TFBN_HD Words RoundToWords(const ComputeOf<T> (&from)[kVectorOf<T>]) {
  Words w = {};
  TFBN_UNROLL
  for (int e = 0; e < kVectorOf<T>; ++e) {
    T to;
    FromDouble(from[e], &to);
    PutElement(to, e, &w);
  }
  return w;
}

// The elements of a slot, zeros beside them, one by one: loads nothing that
// does not belong to the thread.
template <typename T>
TFBN_HD Words LoadElements(const void* tensor, const VectorSlot& slot) {
  const T* const from = static_cast<const T*>(tensor) + slot.element;
  Words w = {};
  TFBN_UNROLL
  for (int e = 0; e < kVectorOf<T>; ++e) {
    if (slot.Has(e)) PutElement(from[e], e, &w);
  }
  return w;
}

// Stores the elements of a slot.
template <typename T>
TFBN_HD void StoreElements(const Words& w, void* tensor,
                           const VectorSlot& slot) {
  T* const to = static_cast<T*>(tensor) + slot.element;
  if (IsAligned(reinterpret_cast<uintptr_t>(to)) && slot.begin == 0 &&
      slot.end == kVectorOf<T>) {
    StoreWords(reinterpret_cast<uintptr_t>(to), w);
    return;
  }
  TFBN_UNROLL
  for (int e = 0; e < kVectorOf<T>; ++e) {
    if (slot.Has(e)) to[e] = ElementOf<T>(w, e);
  }
}

}  // namespace tf_bn_ops::gpu
