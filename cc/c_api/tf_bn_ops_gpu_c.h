/* The CUDA part of the C ABI, in a libtf_bn_ops_core.so that was built with
 * CUDA (make gpu, make gpu-core). The library loads on machines without a GPU
 * or CUDA; calls fail there.
 *
 * Return values and errors are as in tf_bn_ops_c.h.
 */

#pragma once

#include "cc/c_api/tf_bn_ops_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets `bytes` to the device memory that a call needs in addition to its
 * arrays; reads formula, view and dtype. */
TFBN_EXPORT int tfbn_gpu_workspace(const tfbn_call* call, int64_t* bytes,
                                   char* error, size_t error_size);

/* Enqueues one call on `cuda_stream` (a cudaStream_t or CUstream; NULL: the
 * default stream) of the current device and returns without synchronizing. The
 * arrays of `call` and `workspace`, of `workspace_bytes` bytes, are in device
 * memory, but local_count: arrays aligned to their element type, workspace to 8
 * bytes. */
TFBN_EXPORT int tfbn_gpu_run(const tfbn_call* call, void* workspace,
                             int64_t workspace_bytes, void* cuda_stream,
                             char* error, size_t error_size);

/* The same for tfbn_cpu_gather_stats, without a workspace. A device cannot
 * refuse counts: one that is negative, infinite or NaN makes all results
 * NaN. */
TFBN_EXPORT int tfbn_gpu_gather_stats(const tfbn_gather_stats* args,
                                      void* cuda_stream, char* error,
                                      size_t error_size);

#ifdef __cplusplus
}
#endif
