// The calls that the ops of the table make. What no op makes is refused by the
// C ABI, and has no kernel.

#pragma once

#include <cstdint>

#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

// What of a formula a call wants: all of it, its sums alone, or its elements
// alone, from sums that are given.
enum class CallPart { kWhole, kSums, kElements };

// Calls of an op: of these element types, in training or frozen, with the first
// so many activations.
struct OpCalls {
  FormulaKind formula;
  CallPart part;
  bool trains, is_frozen;
  int activations;
  uint32_t dtypes;
};
template <typename... DTypes>
TFBN_HD constexpr uint32_t BitsOf(DTypes... dtypes) {
  return (uint32_t{0} | ... | (uint32_t{1} << static_cast<int>(dtypes)));
}

}  // namespace tf_bn_ops

#include "cc/core/generated/op_call_list.h"

namespace tf_bn_ops {

static TFBN_HD constexpr bool IsOpCall(FormulaKind formula, CallPart part,
                                       DType dtype, bool is_training,
                                       Activation activation) {
  for (const OpCalls& of : kOpCalls) {
    if (of.formula == formula && of.part == part &&
        (is_training ? of.trains : of.is_frozen) &&
        static_cast<int>(activation) < of.activations &&
        (of.dtypes & BitsOf(dtype)) != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace tf_bn_ops
