// Runs the GPU backend inside an op: the op's stream and memory. Knows nothing
// of ops or layouts. Includes nothing of CUDA.

#ifndef TF_BN_OPS_CC_KERNELS_GPU_GPU_LAUNCH_H_
#define TF_BN_OPS_CC_KERNELS_GPU_GPU_LAUNCH_H_

#include "cc/core/formulas/batch_norm_grad.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {

// Backend of the op kernels (see fused_batch_norm_grad_op.h) on the GPU.
struct GpuBackend {
  // On the GPU TensorFlow's forward op hands on what cuDNN saved: the inverse
  // standard deviation.
  static constexpr bool kVarianceIsRstdInTraining = true;

  // Enqueues `args` on the op's stream, with a workspace from the op's
  // allocator. On failure (no memory, a launch that CUDA refuses) sets the
  // context's status.
  static void Launch(tensorflow::OpKernelContext* context,
                     const BatchNormGradArgs& args);
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_GPU_GPU_LAUNCH_H_
