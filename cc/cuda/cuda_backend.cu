// The CUDA kernels and their launches on a stream.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <climits>

#include "cc/cuda/cuda_backend.h"
#include "cc/cuda/device_apply.h"
#include "cc/cuda/device_finish.h"
#include "cc/cuda/device_reduce.h"
#include "cc/cuda/launch_plan.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Two resident blocks per multiprocessor: at most 128 registers per thread.
constexpr int kMinBlocksPerMultiprocessor = 2;
// Limit of static shared memory per block, on every device.
constexpr int kMaxSharedBytes = 48 << 10;

class DeviceBlock {
 public:
  __device__ int64_t Index() const { return blockIdx.x; }
  template <typename F>
  __device__ __forceinline__ void ForEachThread(const F& f) {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  template <typename F>
  __device__ __forceinline__ void LastPhase(const F& f) {
    f(static_cast<int>(threadIdx.x));
  }
};

template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          bool kFused>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerMultiprocessor)
    ReduceKernel(const __grid_constant__ KernelParams<Formula> params) {
  __shared__ ReduceShared<Formula, T, kChannelsLast, kFused> shared;
  static_assert(sizeof(shared) <= kMaxSharedBytes,
                "the sums of this formula need vectors of fewer elements");
  DeviceBlock block;
  Reduce<Formula, T, kChannelsLast, kAligned, kFused>(params, block, &shared);
}

template <typename Formula, typename C>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(const __grid_constant__ KernelParams<Formula> params) {
  __shared__ FinishShared<Formula> shared;
  DeviceBlock block;
  Finish<Formula, C>(params, block, &shared);
}

template <typename Formula, typename T, bool kChannelsLast, bool kAligned>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerMultiprocessor)
    ApplyKernel(const __grid_constant__ KernelParams<Formula> params) {
  __shared__ ApplyShared<Formula, T> shared;
  DeviceBlock block;
  Apply<Formula, T, kChannelsLast, kAligned>(params, block, &shared);
}

template <typename Formula>
class CudaLauncher {
 public:
  using Params = KernelParams<Formula>;
  explicit CudaLauncher(cudaStream_t cuda_stream) : cuda_stream_(cuda_stream) {}

  template <typename T, bool kChannelsLast, bool kAligned, bool kFused>
  int Reduce(const Params& params) {
    return Launch(ReduceKernel<Formula, T, kChannelsLast, kAligned, kFused>,
                  params, params.config.GridSize());
  }
  template <typename T>
  int Finish(const Params& params) {
    return Launch(FinishKernel<Formula, Compute<T>>, params,
                  FinishGridSize(params));
  }
  template <typename T, bool kChannelsLast, bool kAligned>
  int Apply(const Params& params) {
    return Launch(ApplyKernel<Formula, T, kChannelsLast, kAligned>, params,
                  params.config.GridSize());
  }

 private:
  int Launch(void (*kernel)(Params), const Params& params, int64_t blocks) {
    if (blocks > INT_MAX) return cudaErrorInvalidConfiguration;
    Params copy = params;
    void* arguments[] = {&copy};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                            dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                            arguments, 0, cuda_stream_);
  }

  const cudaStream_t cuda_stream_;
};

// The runtime looks these attributes up in tables of its own. Where one is
// missing there are no groups.
GroupPolicy GroupPolicyOfCurrentDevice() {
  int device = 0, l2_bytes = 0, kilohertz = 0, bus_bits = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device) ==
          cudaSuccess &&
      cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device) ==
          cudaSuccess &&
      cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth,
                             device) == cudaSuccess;
  if (!known || kilohertz <= 0 || bus_bits <= 0) return GroupPolicy();
  // Double data rate: two transfers per cycle and line.
  return MakeGroupPolicy(l2_bytes, 2 * 1e3 * kilohertz * (bus_bits / 8));
}

}  // namespace
}  // namespace cuda

template <typename Formula>
size_t CudaWorkspaceBytes(const View& view, DType dtype) {
  return std::max<size_t>(1, cuda::WorkspaceBytes<Formula>(view, dtype));
}

template <typename Formula>
int CudaLaunch(const typename Formula::Args& args, void* workspace,
               void* cuda_stream, int64_t group_bytes) {
  const cuda::GroupPolicy policy = group_bytes == kCudaGroupsByDevice
                                       ? cuda::GroupPolicyOfCurrentDevice()
                                       : cuda::GroupPolicy{group_bytes, 0};
  cuda::CudaLauncher<Formula> launcher(static_cast<cudaStream_t>(cuda_stream));
  return cuda::Launch<Formula>(args, workspace, policy, launcher);
}

#define TFBN_INSTANTIATE_CUDA(Formula)                             \
  template size_t CudaWorkspaceBytes<Formula>(const View&, DType); \
  template int CudaLaunch<Formula>(const Formula::Args&, void*, void*, int64_t);
TFBN_FOR_EACH_CUDA_FORMULA(TFBN_INSTANTIATE_CUDA)

const char* CudaErrorMessage(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

}  // namespace tf_bn_ops
