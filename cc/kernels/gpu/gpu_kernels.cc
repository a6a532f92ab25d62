// Registers the GPU kernels of the forward and first-order ops; the second
// order has none.

#include <cstdint>

#include "cc/kernels/batch_norm_op.h"
#include "cc/kernels/gpu/gpu_launch.h"
#include "cc/ops/batch_norm_training_backprop.h"
#include "cc/ops/fused_batch_norm.h"
#include "cc/ops/fused_batch_norm_grad.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

#define REGISTER_FUSED_BATCH_NORM(op, T, U) \
  REGISTER_KERNEL_BUILDER(                  \
      Name("TfBnOps>" op)                   \
          .Device(tensorflow::DEVICE_GPU)   \
          .TypeConstraint<T>("T")           \
          .TypeConstraint<float>(U),        \
      BatchNormOp<FusedBatchNormSpec, T, float, GpuBackend>);
TFBN_FUSED_BATCH_NORM_KERNELS(REGISTER_FUSED_BATCH_NORM)

#define REGISTER_FUSED_BATCH_NORM_EX(T, side_inputs)                \
  REGISTER_KERNEL_BUILDER(                                          \
      Name("TfBnOps>FusedBatchNormEx")                              \
          .Device(tensorflow::DEVICE_GPU)                           \
          .TypeConstraint<T>("T")                                   \
          .AttrConstraint<int64_t>("num_side_inputs", side_inputs), \
      BatchNormOp<FusedBatchNormExSpec<side_inputs>, T, float, GpuBackend>);
TFBN_FUSED_BATCH_NORM_EX_KERNELS(REGISTER_FUSED_BATCH_NORM_EX)

#define REGISTER_FUSED_BATCH_NORM_GRAD(op, T) \
  REGISTER_KERNEL_BUILDER(                    \
      Name("TfBnOps>" op)                     \
          .Device(tensorflow::DEVICE_GPU)     \
          .TypeConstraint<T>("T"),            \
      BatchNormOp<FusedBatchNormGradSpec, T, float, GpuBackend>);
TFBN_FUSED_BATCH_NORM_GRAD_KERNELS(REGISTER_FUSED_BATCH_NORM_GRAD)

#define REGISTER_BATCH_NORM_TRAINING_BACKPROP(T) \
  REGISTER_KERNEL_BUILDER(                       \
      Name("TfBnOps>BatchNormTrainingBackprop")  \
          .Device(tensorflow::DEVICE_GPU)        \
          .TypeConstraint<T>("T"),               \
      BatchNormOp<BatchNormTrainingBackpropSpec, T, T, GpuBackend>);
TFBN_BATCH_NORM_TRAINING_BACKPROP_KERNELS(REGISTER_BATCH_NORM_TRAINING_BACKPROP)

}  // namespace
}  // namespace tf_bn_ops
