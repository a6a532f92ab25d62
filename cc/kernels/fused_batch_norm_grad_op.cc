// Registers the CPU kernels of TfBnOps>FusedBatchNormGrad, V2 and V3.

#include "cc/kernels/fused_batch_norm_grad_op.h"

#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

REGISTER_KERNEL_BUILDER(Name("TfBnOps>FusedBatchNormGrad")
                            .Device(tf::DEVICE_CPU)
                            .TypeConstraint<float>("T"),
                        FusedBatchNormGradOp<float>);

#define REGISTER_CPU_KERNEL(op, T)                         \
  REGISTER_KERNEL_BUILDER(Name("TfBnOps>" op)              \
                              .Device(tf::DEVICE_CPU)      \
                              .TypeConstraint<T>("T")      \
                              .TypeConstraint<float>("U"), \
                          FusedBatchNormGradOp<T>)
#define REGISTER_CPU_KERNELS(op)            \
  REGISTER_CPU_KERNEL(op, Eigen::half);     \
  REGISTER_CPU_KERNEL(op, Eigen::bfloat16); \
  REGISTER_CPU_KERNEL(op, float)

REGISTER_CPU_KERNELS("FusedBatchNormGradV2");
REGISTER_CPU_KERNELS("FusedBatchNormGradV3");

}  // namespace
}  // namespace tf_bn_ops
