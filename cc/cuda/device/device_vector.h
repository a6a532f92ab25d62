// Vectors of 16 bytes for device code and, as plain C++, for the host emulator:
// loads and stores at any alignment, and conversions of their elements.
//
// A vector stays four 32-bit words from its load to its use. Were it elements
// at once, the compiler would convert them behind each load, and the next load
// would wait for that: one load in flight per thread instead of eight
// (docs/gpu.md).

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_VECTOR_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_VECTOR_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

template <typename T>
struct VectorTraits {
  static constexpr int kVector = kVectorBytes / sizeof(T);  // Elements, V.
};

// The type that outputs of view shape are evaluated in.
template <typename T>
using Compute = typename ComputeOf<T>::Type;

// The 16 bytes of a vector as registers.
struct alignas(kVectorBytes) Words {
  uint32_t word[4];
};

// Loads the vector at `from`, a multiple of 16, if `wanted`; otherwise the
// words are undefined. A predicated instruction rather than a branch, so that
// loads follow each other. kEvictFirst: these bytes are read for the last time
// in this call, so they should not displace others in L2.
template <bool kEvictFirst>
TFBN_HD Words LoadWords(uintptr_t from, bool wanted) {
#if defined(__CUDA_ARCH__)
  Words w;
#define TFBN_LOAD(instruction)                                              \
  asm volatile(                                                             \
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t@p " instruction      \
      " {%0, %1, %2, %3}, [%4];\n\t}"                                       \
      : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])  \
      : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))), \
        "r"(static_cast<unsigned>(wanted)))
  if (kEvictFirst) {
    TFBN_LOAD("ld.global.cs.v4.u32");
  } else {
    TFBN_LOAD("ld.global.v4.u32");
  }
#undef TFBN_LOAD
  return w;
#else
  if (wanted) return *reinterpret_cast<const Words*>(from);
  return Words{{~0u, ~0u, ~0u, ~0u}};  // NaN, which spreads where it is used.
#endif
}

// `to` is a multiple of 16 bytes. An evict-first store: no kernel reads it.
TFBN_HD void StoreWords(uintptr_t to, const Words& words) {
#if defined(__CUDA_ARCH__)
  __stcs(
      reinterpret_cast<uint4*>(to),
      make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]));
#else
  TFBN_MEMCPY(reinterpret_cast<void*>(to), &words, sizeof(words));
#endif
}

template <typename To, typename From>
TFBN_HD To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits of the same size");
  To to;
  TFBN_MEMCPY(&to, &from, sizeof(to));
  return to;
}

// An unsigned integer of kBytes bytes.
template <size_t kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using Type = uint8_t;
};
template <>
struct UnsignedOf<2> {
  using Type = uint16_t;
};
template <>
struct UnsignedOf<4> {
  using Type = uint32_t;
};
template <>
struct UnsignedOf<8> {
  using Type = uint64_t;
};
template <typename T>
using BitsOf = typename UnsignedOf<sizeof(T)>::Type;

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
TFBN_HD Words RoundToWords(const Compute<T> (&from)[VectorTraits<T>::kVector]) {
  Words w = {};
  TFBN_UNROLL
  for (int e = 0; e < VectorTraits<T>::kVector; ++e) {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, Float16>) {
      if (e % 2 == 0) {
        w.word[e / 2] =
            BitCast<uint32_t>(__floats2half2_rn(from[e], from[e + 1]));
      }
      continue;
    }
    if constexpr (std::is_same_v<T, Bfloat16>) {
      if (e % 2 == 0) {
        w.word[e / 2] =
            BitCast<uint32_t>(__floats2bfloat162_rn(from[e], from[e + 1]));
      }
      continue;
    }
#endif
    T to;
    FromDouble(from[e], &to);
    PutElement(to, e, &w);
  }
  return w;
}

// Bytes [bytes, bytes + 16) of `low` followed by `high`; `bytes` is a multiple
// of the size of T. Constant indices and funnel shifts keep all of it in
// registers.
template <typename T>
TFBN_HD Words ShiftBytes(const Words& low, const Words& high, unsigned bytes) {
  uint32_t w[8] = {low.word[0],  low.word[1],  low.word[2],  low.word[3],
                   high.word[0], high.word[1], high.word[2], high.word[3]};
  TFBN_UNROLL
  for (int i = 0; i < 6; ++i) w[i] = (bytes & 8) != 0 ? w[i + 2] : w[i];
  if constexpr (sizeof(T) <= 4) {
    TFBN_UNROLL
    for (int i = 0; i < 5; ++i) w[i] = (bytes & 4) != 0 ? w[i + 1] : w[i];
  }
  if constexpr (sizeof(T) == 2) {
    TFBN_UNROLL
    for (int i = 0; i < 4; ++i) {
      w[i] = (bytes & 2) != 0 ? (w[i] >> 16) | (w[i + 1] << 16) : w[i];
    }
  }
  if constexpr (sizeof(T) == 1) {
    TFBN_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint64_t both = static_cast<uint64_t>(w[i + 1]) << 32 | w[i];
      w[i] = static_cast<uint32_t>(both >> (8 * (bytes & 3)));
    }
  }
  return Words{{w[0], w[1], w[2], w[3]}};
}

TFBN_HD unsigned MisalignedBytes(uintptr_t p) {
  return static_cast<unsigned>(p % kVectorBytes);
}

// What bits of an element are in: registers have at least 16.
template <typename Bits>
using RegisterOf = std::conditional_t<sizeof(Bits) == 1, uint16_t, Bits>;

// The bits of the element at `from` if `wanted`, otherwise zero: predicated
// like LoadWords.
template <typename Bits>
TFBN_HD Bits LoadBits(uintptr_t from, bool wanted) {
  RegisterOf<Bits> bits = 0;
#if defined(__CUDA_ARCH__)
#define TFBN_LOAD(type, constraint)                                         \
  asm volatile(                                                             \
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\t@p ld.global." type   \
      " %0, [%1];\n\t}"                                                     \
      : "+" constraint(bits)                                                \
      : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))), \
        "r"(static_cast<unsigned>(wanted)))
  if constexpr (sizeof(Bits) == 1) {
    TFBN_LOAD("u8", "h");
  } else if constexpr (sizeof(Bits) == 2) {
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
  return static_cast<Bits>(bits);
}

// Stores the bits of an element at `to` if `wanted`.
template <typename Bits>
TFBN_HD void StoreBits(Bits value, uintptr_t to, bool wanted) {
#if defined(__CUDA_ARCH__)
#define TFBN_STORE(type, constraint)                                      \
  asm volatile(                                                           \
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\t@p st.global." type \
      " [%1], %0;\n\t}"                                                   \
      :                                                                   \
      : constraint(bits),                                                 \
        "l"(__cvta_generic_to_global(reinterpret_cast<void*>(to))),       \
        "r"(static_cast<unsigned>(wanted))                                \
      : "memory")
  const RegisterOf<Bits> bits = value;
  if constexpr (sizeof(Bits) == 1) {
    TFBN_STORE("u8", "h");
  } else if constexpr (sizeof(Bits) == 2) {
    TFBN_STORE("u16", "h");
  } else if constexpr (sizeof(Bits) == 4) {
    TFBN_STORE("u32", "r");
  } else {
    TFBN_STORE("u64", "l");
  }
#undef TFBN_STORE
#else
  if (wanted) *reinterpret_cast<Bits*>(to) = value;
#endif
}

// Elements [begin, end) of the vector at `from`, zeros beside them: loads
// nothing that does not belong to the thread.
template <typename T>
TFBN_HD Words LoadElements(uintptr_t from, int begin, int end) {
  constexpr int kVector = VectorTraits<T>::kVector;
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
  constexpr int kVector = VectorTraits<T>::kVector;
  if (MisalignedBytes(to) == 0 && begin <= 0 && end >= kVector) {
    StoreWords(to, w);
    return;
  }
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    StoreBits(BitCast<BitsOf<T>>(ElementOf<T>(w, e)), to + e * sizeof(T),
              e >= begin && e < end);
  }
}

// A vector as it was loaded: misaligned ones are the two aligned vectors that
// they lie in. The second is the first of the neighbouring thread, so it costs
// an access to L1 and no DRAM traffic.
template <bool kAligned>
struct LoadedVector {
  Words low;
};
template <>
struct LoadedVector<false> {
  Words low, high;
};

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_VECTOR_H_
