// The CUDA kernels of a formula and their launches on a stream: for the files
// in kernels/, each of which instantiates some formulas, so that nvcc compiles
// them side by side.

#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <cstdint>

#include "cc/gpu/device_finish.h"
#include "cc/gpu/device_pass.h"
#include "cc/gpu/gpu_backend.h"
#include "cc/gpu/launch_plan.h"

namespace tf_bn_ops::gpu {

// Two resident blocks per multiprocessor: at most 128 registers per thread.
constexpr int kMinBlocksPerMultiprocessor = 2;

struct DeviceBlock {
  __device__ int64_t Index() const { return blockIdx.x; }
  template <typename F>
  __device__ __forceinline__ void ForEachThread(const F& f) {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};

template <typename P>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerMultiprocessor)
    PassKernel(const __grid_constant__ KernelParams params) {
  __shared__ typename P::Shared shared;
  DeviceBlock block;
  Pass<P>(params, block, &shared);
}

template <typename Formula, typename C>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(const __grid_constant__ KernelParams params) {
  __shared__ FinishShared<Formula> shared;
  DeviceBlock block;
  Finish<Formula, C>(params, block, &shared);
}

struct GpuLauncher {
  void* stream;

  template <typename P>
  int Pass(const KernelParams& params) {
    return Launch(PassKernel<P>, params, params.config.GridSize());
  }
  template <typename Formula, typename T>
  int Finish(const KernelParams& params) {
    return Launch(FinishKernel<Formula, ComputeOf<T>>, params,
                  FinishGridSize(params));
  }
  template <typename Params>
  int Launch(void (*kernel)(Params), Params params, int64_t blocks) {
    if (blocks > INT_MAX) return cudaErrorInvalidConfiguration;
    void* arguments[] = {&params};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                            dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                            arguments, 0, static_cast<cudaStream_t>(stream));
  }
};

template <typename Formula>
int LaunchFormulaOnGpu(const Call& call, void* workspace, void* cuda_stream) {
  GpuLauncher launcher{cuda_stream};
  return LaunchFormula<Formula>(call, workspace, launcher);
}

}  // namespace tf_bn_ops::gpu

#define TFBN_INSTANTIATE_GPU(unused, Formula, name)                    \
  template int tf_bn_ops::gpu::LaunchFormulaOnGpu<tf_bn_ops::Formula>( \
      const tf_bn_ops::Call&, void*, void*);
