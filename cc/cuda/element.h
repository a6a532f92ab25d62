// Elements and 16-byte vectors of them, for device code and, as plain C++, for
// the host emulator: loads and stores at any alignment, conversions.

#ifndef TF_BN_OPS_CC_CUDA_ELEMENT_H_
#define TF_BN_OPS_CC_CUDA_ELEMENT_H_

#include <cstdint>
#include <cstring>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/cuda/geometry.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace tf_bn_ops {
namespace cuda {
namespace {

template <typename T>
struct ElementOf {
  static constexpr int kVector = kVectorBytes / sizeof(T);
  // Vectors of each tensor that a thread loads before it uses the first; what
  // the registers hold beside a thread's sums or coefficients without spills.
  static constexpr int kUnroll = sizeof(T) == 2 ? 2 : 4;
  using Compute = float;  // The type that x_backprop is evaluated in.
};
template <>
struct ElementOf<double> {
  static constexpr int kVector = kVectorBytes / sizeof(double);
  static constexpr int kUnroll = 4;
  using Compute = double;
};

template <typename T>
struct alignas(kVectorBytes) Vector {
  T element[ElementOf<T>::kVector];
};

TFBN_HD float ToCompute(float v) { return v; }
TFBN_HD double ToCompute(double v) { return v; }
TFBN_HD float ToCompute(Float16 v) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(v.bits));
#else
  return static_cast<float>(ToDouble(v));
#endif
}
TFBN_HD float ToCompute(Bfloat16 v) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(static_cast<unsigned>(v.bits) << 16);
#else
  return static_cast<float>(ToDouble(v));
#endif
}

TFBN_HD void FromCompute(float v, float* out) { *out = v; }
TFBN_HD void FromCompute(double v, double* out) { *out = v; }
TFBN_HD void FromCompute(float v, Float16* out) {
#if defined(__CUDA_ARCH__)
  out->bits = __half_as_ushort(__float2half_rn(v));
#else
  FromDouble(v, out);
#endif
}
TFBN_HD void FromCompute(float v, Bfloat16* out) {
#if defined(__CUDA_ARCH__)
  out->bits = __bfloat16_as_ushort(__float2bfloat16_rn(v));
#else
  FromDouble(v, out);
#endif
}

// The statistics: few, so the type is looked at for each.
TFBN_HD double LoadStat(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[i];
    case DType::kFloat16:
      return ToCompute(static_cast<const Float16*>(data)[i]);
    case DType::kBfloat16:
      return ToCompute(static_cast<const Bfloat16*>(data)[i]);
    case DType::kFloat64:
      return static_cast<const double*>(data)[i];
  }
  return 0;
}

TFBN_HD void StoreStat(DType dtype, void* data, int64_t i, double value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    case DType::kFloat16:
      FromCompute(static_cast<float>(value), static_cast<Float16*>(data) + i);
      return;
    case DType::kBfloat16:
      FromCompute(static_cast<float>(value), static_cast<Bfloat16*>(data) + i);
      return;
    case DType::kFloat64:
      static_cast<double*>(data)[i] = value;
      return;
  }
}

// Sixteen bytes at an address that is a multiple of 16.
struct alignas(kVectorBytes) Words {
  uint32_t word[4];
};

// kLast: nobody reads these bytes again in this call, so they need no place in
// the L2 cache.
template <bool kLast>
TFBN_HD Words LoadWords(const void* at) {
#if defined(__CUDA_ARCH__)
  const uint4* const from = static_cast<const uint4*>(at);
  const uint4 v = kLast ? __ldcs(from) : *from;
  return Words{{v.x, v.y, v.z, v.w}};
#else
  return *static_cast<const Words*>(at);
#endif
}

TFBN_HD void StoreWords(void* at, const Words& words) {
#if defined(__CUDA_ARCH__)
  __stcs(static_cast<uint4*>(at), make_uint4(words.word[0], words.word[1],
                                             words.word[2], words.word[3]));
#else
  *static_cast<Words*>(at) = words;
#endif
}

template <typename To, typename From>
TFBN_HD To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits of the same size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// Sixteen bytes that begin `bytes` (even) after those of `low`, which `high`
// follows. Constant indices and funnel shifts keep all of it in registers.
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

// Elements [at, at + V) of the array of `n`, zeros where it has none.
// kAligned: data + at is a multiple of 16 bytes. Otherwise two aligned vectors
// are read and shifted together; the second one is the neighbouring thread's
// first, so it costs an access to the L1 cache and no traffic.
template <bool kAligned, bool kLast, typename T>
TFBN_HD Vector<T> LoadVector(const T* data, int64_t at, int64_t n) {
  constexpr int kVector = ElementOf<T>::kVector;
  if (kAligned) {
    if (at >= 0 && at + kVector <= n) {
      return BitCast<Vector<T>>(LoadWords<kLast>(data + at));
    }
  } else {
    const unsigned bytes =
        static_cast<unsigned>(reinterpret_cast<uintptr_t>(data + at)) %
        kVectorBytes;
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

// Stores elements [lo, hi) of `v` to data + at, a multiple of 16 bytes.
template <typename T>
TFBN_HD void StoreVector(const Vector<T>& v, T* data, int64_t at, int lo,
                         int hi) {
  constexpr int kVector = ElementOf<T>::kVector;
  if (lo <= 0 && hi >= kVector) {
    StoreWords(data + at, BitCast<Words>(v));
    return;
  }
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    if (e >= lo && e < hi) data[at + e] = v.element[e];
  }
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_ELEMENT_H_
