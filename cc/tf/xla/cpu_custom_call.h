// A call of the core as a custom call of XLA's typed FFI from a program that
// XLA compiles for the CPU: it runs this library's CPU backend, and results are
// bitwise what the op gives that is not compiled.
//
// Its attributes are the struct of the call up to its arrays, and the roles of
// its operands and results; the last result is the workspace. What they mean is
// a matter of the version and the layout that the target's name ends with: for
// a compiled program that another build has stored there is no handler, which
// XLA says. Includes nothing of XLA, whose headers take most of a minute to
// compile.

#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/core/call.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

constexpr char kCallTarget[] = "tf_bn_ops.call_" TFBN_BUILD;
// The call of BatchNormGatherStats, which has no view.
constexpr char kGatherStatsTarget[] =
    "tf_bn_ops.batch_norm_gather_stats_" TFBN_BUILD;

// As 64-bit numbers, so that none is rounded on its way through text.
constexpr size_t kCallNumbers = offsetof(tfbn_call, x) / sizeof(int64_t);
static_assert(kCallNumbers * sizeof(int64_t) == offsetof(tfbn_call, x));

}  // namespace tf_bn_ops
