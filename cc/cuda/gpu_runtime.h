// The GPU runtime that the kernels are launched with: CUDA's, or, compiled by
// hipcc (make hip), HIP's under CUDA's names.

#ifndef TF_BN_OPS_CC_CUDA_GPU_RUNTIME_H_
#define TF_BN_OPS_CC_CUDA_GPU_RUNTIME_H_

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>

#define cudaErrorInvalidConfiguration hipErrorInvalidConfiguration
#define cudaError_t hipError_t
#define cudaGetErrorString hipGetErrorString
#define cudaLaunchKernel hipLaunchKernel
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemcpyDeviceToDevice hipMemcpyDeviceToDevice
#define cudaStream_t hipStream_t
#define cudaSuccess hipSuccess
// Parameters of kernels are constant memory anyway.
#define __grid_constant__
#else
#include <cuda_runtime_api.h>
#endif

#endif  // TF_BN_OPS_CC_CUDA_GPU_RUNTIME_H_
