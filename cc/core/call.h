// One call: formula, view, element types, attributes and arrays. Op kernels,
// XLA's custom call and the C ABI fill it in; it goes to
// libtf_bn_ops_core.so, and plan, driver, kernels and the formulas read it.

#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/generated/roles.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// Whether the derivative takes other values than 0 and 1: it follows from what
// the activation is applied to, not from its result (smooth_activation.h).
constexpr TFBN_HD bool IsSmooth(Activation activation) {
  return static_cast<int>(activation) >= kNumClamps;
}

// The struct of the C ABI, with values for what a call does not say.
struct Call : tfbn_call {
  TFBN_HD Call() : tfbn_call{} {
    is_training = 1;
    bessel_correction = 1;
    exponential_avg_factor = 1;
  }
  explicit Call(const tfbn_call& call) : tfbn_call(call) {}
};

// Whether the sums of a gradient are given, over the batches of all replicas:
// its second pass alone is computed.
static TFBN_HD bool HasTotals(const tfbn_call& call) {
  return call.sum_dy != nullptr;
}

// The array of a role.
inline void*& ArrayOf(tfbn_call& call, Role role) {
  // One pointer after the other, in the order of the roles.
  static_assert(offsetof(tfbn_call, x) + kNumRoles * sizeof(void*) ==
                sizeof(tfbn_call));
  char* const arrays = reinterpret_cast<char*>(&call) + offsetof(tfbn_call, x);
  return reinterpret_cast<void**>(arrays)[static_cast<int>(role)];
}
inline const void* ArrayOf(const tfbn_call& call, Role role) {
  return ArrayOf(const_cast<tfbn_call&>(call), role);
}

static TFBN_HD DType StatisticsDTypeOf(const tfbn_call& call) {
  return call.float64_statistics ? DType::kFloat64 : call.stat_dtype;
}

// The element type of the array of a role.
inline DType DTypeOf(const tfbn_call& call, Role role) {
  switch (kRoles[static_cast<int>(role)].kind) {
    case ArrayKind::kView:
      return call.dtype;
    case ArrayKind::kVector:
      return call.stat_dtype;
    case ArrayKind::kStatistics:
      return StatisticsDTypeOf(call);
    case ArrayKind::kCoefficients:
      return ComputeDTypeOf(call.dtype);
    case ArrayKind::kWide:
    case ArrayKind::kScalar:
      break;
  }
  return DType::kFloat64;
}

// local_count of a batch.
inline double LocalCountOf(const View& view) {
  return NumElements(view) == 0 ? 0
                                : static_cast<double>(ElementsPerChannel(view));
}

using GatherStatsArgs = tfbn_gather_stats;

}  // namespace tf_bn_ops
