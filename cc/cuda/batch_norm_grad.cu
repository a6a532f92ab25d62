// Launches the block programs of programs.h as CUDA kernels.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <climits>

#include "cc/cuda/batch_norm_grad.h"
#include "cc/cuda/schedule.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Two blocks at a time on a multiprocessor, so at most 128 registers a thread.
constexpr int kMinBlocksPerMultiprocessor = 2;

class DeviceBlock {
 public:
  __device__ int64_t Index() const { return blockIdx.x; }
  template <typename F>
  __device__ __forceinline__ void ForEach(const F& f) {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};

template <typename T, bool kRows, bool kAligned, bool kWrite>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerMultiprocessor)
    ReduceKernel(const __grid_constant__ Params params) {
  __shared__ ReduceShared<T, kRows> shared;
  DeviceBlock block;
  Reduce<T, kRows, kAligned, kWrite>(params, block, shared);
}

template <typename C>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(const __grid_constant__ Params params) {
  __shared__ FinishShared shared;
  DeviceBlock block;
  Finish<C>(params, block, shared);
}

template <typename T, bool kRows, bool kAligned>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerMultiprocessor)
    ApplyKernel(const __grid_constant__ Params params) {
  DeviceBlock block;
  Apply<T, kRows, kAligned>(params, block);
}

class StreamLauncher {
 public:
  explicit StreamLauncher(cudaStream_t stream) : stream_(stream) {}

  template <typename T, bool kRows, bool kAligned, bool kWrite>
  int Reduce(const Params& params, int64_t blocks) {
    return Launch(ReduceKernel<T, kRows, kAligned, kWrite>, params, blocks);
  }
  template <typename C>
  int Finish(const Params& params, int64_t blocks) {
    return Launch(FinishKernel<C>, params, blocks);
  }
  template <typename T, bool kRows, bool kAligned>
  int Apply(const Params& params, int64_t blocks) {
    return Launch(ApplyKernel<T, kRows, kAligned>, params, blocks);
  }

 private:
  int Launch(void (*kernel)(Params), const Params& params, int64_t blocks) {
    if (blocks > INT_MAX) return cudaErrorInvalidConfiguration;
    Params copy = params;
    void* arguments[] = {&copy};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                            dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                            arguments, 0, stream_);
  }

  const cudaStream_t stream_;
};

// Attributes of a device are looked up in the runtime's own tables. Where one
// is missing there are no groups.
DeviceTraits TraitsOfCurrentDevice() {
  int device = 0, l2_bytes = 0, kilohertz = 0, bus_bits = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device) ==
          cudaSuccess &&
      cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device) ==
          cudaSuccess &&
      cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth,
                             device) == cudaSuccess;
  if (!known || kilohertz <= 0 || bus_bits <= 0) return DeviceTraits();
  // Two transfers a cycle on every line.
  return TraitsOf(l2_bytes, 2 * 1e3 * kilohertz * (bus_bits / 8));
}

}  // namespace
}  // namespace cuda

size_t CudaBatchNormGradWorkspace(const View& view, DType dtype) {
  return std::max<size_t>(1, cuda::WorkspaceBytes(view, dtype));
}

int CudaBatchNormGrad(const BatchNormGradArgs& args, void* workspace,
                      void* stream, int64_t group_bytes) {
  cuda::DeviceTraits traits;
  if (group_bytes == kCudaGroupsByDevice) {
    traits = cuda::TraitsOfCurrentDevice();
  } else {
    traits.group_bytes = group_bytes;
  }
  cuda::StreamLauncher launcher(static_cast<cudaStream_t>(stream));
  return cuda::Run(args, workspace, traits, launcher);
}

const char* CudaErrorMessage(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

}  // namespace tf_bn_ops
