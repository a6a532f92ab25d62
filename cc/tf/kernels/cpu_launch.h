// Runs the CPU backend inside an op kernel: on the intra-op thread pool, with
// workspace from TensorFlow's allocator and the selected implementation. Knows
// nothing of ops or layouts.

#pragma once

#include "cc/core/call.h"
#include "cc/core/gather_stats.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {

// Backend of the op kernels (see batch_norm_op.h) on the CPU.
struct CpuBackend {
  static constexpr const char* kDevice = "CPU";
  static constexpr bool kSavesRstd = false;

  // Computes `call`. On failure (no memory for the workspace, an invalid
  // TF_BN_OPS_CPU_ISA) sets the context's status.
  static void Launch(tensorflow::OpKernelContext* context, const Call& call);

  // Combines the statistics of the parts of a batch; refuses counts that are
  // none.
  static void Launch(tensorflow::OpKernelContext* context,
                     const GatherStatsArgs& args);
};

}  // namespace tf_bn_ops
