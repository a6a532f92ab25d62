// The CUDA backend: all formulas of cc/core/formulas on device memory. Includes
// nothing of CUDA, so that callers need no toolkit.

#ifndef TF_BN_OPS_CC_CUDA_CUDA_BACKEND_H_
#define TF_BN_OPS_CC_CUDA_CUDA_BACKEND_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/gather_stats.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// Bytes of device memory that a call needs, at least 1: O(channels * splits),
// where splits is a function of the view and the dtype alone.
template <typename Formula>
size_t CudaWorkspaceBytes(const View& view, DType dtype);

// Enqueues the call on `cuda_stream` (a cudaStream_t) of the current device and
// returns without synchronizing. Pointers of `args` are aligned to their
// element type, `workspace` to 8 bytes; all must stay valid until the stream
// has executed the call. Allocates nothing. Results are bitwise identical on
// every run and every device.
// Returns 0, or the cudaError_t of the first launch that failed.
template <typename Formula>
int CudaLaunch(const typename Formula::Args& args, void* workspace,
               void* cuda_stream);

// The same of statistics from those of the parts of a batch. A device cannot
// refuse counts, so one that is negative, infinite or NaN makes all results
// NaN.
int CudaGatherStats(const GatherStatsArgs& args, void* cuda_stream);

// One sentence for an error that one of these returned.
const char* CudaErrorMessage(int error);

namespace cuda {

// CudaLaunch of this very formula, see fitting_formula.h. Defined in kernels/.
template <typename Formula>
int LaunchFormulaOnCuda(const typename Formula::Args& args, void* workspace,
                        void* cuda_stream);

}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_CUDA_BACKEND_H_
