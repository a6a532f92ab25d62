// Element types of the library: the one table, and their scalar conversions.
//
// Functions have internal linkage and are always inlined (TFBN_HD): translation
// units with different -m flags include this header.

#ifndef TF_BN_OPS_CC_CORE_DTYPE_H_
#define TF_BN_OPS_CC_CORE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cc/core/host_device.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace tf_bn_ops {

// Storage of IEEE binary16 and bfloat16. Only their bits matter here;
// TensorFlow's Eigen::half and Eigen::bfloat16 have the same layout.
struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

// The table of element types: X(name, text, code, storage, compute, fraction,
// exponent) with the name of the enumerator, how it is printed, its value, the
// type of an element in memory, the type that results of view shape are
// computed in, the bits of the fraction (the leading 1 is not one of them), and
// the exponent of the smallest normal number. Everything that is indexed by
// DType or switches over it is generated from this table.
#define TFBN_FOR_EACH_DTYPE(X)                         \
  X(Float32, "float32", 0, float, float, 23, -126)     \
  X(Float16, "half", 1, Float16, float, 10, -14)       \
  X(Bfloat16, "bfloat16", 2, Bfloat16, float, 7, -126) \
  X(Float64, "float64", 3, double, double, 52, -1022)

// The values are part of the C ABI (cc/c_api/tf_bn_ops_c.h).
enum class DType : int32_t {
#define X(name, text, code, storage, compute, fraction, exponent) \
  k##name = code,
  TFBN_FOR_EACH_DTYPE(X)
#undef X
};

#define X(name, text, code, storage, compute, fraction, exponent) +1
constexpr int kNumDTypes = TFBN_FOR_EACH_DTYPE(X);
#undef X

// Rows of the table stand in the order of their codes 0, 1, ..., so that an
// array with an entry for each row can be indexed by DType.
static constexpr bool CodesAreIndices() {
  int row = 0;
#define X(name, text, code, storage, compute, fraction, exponent) \
  if (code != row++) return false;
  TFBN_FOR_EACH_DTYPE(X)
#undef X
  return row == kNumDTypes;
}
static_assert(CodesAreIndices(), "a gap in the codes of TFBN_FOR_EACH_DTYPE");

// The type that elements of T are computed in.
template <typename T>
struct ComputeOf;
#define X(name, text, code, storage, compute, fraction, exponent) \
  template <>                                                     \
  struct ComputeOf<storage> {                                     \
    using Type = compute;                                         \
  };
TFBN_FOR_EACH_DTYPE(X)
#undef X

// 2^exponent.
static constexpr double PowerOfTwo(int exponent) {
  double power = 1;
  for (; exponent > 0; --exponent) power *= 2;
  for (; exponent < 0; ++exponent) power /= 2;
  return power;
}

// The numbers of T: those in [2^e, 2^(e+1)) are 2^(e - kFractionBits) apart,
// subnormal numbers as far as those of the smallest normal exponent.
template <typename T>
struct FormatOf;
#define X(name, text, code, storage, compute, fraction, exponent)           \
  template <>                                                               \
  struct FormatOf<storage> {                                                \
    static constexpr int kFractionBits = fraction;                          \
    static constexpr int kSmallestExponent = exponent;                      \
    static constexpr bool kIsComputedIn = std::is_same_v<storage, compute>; \
    static constexpr double SpacingAt(int e) {                              \
      return PowerOfTwo(e - kFractionBits);                                 \
    }                                                                       \
  };
TFBN_FOR_EACH_DTYPE(X)
#undef X
static_assert(FormatOf<float>::SpacingAt(FormatOf<float>::kSmallestExponent) ==
                  std::numeric_limits<float>::denorm_min() &&
              FormatOf<float>::SpacingAt(0) ==
                  std::numeric_limits<float>::epsilon());
static_assert(FormatOf<double>::SpacingAt(0) ==
              std::numeric_limits<double>::epsilon());

// Whether elements are stored in a narrower type than they are computed in:
// half and bfloat16, not float and double. The one predicate of everything that
// differs for them: sums in two levels (two_level_sum.h), steps, stores.
template <typename T>
constexpr bool kIsNarrow = !FormatOf<T>::kIsComputedIn;
static TFBN_HD bool IsNarrow(DType dtype) {
  switch (dtype) {
#define X(name, text, code, storage, compute, fraction, exponent) \
  case DType::k##name:                                            \
    return kIsNarrow<storage>;
    TFBN_FOR_EACH_DTYPE(X)
#undef X
  }
  return false;
}

static TFBN_HD size_t SizeOf(DType dtype) {
  switch (dtype) {
#define X(name, text, code, storage, compute, fraction, exponent) \
  case DType::k##name:                                            \
    return sizeof(storage);
    TFBN_FOR_EACH_DTYPE(X)
#undef X
  }
  return 0;
}

static TFBN_HD float FloatFromBits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}

static TFBN_HD uint32_t BitsFromFloat(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(bits));
  return bits;
}

// The conversion flushes subnormals in the kernels' floating-point state
// (fp_env.h). A compiler that sees the way to double and back would leave out
// both, which GCC did for aarch64: it is not to know the result.
static TFBN_HD double ToDouble(float v) {
  double wide = v;
#if !defined(__CUDACC__) && defined(__x86_64__)
  asm("" : "+x"(wide));
#elif !defined(__CUDACC__) && defined(__aarch64__)
  asm("" : "+w"(wide));
#endif
  return wide;
}
static TFBN_HD double ToDouble(double v) { return v; }

static TFBN_HD double ToDouble(Bfloat16 v) {
  return ToDouble(FloatFromBits(static_cast<uint32_t>(v.bits) << 16));
}

static TFBN_HD double ToDouble(Float16 v) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(v.bits));
#else
  const uint32_t magnitude = v.bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  if (magnitude >=
      0x7c00u) {  // Infinity or NaN: the exponent becomes all ones.
    return FloatFromBits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude <
      0x0400u) {  // Zero or subnormal: an integer multiple of 2^-24.
    const double value = static_cast<double>(magnitude) * 0x1p-24;
    return sign ? -value : value;
  }
  // Rebias the exponent from 15 to 127.
  return FloatFromBits(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
#endif
}

// Conversions to a narrower type round to nearest, ties to even, from the
// double in one step wherever the target is float or double; half and bfloat16
// round twice (double -> float -> T), which is what every other producer of
// these types does.
static TFBN_HD void FromDouble(double v, double* out) { *out = v; }
static TFBN_HD void FromDouble(double v, float* out) {
  *out = static_cast<float>(v);
}

static TFBN_HD void FromDouble(double v, Bfloat16* out) {
#if defined(__CUDA_ARCH__)
  out->bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(v)));
#else
  const uint32_t bits = BitsFromFloat(static_cast<float>(v));
  if ((bits & 0x7fffffffu) >
      0x7f800000u) {  // NaN: keep it quiet, never round it to infinity.
    out->bits = static_cast<uint16_t>((bits >> 16) | 0x0040u);
    return;
  }
  out->bits =
      static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

static TFBN_HD void FromDouble(double v, Float16* out) {
#if defined(__CUDA_ARCH__)
  out->bits = __half_as_ushort(__float2half_rn(static_cast<float>(v)));
#else
  const uint32_t bits = BitsFromFloat(static_cast<float>(v));
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // 65520 and above round to infinity.
  } else if (magnitude < 0x38800000u) {
    // Below the smallest normal 2^-14: adding 0.5 aligns the last kept bit with
    // 2^-24, the spacing of subnormals, so that the addition itself rounds to
    // nearest even.
    half = BitsFromFloat(FloatFromBits(magnitude) + 0.5f) - BitsFromFloat(0.5f);
  } else {
    const uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    half = (rebiased + 0x0fffu + ((rebiased >> 13) & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | half);
#endif
}

// The type that elements of `dtype` are computed in, of coefficients.
static TFBN_HD DType ComputeDTypeOf(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}
#define X(name, text, code, storage, compute, fraction, exponent) \
  static_assert(                                                  \
      std::is_same_v<compute, double> ==                          \
          (DType::k##name == DType::kFloat64) &&                  \
      (std::is_same_v<compute, double> || std::is_same_v<compute, float>));
TFBN_FOR_EACH_DTYPE(X)
#undef X

// Element `i` of an array of `dtype`, as a double.
static TFBN_HD double LoadAsDouble(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
#define X(name, text, code, storage, compute, fraction, exponent) \
  case DType::k##name:                                            \
    return ToDouble(static_cast<const storage*>(data)[i]);
    TFBN_FOR_EACH_DTYPE(X)
#undef X
  }
  return 0;
}

// Elements [first, first + n) as doubles.
static TFBN_HD void LoadAsDoubles(DType dtype, const void* data, int64_t first,
                                  int64_t n, double* out) {
  if (dtype == DType::kFloat32) {  // Vectorizes; the other types are rare.
    const float* from = static_cast<const float*>(data) + first;
    for (int64_t i = 0; i < n; ++i) out[i] = from[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = LoadAsDouble(dtype, data, first + i);
}

// Rounds `value` to `dtype` and stores it as element `i`.
static TFBN_HD void StoreFromDouble(DType dtype, void* data, int64_t i,
                                    double value) {
  switch (dtype) {
#define X(name, text, code, storage, compute, fraction, exponent) \
  case DType::k##name:                                            \
    FromDouble(value, static_cast<storage*>(data) + i);           \
    return;
    TFBN_FOR_EACH_DTYPE(X)
#undef X
  }
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_DTYPE_H_
