// The CUDA kernel that combines the statistics of the parts of a batch.

#include "cc/cuda/cuda_launcher.h"

namespace tf_bn_ops {

static __global__ void __launch_bounds__(cuda::kThreads)
    GatherKernel(const __grid_constant__ GatherStatsArgs args) {
  cuda::DeviceBlock block;
  cuda::Gather(args, block);
}

int CudaGatherStats(const GatherStatsArgs& args, void* cuda_stream) {
  return cuda::CudaLauncher{cuda_stream}.Launch(GatherKernel, args,
                                                cuda::GatherGridSize(args));
}

}  // namespace tf_bn_ops
