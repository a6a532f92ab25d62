// Registers the kernels of the fused ops for the device TFBN_KERNEL_DEVICE, on
// the backend TFBN_KERNEL_BACKEND: included by one file per device, which
// defines both. All devices have kernels of the same ops and types.

#ifndef TF_BN_OPS_CC_KERNELS_FUSED_REGISTRATIONS_H_
#define TF_BN_OPS_CC_KERNELS_FUSED_REGISTRATIONS_H_

#include <cstdint>

#include "cc/kernels/batch_norm_op.h"
#include "cc/ops/batch_norm_training_backprop.h"
#include "cc/ops/fused_batch_norm.h"
#include "cc/ops/fused_batch_norm_grad.h"
#include "cc/ops/fused_batch_norm_grad_ex.h"
#include "cc/ops/fused_batch_norm_grad_grad.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

#define REGISTER_FUSED_BATCH_NORM(T, op, U) \
  REGISTER_KERNEL_BUILDER(                  \
      Name("TfBnOps>" op)                   \
          .Device(TFBN_KERNEL_DEVICE)       \
          .TypeConstraint<T>("T")           \
          .TypeConstraint<float>(U),        \
      BatchNormOp<FusedBatchNormSpec, T, float, TFBN_KERNEL_BACKEND>);
TFBN_FUSED_BATCH_NORM_KERNELS(REGISTER_FUSED_BATCH_NORM)

#define REGISTER_FUSED_BATCH_NORM_EX(T, side_inputs)                \
  REGISTER_KERNEL_BUILDER(                                          \
      Name("TfBnOps>FusedBatchNormEx")                              \
          .Device(TFBN_KERNEL_DEVICE)                               \
          .TypeConstraint<T>("T")                                   \
          .AttrConstraint<int64_t>("num_side_inputs", side_inputs), \
      BatchNormOp<FusedBatchNormExSpec<side_inputs>, T, float,      \
                  TFBN_KERNEL_BACKEND>);
TFBN_FUSED_BATCH_NORM_EX_KERNELS(REGISTER_FUSED_BATCH_NORM_EX)

#define REGISTER_FUSED_BATCH_NORM_GRAD(T, op)                                \
  REGISTER_KERNEL_BUILDER(                                                   \
      Name("TfBnOps>" op).Device(TFBN_KERNEL_DEVICE).TypeConstraint<T>("T"), \
      BatchNormOp<FusedBatchNormGradSpec, T, float, TFBN_KERNEL_BACKEND>);
TFBN_FUSED_BATCH_NORM_GRAD_KERNELS(REGISTER_FUSED_BATCH_NORM_GRAD)

#define REGISTER_FUSED_BATCH_NORM_GRAD_EX(T, side_inputs)           \
  REGISTER_KERNEL_BUILDER(                                          \
      Name("TfBnOps>FusedBatchNormGradEx")                          \
          .Device(TFBN_KERNEL_DEVICE)                               \
          .TypeConstraint<T>("T")                                   \
          .AttrConstraint<int64_t>("num_side_inputs", side_inputs), \
      BatchNormOp<FusedBatchNormGradExSpec<side_inputs>, T, float,  \
                  TFBN_KERNEL_BACKEND>);
TFBN_FUSED_BATCH_NORM_GRAD_EX_KERNELS(REGISTER_FUSED_BATCH_NORM_GRAD_EX)

#define REGISTER_BATCH_NORM_TRAINING_BACKPROP(T, U) \
  REGISTER_KERNEL_BUILDER(                          \
      Name("TfBnOps>BatchNormTrainingBackprop")     \
          .Device(TFBN_KERNEL_DEVICE)               \
          .TypeConstraint<T>("T"),                  \
      BatchNormOp<BatchNormTrainingBackpropSpec, T, U, TFBN_KERNEL_BACKEND>);
TFBN_BATCH_NORM_TRAINING_BACKPROP_KERNELS(REGISTER_BATCH_NORM_TRAINING_BACKPROP)

#define REGISTER_FUSED_BATCH_NORM_GRAD_GRAD(T, U) \
  REGISTER_KERNEL_BUILDER(                        \
      Name("TfBnOps>FusedBatchNormGradGrad")      \
          .Device(TFBN_KERNEL_DEVICE)             \
          .TypeConstraint<T>("T")                 \
          .TypeConstraint<U>("U"),                \
      BatchNormOp<FusedBatchNormGradGradSpec, T, U, TFBN_KERNEL_BACKEND>);
TFBN_FUSED_BATCH_NORM_GRAD_GRAD_KERNELS(REGISTER_FUSED_BATCH_NORM_GRAD_GRAD)

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_FUSED_REGISTRATIONS_H_
