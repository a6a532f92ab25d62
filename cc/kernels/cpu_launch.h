// Runs the CPU backend inside an op kernel: on the intra-op thread pool, with
// workspace from TensorFlow's allocator and the selected implementation. Knows
// nothing of ops or layouts.

#ifndef TF_BN_OPS_CC_KERNELS_CPU_LAUNCH_H_
#define TF_BN_OPS_CC_KERNELS_CPU_LAUNCH_H_

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {

// Backend of the op kernels (see batch_norm_op.h) on the CPU.
struct CpuBackend {
  static constexpr bool kSavesRstd = false;

  // Computes `args`. On failure (no memory for the workspace, an invalid
  // TF_BN_OPS_CPU_ISA) sets the context's status.
  static void Launch(tensorflow::OpKernelContext* context,
                     const BatchNormGradArgs& args);
  static void Launch(tensorflow::OpKernelContext* context,
                     const BatchNormGradGradArgs& args);
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_CPU_LAUNCH_H_
