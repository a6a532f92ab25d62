// Runs the CPU backend inside an op: TensorFlow's thread pool and memory, the
// forced implementation. Knows nothing of ops or layouts.

#ifndef TF_BN_OPS_CC_KERNELS_CPU_LAUNCH_H_
#define TF_BN_OPS_CC_KERNELS_CPU_LAUNCH_H_

#include "cc/core/batch_norm_grad.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_bn_ops {

// The library's name for an element type; all types that the ops are registered
// for.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<Eigen::half> {
  static constexpr DType value = DType::kFloat16;
};
template <>
struct DTypeOf<Eigen::bfloat16> {
  static constexpr DType value = DType::kBfloat16;
};

// Computes `args` on the op's Eigen thread pool. On failure (no memory for the
// workspace, an unusable TF_BN_OPS_CPU_ISA) sets the context's status.
void LaunchCpuBatchNormGrad(tensorflow::OpKernelContext* context,
                            const BatchNormGradArgs& args);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_CPU_LAUNCH_H_
