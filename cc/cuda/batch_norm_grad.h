// The GPU backend: the contract of cc/core/batch_norm_grad.h with pointers to
// device memory. Includes nothing of CUDA, so that callers need no toolkit.

#ifndef TF_BN_OPS_CC_CUDA_BATCH_NORM_GRAD_H_
#define TF_BN_OPS_CC_CUDA_BATCH_NORM_GRAD_H_

#include <cstddef>

#include "cc/core/batch_norm_grad.h"

namespace tf_bn_ops {

// Bytes of device memory that a call needs: O(channels * blocks), with blocks a
// number of the view alone. At least 1.
size_t CudaBatchNormGradWorkspace(const View& view, DType dtype);

// Enqueues the call on `stream` (a cudaStream_t) of the current device and
// returns without waiting for it. Pointers of `args` are aligned to their
// element type, `workspace` to 8 bytes; all must stay valid until the stream is
// through. Allocates nothing. The same bits on every run and every device.
// Returns 0, or the cudaError_t of the first launch that failed.
int CudaBatchNormGrad(const BatchNormGradArgs& args, void* workspace,
                      void* stream);

// A sentence for an error that CudaBatchNormGrad returned.
const char* CudaErrorMessage(int error);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_BATCH_NORM_GRAD_H_
