// Two-level sums: the accuracy of sums over elements that are not float64,
// where a backend adds them up in two levels.
//
// The terms of a channel are added up in runs of at most kTwoLevelRun, in
// float32, in a fixed order and without fused multiply-add. The sum of a run is
// converted to double once, and the runs are added up in double. With the
// center c that elements are measured from, rounded to float32, each of
// d = x - c and dy * d is one rounding, so that with u = 2^-24
//
//   |error of sum(dy * d)| <= (kTwoLevelRun - 1 + 2) * u * sum|dy * d|
//
//   |error of sum(dy)| <= (kTwoLevelRun - 1) * u * sum|dy|
//
// besides what double rounds; products of d with itself carry one rounding
// more. Where c is not the center itself, Formula::Recenter adds what is
// missing, in double. float64 elements are added up in double throughout.
//
// float32 ends at 2^128, which half never reaches and others do not
// ordinarily. Where the float32 sum of a run is not finite, the run is added up
// again, in double: results are infinite and NaN where double makes them so.

#ifndef TF_BN_OPS_CC_CORE_TWO_LEVEL_SUM_H_
#define TF_BN_OPS_CC_CORE_TWO_LEVEL_SUM_H_

#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

// Maximum terms of a run. TWO_LEVEL_RUN of tf_bn_ops/harness/bounds.py.
constexpr int kTwoLevelRun = 8;

// Whether a run may leave the range of float32.
template <typename T>
constexpr bool kRunMayOverflow = !std::is_same_v<T, Float16>;

// The center that runs measure elements of `dtype` from: `center`, rounded to
// float. Zero where that has no such number; and for half, where products with
// it might leave the range of float32: it is no statistic of such elements.
static TFBN_HD double RunCenter(DType dtype, double center) {
  if (dtype == DType::kFloat64 || !IsFinite(center)) return center;
  const double largest = dtype == DType::kFloat16 ? 0x1p32 : 0x1.fffffep127;
  const bool beyond = center > largest || center < -largest;
  return beyond ? 0 : static_cast<double>(static_cast<float>(center));
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_TWO_LEVEL_SUM_H_
