// The CUDA kernel that combines the statistics of the parts of a batch.

#include "cc/gpu/gpu_launcher.h"

namespace tf_bn_ops {

static __global__ void __launch_bounds__(gpu::kThreads)
    GatherKernel(const __grid_constant__ GatherStatsArgs args) {
  gpu::DeviceBlock block;
  gpu::Gather(args, block);
}

int GpuGatherStats(const GatherStatsArgs& args, void* cuda_stream) {
  return gpu::GpuLauncher{cuda_stream}.Launch(GatherKernel, args,
                                              gpu::GatherGridSize(args));
}

}  // namespace tf_bn_ops
