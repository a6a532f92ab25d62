// The GPU backend: the contract of cc/core/formulas/batch_norm_grad.h with
// pointers to device memory. Includes nothing of CUDA, so that callers need no
// toolkit.

#ifndef TF_BN_OPS_CC_CUDA_BATCH_NORM_GRAD_H_
#define TF_BN_OPS_CC_CUDA_BATCH_NORM_GRAD_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/formulas/batch_norm_grad.h"

namespace tf_bn_ops {

// Bytes of device memory that a call needs: O(channels * blocks), with blocks a
// number of the view alone. At least 1.
size_t CudaBatchNormGradWorkspace(const View& view, DType dtype);

// For CudaBatchNormGrad: groups of channels as the device's cache and memory
// suggest.
constexpr int64_t kCudaGroupsByDevice = -1;

// Enqueues the call on `stream` (a cudaStream_t) of the current device and
// returns without waiting for it. Pointers of `args` are aligned to their
// element type, `workspace` to 8 bytes; all must stay valid until the stream is
// through. Allocates nothing. The same bits on every run and every device.
// `group_bytes` is for measurements: the second pass follows the first after
// that many bytes of inputs (0: after all), where the view allows it.
// Returns 0, or the cudaError_t of the first launch that failed.
int CudaBatchNormGrad(const BatchNormGradArgs& args, void* workspace,
                      void* stream, int64_t group_bytes = kCudaGroupsByDevice);

// A sentence for an error that CudaBatchNormGrad returned.
const char* CudaErrorMessage(int error);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_BATCH_NORM_GRAD_H_
