// The CPU backend: plans a call (plan.h) and executes the plan on the threads
// of an executor. Knows tiles, threads and passes; the arithmetic is the
// formula's (cc/core/formulas), in the kernels of the implementation
// (dispatch.h).

#pragma once

#include <cstddef>

#include "cc/core/call.h"
#include "cc/core/executor.h"
#include "cc/core/host_device.h"
#include "cc/cpu/dispatch.h"

namespace tf_bn_ops {

// Bytes of workspace of any call of one of the three formulas: sums in double
// for each channel and block (two of them at most 1 MiB, or one block, see
// partition.cc), and for each channel a center in double and coefficients in
// the compute type. At most 1 MiB and 72 bytes per channel for the first order
// (120 for float64), 3.5 MiB and 116 bytes per channel for the second (168).
size_t CpuWorkspaceBytes(FormulaKind formula, const View& view, DType dtype)
    TFBN_SHARED("workspace_bytes");

// Computes the outputs of `call`. `workspace` is aligned to 8 bytes and has
// CpuWorkspaceBytes. Results are bitwise identical for any executor and any
// ISA.
void RunOnCpu(const Call& call, const Implementation& implementation,
              Executor& executor, void* workspace) TFBN_SHARED("run");

}  // namespace tf_bn_ops
