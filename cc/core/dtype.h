// Element types of the library: the one table, and their scalar conversions.
//
// Functions have internal linkage and are always inlined (TFBN_HD): translation
// units with different -m flags include this header.

#pragma once

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

// The table of element types: X(context, name, text, storage, fraction,
// exponent) with the name of the enumerator, how it is printed, the type of an
// element in memory, the bits of the fraction (the leading 1 is not one of
// them), and the exponent of the smallest normal number. Everything that is
// indexed by DType or switches over it is generated from this table.
#define TFBN_FOR_EACH_DTYPE(X, context)               \
  X(context, Float32, "float32", float, 23, -126)     \
  X(context, Float16, "half", Float16, 10, -14)       \
  X(context, Bfloat16, "bfloat16", Bfloat16, 7, -126) \
  X(context, Float64, "float64", double, 52, -1022)

// The places in the table; part of the C ABI (cc/c_api/tf_bn_ops_c.h).
enum class DType : int32_t {
#define TFBN_ENUMERATOR(unused, name, ...) k##name,
  TFBN_FOR_EACH_DTYPE(TFBN_ENUMERATOR, )
#undef TFBN_ENUMERATOR
};
#define TFBN_COUNT_DTYPE(...) +1
constexpr int kNumDTypes = TFBN_FOR_EACH_DTYPE(TFBN_COUNT_DTYPE, );
#undef TFBN_COUNT_DTYPE
static constexpr const char* kDTypeTexts[] = {
#define TFBN_TEXT(unused, name, text, ...) text,
    TFBN_FOR_EACH_DTYPE(TFBN_TEXT, )
#undef TFBN_TEXT
};

// Executes the statement of the row of `dtype`, where T is its type in memory.
#define TFBN_SWITCH_DTYPE(dtype, statement) \
  switch (dtype) { TFBN_FOR_EACH_DTYPE(TFBN_CASE_OF_DTYPE, statement) }
#define TFBN_CASE_OF_DTYPE(statement, name, text, storage, ...) \
  case DType::k##name: {                                        \
    using T = storage;                                          \
    statement;                                                  \
    break;                                                      \
  }

// The type that elements of T are computed in.
template <typename T>
using ComputeOf = std::conditional_t<std::is_same_v<T, double>, double, float>;
static TFBN_HD DType ComputeDTypeOf(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// Whether elements are stored in a narrower type than they are computed in:
// half and bfloat16, not float and double. The one predicate of everything that
// differs for them: sums in two levels (two_level_sum.h), steps, stores.
template <typename T>
constexpr bool kIsNarrow = !std::is_same_v<T, ComputeOf<T>>;
static TFBN_HD bool IsNarrow(DType dtype) {
  TFBN_SWITCH_DTYPE(dtype, return kIsNarrow<T>);
  return false;
}

static TFBN_HD size_t SizeOf(DType dtype) {
  TFBN_SWITCH_DTYPE(dtype, return sizeof(T));
  return 0;
}

// 2^exponent.
static constexpr double PowerOfTwo(int exponent) {
  double power = 1;
  for (; exponent > 0; --exponent) power *= 2;
  for (; exponent < 0; ++exponent) power /= 2;
  return power;
}

template <typename T>
struct FormatOf;
#define TFBN_FORMAT(unused, name, text, storage, fraction, exponent) \
  template <>                                                        \
  struct FormatOf<storage> {                                         \
    static constexpr DType kDType = DType::k##name;                  \
    static constexpr int kFractionBits = fraction;                   \
    static constexpr int kSmallestExponent = exponent;               \
  };
TFBN_FOR_EACH_DTYPE(TFBN_FORMAT, )
#undef TFBN_FORMAT
// The distance of neighbouring numbers of T in [2^e, 2^(e+1)); of subnormal
// numbers it is the smallest normal exponent's.
template <typename T>
static constexpr double SpacingAt(int e) {
  return PowerOfTwo(e - FormatOf<T>::kFractionBits);
}
static_assert(SpacingAt<float>(FormatOf<float>::kSmallestExponent) ==
                  std::numeric_limits<float>::denorm_min() &&
              SpacingAt<float>(0) == std::numeric_limits<float>::epsilon() &&
              SpacingAt<double>(0) == std::numeric_limits<double>::epsilon());

// Conversions between halves, in the lower bits of 32, and floats, of numbers
// or of the vectors of cc/cpu/isa: all operands of the arithmetic are normal,
// so that flushing of subnormals cannot change a result.
template <typename To, typename From>
static TFBN_HD To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits of the same size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
template <typename F, typename U>
static TFBN_HD F WidenHalf(U half) {
  const U magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
  // Rebias the exponent from 15 to 127; of infinity and NaN it is all ones.
  const U normal = (magnitude << 13) + ((127u - 15u) << 23);
  const U non_finite = 0x7f800000u | ((magnitude & 0x3ffu) << 13);
  // Subnormal halves: 2^-14 (0x38800000) plus the fraction, minus 2^-14.
  const U subnormal =
      BitCast<U>(BitCast<F>(0x38800000u | (magnitude << 13)) - 0x1p-14f);
  const U finite = magnitude < 0x0400u ? subnormal : normal;
  return BitCast<F>(sign | (magnitude >= 0x7c00u ? non_finite : finite));
}
// To nearest even.
template <typename U, typename F>
static TFBN_HD U NarrowToHalf(F value) {
  const U bits = BitCast<U>(value);
  const U sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  // Below the smallest normal 2^-14: adding 0.5 (0x3f000000) aligns the last
  // kept bit with 2^-24, the spacing of subnormals, so that the addition itself
  // rounds.
  const U subnormal = BitCast<U>(BitCast<F>(magnitude) + 0.5f) - 0x3f000000u;
  const U rebiased = magnitude - ((127u - 15u) << 23);
  const U normal = (rebiased + 0x0fffu + ((rebiased >> 13) & 1u)) >> 13;
  const U finite = magnitude < 0x38800000u ? subnormal : normal;
  // 65520 and above round to infinity; NaN stays NaN.
  const U number = magnitude >= 0x477ff000u ? U{} + 0x7c00u : finite;
  const U nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  return sign | (magnitude > 0x7f800000u ? nan : number);
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
  return ToDouble(BitCast<float>(static_cast<uint32_t>(v.bits) << 16));
}

static TFBN_HD double ToDouble(Float16 v) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(v.bits));
#else
  return WidenHalf<float>(uint32_t{v.bits});
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
  const uint32_t bits = BitCast<uint32_t>(static_cast<float>(v));
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
  out->bits =
      static_cast<uint16_t>(NarrowToHalf<uint32_t>(static_cast<float>(v)));
#endif
}

// Element `i` of an array of `dtype`, as a double.
static TFBN_HD double LoadAsDouble(DType dtype, const void* data, int64_t i) {
  TFBN_SWITCH_DTYPE(dtype, return ToDouble(static_cast<const T*>(data)[i]));
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
  TFBN_SWITCH_DTYPE(dtype, FromDouble(value, static_cast<T*>(data) + i));
}

// The same of elements [first, first + n).
static TFBN_HD void StoreFromDoubles(DType dtype, void* data, int64_t first,
                                     int64_t n, const double* values) {
  TFBN_SWITCH_DTYPE(dtype, T* const to = static_cast<T*>(data) + first;
                    for (int64_t i = 0; i < n; ++i)
                        FromDouble(values[i], to + i));
}

}  // namespace tf_bn_ops
