// Two-level sums: the accuracy of sums over elements that are not float64,
// where a backend adds them up in two levels.
//
// The terms of a channel are added up in chains of at most kTwoLevelChain, in
// float32, in a fixed order and without fused multiply-add. The sum of a chain
// is converted to double once, and the chains are added up in double. With the
// center c that elements are measured from, rounded to float32, each of
// d = x - c and dy * d is one rounding, so that with u = 2^-24
//
//   |error of sum(dy * d)| <= (kTwoLevelChain - 1 + 2) * u * sum|dy * d|
//
//   |error of sum(dy)| <= (kTwoLevelChain - 1) * u * sum|dy|
//
// besides what double rounds; products of d with itself carry one rounding
// more. Where c is not the center itself, Formula::Recenter adds what is
// missing, in double. float64 elements are added up in double throughout.
//
// float32 ends at 2^128, which half never reaches and others do not
// ordinarily. Where the float32 sum of a chain is not finite, the chain is
// added up again, in double: results are infinite and NaN where double makes
// them so.

#pragma once

#include <limits>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/partition.h"

namespace tf_bn_ops {

// The type of a term: of a chain, or, on CPUs, of elements that are added up in
// double. On CPUs float32 elements are: there two levels save no time.
template <typename T>
using TermOf = std::conditional_t<kIsNarrow<T>, float, double>;

// Numbers of T are below 2^(kEndExponent<T>): an exponent's range is
// symmetrical but for the one that is left to infinity and NaN, which some
// types give to numbers.
template <typename T>
constexpr int kEndExponent = 3 - FormatOf<T>::kSmallestExponent;
// Centers of such elements that are beyond 2^32 are no statistic of theirs.
constexpr int kEndCenterExponent = 32;
// Whether a chain may leave the range of float32.
template <typename T>
constexpr bool kChainMayOverflow =
    kEndExponent<T> +
        (kEndExponent<T> > kEndCenterExponent ? kEndExponent<T>
                                              : kEndCenterExponent) +
        /*terms=*/4 >
    std::numeric_limits<float>::max_exponent;
static_assert(kTwoLevelChain < 16);
static_assert(!kChainMayOverflow<Float16> && kChainMayOverflow<Bfloat16> &&
              kChainMayOverflow<float>);

// The largest center that chains of T are measured from.
template <typename T>
constexpr double kLargestCenter =
    kChainMayOverflow<T> ? double{std::numeric_limits<float>::max()}
                         : PowerOfTwo(kEndCenterExponent);

// The center that chains measure elements of `dtype` from: `center`, rounded to
// float. Zero where that has no such number; and for types of a small range,
// where products with it might leave the range of float32: it is no statistic
// of such elements.
static TFBN_HD double ChainCenter(DType dtype, double center) {
  if (dtype == DType::kFloat64 || !IsFinite(center)) return center;
  double largest = 0;
  TFBN_SWITCH_DTYPE(dtype, largest = kLargestCenter<T>);
  const bool beyond = center > largest || center < -largest;
  return beyond ? 0 : static_cast<double>(static_cast<float>(center));
}

// Whether a center is so far from the mean that sums around it are added up
// again, in double and around the mean: at a distance of d the variance v is
// off by up to u * (10 * (v + d^2) + 16 * d * sqrt(v + d^2)), at 6 deviations
// 2^-14 (docs/math.md). Even the median of three elements may be that far, in a
// channel of few large outliers.
constexpr double kFarCenter = 6;  // Deviations.
static TFBN_HD bool IsFarCenter(double center, const BatchStatistics& of) {
  const double distance = of.mean - center;
  return distance * distance > kFarCenter * kFarCenter * of.variance &&
         IsFinite(of.variance);
}

}  // namespace tf_bn_ops
