/* The GPU part of the C ABI: in libtf_bn_ops_core.so where it was built with
 * CUDA (make gpu, make gpu-core). The library loads on machines without a GPU
 * or CUDA; only the calls fail there.
 *
 * Return values and errors are as in tf_bn_ops_c.h.
 */

#ifndef TF_BN_OPS_CC_C_API_TF_BN_OPS_CUDA_C_H_
#define TF_BN_OPS_CC_C_API_TF_BN_OPS_CUDA_C_H_

#include "cc/c_api/tf_bn_ops_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets `bytes` to the device memory that tfbn_cuda_batch_norm_grad needs for
 * this view beside its arguments. */
TFBN_EXPORT int tfbn_cuda_workspace(int64_t outer, int64_t channels,
                                    int64_t inner, int32_t dtype,
                                    int64_t* bytes, char* error,
                                    size_t error_size);

/* For group_bytes: what the device's cache and memory suggest. */
#define TFBN_CUDA_GROUPS_BY_DEVICE (-1)

/* Enqueues one batch-norm gradient on `stream` (a cudaStream_t or CUstream;
 * NULL: the default stream) of the current device and returns without waiting.
 * The arrays of `args` and `workspace`, of `workspace_bytes` bytes, lie in
 * device memory: arrays aligned to their element type, workspace to 8 bytes.
 * `group_bytes`: channels-first, in training, the second pass follows the first
 * after that many bytes of inputs, so that it reads the L2 cache; 0: after all.
 * It changes no bit. */
TFBN_EXPORT int tfbn_cuda_batch_norm_grad(const tfbn_batch_norm_grad_args* args,
                                          void* workspace,
                                          int64_t workspace_bytes, void* stream,
                                          int64_t group_bytes, char* error,
                                          size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* TF_BN_OPS_CC_C_API_TF_BN_OPS_CUDA_C_H_ */
