// Runs the GPU backend inside an op: on its CUDA stream, in its device memory.
// Knows nothing of ops or layouts. Includes nothing of CUDA.

#ifndef TF_BN_OPS_CC_KERNELS_GPU_GPU_LAUNCH_H_
#define TF_BN_OPS_CC_KERNELS_GPU_GPU_LAUNCH_H_

#include "cc/core/call.h"
#include "cc/core/gather_stats.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {

// Backend of the op kernels (see batch_norm_op.h) on the GPU.
struct GpuBackend {
  // cuDNN saves the inverse standard deviation, and TensorFlow's forward op
  // returns it.
  static constexpr bool kSavesRstd = true;

  // Enqueues `call` on the op's stream, with a workspace from the op's
  // allocator. On failure (no memory, a launch that CUDA refuses) sets the
  // context's status.
  static void Launch(tensorflow::OpKernelContext* context, const Call& call);

  // Combines the statistics of the parts of a batch, without a workspace.
  static void Launch(tensorflow::OpKernelContext* context,
                     const GatherStatsArgs& args);
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_GPU_GPU_LAUNCH_H_
