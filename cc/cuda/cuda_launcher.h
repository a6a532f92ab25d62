// The CUDA kernels of a formula and their launches on a stream: for the files
// in kernels/, each of which instantiates those of some formulas, so that nvcc
// compiles them side by side.

#ifndef TF_BN_OPS_CC_CUDA_CUDA_LAUNCHER_H_
#define TF_BN_OPS_CC_CUDA_CUDA_LAUNCHER_H_

#include <climits>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/formulas/batch_norm_grad_grad.h"
#include "cc/cuda/cuda_backend.h"
#include "cc/cuda/device/device_apply.h"
#include "cc/cuda/device/device_finish.h"
#include "cc/cuda/device/device_reduce.h"
#include "cc/cuda/gpu_runtime.h"
#include "cc/cuda/launch_plan.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Two resident blocks per multiprocessor: at most 128 registers per thread. HIP
// takes the number for wavefronts per SIMD, of which a block of kThreads has
// one on each of the four: the same.
constexpr int kMinBlocksPerMultiprocessor = 2;

// Applying the second order to runs keeps, per item, two words of each of three
// misaligned inputs, or doubles, and the coefficients: 128 registers a thread
// do not hold them (4 to 56 bytes of spills with nvcc 13.0).
template <typename Formula, typename T, bool kChannelsLast, bool kAligned>
constexpr int kMinApplyBlocks =
    std::is_same_v<Formula, BatchNormGradGradFormula> && !kChannelsLast &&
            (!kAligned || std::is_same_v<T, double>)
        ? 1
        : kMinBlocksPerMultiprocessor;
// Limit of static shared memory per block, on every device.
constexpr int kMaxSharedBytes = 48 << 10;

class DeviceBlock {
 public:
  // Read anew every time rather than kept in a register.
  __device__ int64_t Index() const {
#if defined(__CUDA_ARCH__)
    unsigned index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
#else
    return blockIdx.x;
#endif
  }
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
          bool kFused, int kSums>
__global__ void __launch_bounds__(kThreads, kMinBlocksPerMultiprocessor)
    ReduceKernel(const __grid_constant__ KernelParams<Formula> params) {
  __shared__ ReduceShared<Formula, T, kChannelsLast, kFused, kSums> shared;
  static_assert(sizeof(shared) <= kMaxSharedBytes,
                "the sums of this formula need more slices");
  DeviceBlock block;
  Reduce<Formula, T, kChannelsLast, kAligned>(params, block, &shared);
}

template <typename Formula, typename C>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(const __grid_constant__ KernelParams<Formula> params) {
  __shared__ FinishShared<Formula> shared;
  DeviceBlock block;
  Finish<Formula, C>(params, block, &shared);
}

template <typename Formula, typename T, bool kChannelsLast, bool kAligned>
__global__ void __launch_bounds__(
    kThreads, (kMinApplyBlocks<Formula, T, kChannelsLast, kAligned>))
    ApplyKernel(const __grid_constant__ KernelParams<Formula> params) {
  __shared__ ApplyShared<Formula, T> shared;
  DeviceBlock block;
  Apply<Formula, T, kChannelsLast, kAligned>(params, block, &shared);
}

class CudaLauncher {
 public:
  explicit CudaLauncher(cudaStream_t cuda_stream) : cuda_stream_(cuda_stream) {}

  template <typename T, bool kChannelsLast, bool kAligned, bool kFused,
            int kSums, typename Formula>
  int Reduce(const KernelParams<Formula>& params) {
    return Launch(
        ReduceKernel<Formula, T, kChannelsLast, kAligned, kFused, kSums>,
        params, params.config.GridSize());
  }
  template <typename T, typename Formula>
  int Finish(const KernelParams<Formula>& params) {
    return Launch(FinishKernel<Formula, Compute<T>>, params,
                  FinishGridSize(params));
  }
  template <typename T, bool kChannelsLast, bool kAligned, typename Formula>
  int Apply(const KernelParams<Formula>& params) {
    return Launch(ApplyKernel<Formula, T, kChannelsLast, kAligned>, params,
                  params.config.GridSize());
  }

  template <typename Params>
  int Launch(void (*kernel)(Params), const Params& params, int64_t blocks) {
    if (blocks > INT_MAX) return cudaErrorInvalidConfiguration;
    Params copy = params;
    void* arguments[] = {&copy};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                            dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                            arguments, 0, cuda_stream_);
  }

 private:
  const cudaStream_t cuda_stream_;
};

// The runtime looks these attributes up in tables of its own. Where one is
// missing there are no groups.
inline GroupPolicy GroupPolicyOfCurrentDevice() {
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

template <typename Formula>
int LaunchFormulaOnCuda(const typename Formula::Args& args, void* workspace,
                        void* cuda_stream, int64_t group_bytes) {
  const GroupPolicy policy = group_bytes == kCudaGroupsByDevice
                                 ? GroupPolicyOfCurrentDevice()
                                 : GroupPolicy{group_bytes, 0};
  CudaLauncher launcher(static_cast<cudaStream_t>(cuda_stream));
  return LaunchFormula<Formula>(args, workspace, policy, launcher);
}

#define TFBN_INSTANTIATE_CUDA(Formula)                                   \
  template int LaunchFormulaOnCuda<Formula>(const Formula::Args&, void*, \
                                            void*, int64_t);

}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_CUDA_LAUNCHER_H_
