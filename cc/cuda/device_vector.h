// Vectors of 16 bytes for device code and, as plain C++, for the host emulator:
// loads and stores at any alignment, and conversions of their elements.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_VECTOR_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_VECTOR_H_

#include <cstdint>
#include <cstring>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

template <typename T>
struct VectorTraits {
  static constexpr int kVector = kVectorBytes / sizeof(T);  // Elements, V.
  // Vectors of each tensor that a thread loads before it uses the first: as
  // many as fit into 128 registers with its sums or coefficients.
  static constexpr int kUnroll = sizeof(T) == 2 ? 2 : 4;
};

template <typename T>
struct alignas(kVectorBytes) Vector {
  T element[VectorTraits<T>::kVector];
};

// The type that outputs of view shape are evaluated in.
template <typename T>
using Compute = typename ComputeOf<T>::Type;

template <typename T>
TFBN_HD Compute<T> ToCompute(T v) {
  return static_cast<Compute<T>>(ToDouble(v));
}

// The 16 bytes of a vector as registers.
struct alignas(kVectorBytes) Words {
  uint32_t word[4];
};

// `from` is a multiple of 16 bytes. kEvictFirst: these bytes are read for the
// last time in this call, so they should not displace others in L2.
template <bool kEvictFirst>
TFBN_HD Words LoadWords(const void* from) {
#if defined(__CUDA_ARCH__)
  const uint4* const words = static_cast<const uint4*>(from);
  const uint4 v = kEvictFirst ? __ldcs(words) : *words;
  return Words{{v.x, v.y, v.z, v.w}};
#else
  return *static_cast<const Words*>(from);
#endif
}

// `to` is a multiple of 16 bytes. An evict-first store: no kernel reads it.
TFBN_HD void StoreWords(void* to, const Words& words) {
#if defined(__CUDA_ARCH__)
  __stcs(static_cast<uint4*>(to), make_uint4(words.word[0], words.word[1],
                                             words.word[2], words.word[3]));
#else
  *static_cast<Words*>(to) = words;
#endif
}

template <typename To, typename From>
TFBN_HD To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits of the same size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// Bytes [bytes, bytes + 16) of `low` followed by `high`; `bytes` is even.
// Constant indices and funnel shifts keep all of it in registers.
TFBN_HD Words ShiftBytes(const Words& low, const Words& high, unsigned bytes) {
  uint32_t w[8] = {low.word[0],  low.word[1],  low.word[2],  low.word[3],
                   high.word[0], high.word[1], high.word[2], high.word[3]};
  TFBN_UNROLL
  for (int i = 0; i < 6; ++i) w[i] = (bytes & 8) != 0 ? w[i + 2] : w[i];
  TFBN_UNROLL
  for (int i = 0; i < 5; ++i) w[i] = (bytes & 4) != 0 ? w[i + 1] : w[i];
  TFBN_UNROLL
  for (int i = 0; i < 4; ++i) {
    w[i] = (bytes & 2) != 0 ? (w[i] >> 16) | (w[i + 1] << 16) : w[i];
  }
  return Words{{w[0], w[1], w[2], w[3]}};
}

TFBN_HD unsigned MisalignedBytes(const void* p) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(p) % kVectorBytes);
}

// Elements [at, at + V) of an array of `n`, zeros outside it. kAligned:
// data + at is a multiple of 16 bytes. Otherwise two aligned vectors are loaded
// and shifted together; the second is the first of the neighbouring thread, so
// it costs an access to L1 and no DRAM traffic.
template <bool kAligned, bool kEvictFirst, typename T>
TFBN_HD Vector<T> LoadVector(const T* data, int64_t at, int64_t n) {
  constexpr int kVector = VectorTraits<T>::kVector;
  if (kAligned) {
    if (at >= 0 && at + kVector <= n) {
      return BitCast<Vector<T>>(LoadWords<kEvictFirst>(data + at));
    }
  } else {
    const unsigned bytes = MisalignedBytes(data + at);
    const int64_t low = at - bytes / sizeof(T);
    const int64_t end = low + (bytes == 0 ? kVector : 2 * kVector);
    if (low >= 0 && end <= n) {
      const Words first = LoadWords<false>(data + low);
      if (bytes == 0) return BitCast<Vector<T>>(first);
      return BitCast<Vector<T>>(
          ShiftBytes(first, LoadWords<false>(data + low + kVector), bytes));
    }
  }
  Vector<T> v;
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    v.element[e] = at + e >= 0 && at + e < n ? data[at + e] : T{};
  }
  return v;
}

// Stores elements [begin, end) of `v` to data + at, `aligned` to 16 bytes or
// not.
template <typename T>
TFBN_HD void StoreVector(const Vector<T>& v, T* data, int64_t at, int begin,
                         int end, bool aligned) {
  constexpr int kVector = VectorTraits<T>::kVector;
  if ((aligned || MisalignedBytes(data + at) == 0) && begin <= 0 &&
      end >= kVector) {
    StoreWords(data + at, BitCast<Words>(v));
    return;
  }
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    if (e >= begin && e < end) data[at + e] = v.element[e];
  }
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_VECTOR_H_
