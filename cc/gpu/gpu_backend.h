// The CUDA backend: all formulas of cc/core/formulas on device memory. Includes
// nothing of CUDA, so that callers need no toolkit.

#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "cc/core/gather_stats.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// Bytes of device memory that any call of a formula needs, at least 1:
// O(channels * splits), where splits is a function of the view and the dtype
// alone.
size_t GpuWorkspaceBytes(FormulaKind formula, const View& view, DType dtype);

// Enqueues the call on `cuda_stream` (a cudaStream_t) of the current device and
// returns without synchronizing. Arrays are aligned to their element type,
// `workspace` to 8 bytes; all must stay valid until the stream has executed the
// call. local_count is in host memory. Allocates nothing. Results are bitwise
// identical on every run and every device.
// Returns 0, or the cudaError_t of the first launch that failed.
int RunOnGpu(const Call& call, void* workspace, void* cuda_stream);

// The same for the statistics of the parts of a batch. A device cannot
// refuse counts, so one that is negative, infinite or NaN makes all results
// NaN.
int GpuGatherStats(const GatherStatsArgs& args, void* cuda_stream);

// One sentence for an error that one of these returned.
const char* GpuErrorMessage(int error);

namespace gpu {

// RunOnGpu of a call that this formula computes. Defined in kernels/.
template <typename Formula>
int LaunchFormulaOnGpu(const Call& call, void* workspace, void* cuda_stream);

}  // namespace gpu
}  // namespace tf_bn_ops
