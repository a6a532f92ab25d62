/* The CUDA part of the C ABI, in a libtf_bn_ops_core.so that was built with
 * CUDA (make gpu, make gpu-core). The library loads on machines without a GPU
 * or CUDA; calls fail there.
 *
 * Return values and errors are as in tf_bn_ops_c.h.
 */

#ifndef TF_BN_OPS_CC_C_API_TF_BN_OPS_CUDA_C_H_
#define TF_BN_OPS_CC_C_API_TF_BN_OPS_CUDA_C_H_

#include "cc/c_api/tf_bn_ops_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets `bytes` to the device memory that a call of any of the functions below
 * needs for this view in addition to its arguments. */
TFBN_EXPORT int tfbn_cuda_workspace(int64_t outer, int64_t channels,
                                    int64_t inner, int32_t dtype,
                                    int64_t* bytes, char* error,
                                    size_t error_size);

/* Enqueues one batch-norm gradient on `cuda_stream` (a cudaStream_t or
 * CUstream; NULL: the default stream) of the current device and returns without
 * synchronizing. The arrays of `args` and `workspace`, of `workspace_bytes`
 * bytes, are in device memory: arrays aligned to their element type, workspace
 * to 8 bytes. */
TFBN_EXPORT int tfbn_cuda_batch_norm_grad(const tfbn_batch_norm_grad_args* args,
                                          void* workspace,
                                          int64_t workspace_bytes,
                                          void* cuda_stream, char* error,
                                          size_t error_size);

/* The same for one batch normalization. */
TFBN_EXPORT int tfbn_cuda_batch_norm(const tfbn_batch_norm_args* args,
                                     void* workspace, int64_t workspace_bytes,
                                     void* cuda_stream, char* error,
                                     size_t error_size);

/* The same for one gradient behind an activation. */
TFBN_EXPORT int tfbn_cuda_batch_norm_grad_ex(
    const tfbn_batch_norm_grad_ex_args* args, void* workspace,
    int64_t workspace_bytes, void* cuda_stream, char* error, size_t error_size);

/* The same for one second-order gradient. */
TFBN_EXPORT int tfbn_cuda_batch_norm_grad_grad(
    const tfbn_batch_norm_grad_grad_args* args, void* workspace,
    int64_t workspace_bytes, void* cuda_stream, char* error, size_t error_size);

/* The same for the parts of a synchronised batch normalization. `count` of the
 * statistics of a batch, which follows from the view, is in host memory. */
TFBN_EXPORT int tfbn_cuda_batch_norm_stats(
    const tfbn_batch_norm_stats_args* args, void* workspace,
    int64_t workspace_bytes, void* cuda_stream, char* error, size_t error_size);

TFBN_EXPORT int tfbn_cuda_batch_norm_elemt(
    const tfbn_batch_norm_elemt_args* args, void* workspace,
    int64_t workspace_bytes, void* cuda_stream, char* error, size_t error_size);

TFBN_EXPORT int tfbn_cuda_batch_norm_backward_reduce(
    const tfbn_batch_norm_backward_reduce_args* args, void* workspace,
    int64_t workspace_bytes, void* cuda_stream, char* error, size_t error_size);

TFBN_EXPORT int tfbn_cuda_batch_norm_backward_elemt(
    const tfbn_batch_norm_backward_elemt_args* args, void* workspace,
    int64_t workspace_bytes, void* cuda_stream, char* error, size_t error_size);

/* Without a workspace. A device cannot refuse counts: one that is negative,
 * infinite or NaN makes all results NaN. */
TFBN_EXPORT int tfbn_cuda_batch_norm_gather_stats(
    const tfbn_batch_norm_gather_stats_args* args, void* cuda_stream,
    char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* TF_BN_OPS_CC_C_API_TF_BN_OPS_CUDA_C_H_ */
