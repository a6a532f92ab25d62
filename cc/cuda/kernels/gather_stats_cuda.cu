// The CUDA kernel that combines the statistics of the parts of a batch.

#include "cc/cuda/cuda_launcher.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    GatherKernel(const __grid_constant__ GatherStatsArgs args) {
  DeviceBlock block;
  Gather(args, block);
}

}  // namespace
}  // namespace cuda

int CudaGatherStats(const GatherStatsArgs& args, void* cuda_stream) {
  return cuda::CudaLauncher{static_cast<cudaStream_t>(cuda_stream)}.Launch(
      cuda::GatherKernel, args, cuda::GatherGridSize(args));
}

}  // namespace tf_bn_ops
