// Registers the kernels of the ops that synchronised batch normalization
// consists of, as fused_registrations.h those of the others.

#ifndef TF_BN_OPS_CC_KERNELS_SPLIT_REGISTRATIONS_H_
#define TF_BN_OPS_CC_KERNELS_SPLIT_REGISTRATIONS_H_

#include <cstdint>

#include "cc/kernels/batch_norm_op.h"
#include "cc/kernels/gather_stats_op.h"
#include "cc/ops/split_op_specs.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

// The count follows from the shape, which the host knows.
#define REGISTER_STATS(T, U)          \
  REGISTER_KERNEL_BUILDER(            \
      Name("TfBnOps>BatchNormStats")  \
          .Device(TFBN_KERNEL_DEVICE) \
          .HostMemory("count")        \
          .TypeConstraint<T>("T"),    \
      BatchNormOp<BatchNormStatsSpec, T, U, TFBN_KERNEL_BACKEND>);
TFBN_SPLIT_STATS_KERNELS(REGISTER_STATS)

// The lengths of lists select the formula, so that each has its kernel.
#define YS(n) .AttrConstraint<int64_t>("num_y", n)
#define SIDE_INPUTS(n) .AttrConstraint<int64_t>("num_side_inputs", n)
#define KERNEL_OF(op, T, U, lengths) \
  Name("TfBnOps>" op)                \
      .Device(TFBN_KERNEL_DEVICE)    \
      .TypeConstraint<T>("T")        \
      .TypeConstraint<U>("U") lengths

#define REGISTER_ELEMT(T, U, n)                          \
  REGISTER_KERNEL_BUILDER(                               \
      KERNEL_OF("BatchNormElemt", T, U, SIDE_INPUTS(n)), \
      BatchNormOp<BatchNormElemtSpec<n>, T, U, TFBN_KERNEL_BACKEND>)
#define REGISTER_BACKWARD_REDUCE(T, U, n)                \
  REGISTER_KERNEL_BUILDER(                               \
      KERNEL_OF("BatchNormBackwardReduce", T, U, YS(n)), \
      BatchNormOp<BatchNormBackwardReduceSpec<n>, T, U, TFBN_KERNEL_BACKEND>)
#define REGISTER_BACKWARD_ELEMT(T, U, ys, side_inputs)               \
  REGISTER_KERNEL_BUILDER(                                           \
      KERNEL_OF("BatchNormBackwardElemt", T, U,                      \
                YS(ys) SIDE_INPUTS(side_inputs)),                    \
      BatchNormOp<BatchNormBackwardElemtSpec<ys, side_inputs>, T, U, \
                  TFBN_KERNEL_BACKEND>)

#define REGISTER_SPLIT_OPS(T, U)       \
  REGISTER_ELEMT(T, U, 0);             \
  REGISTER_ELEMT(T, U, 1);             \
  REGISTER_BACKWARD_REDUCE(T, U, 0);   \
  REGISTER_BACKWARD_REDUCE(T, U, 1);   \
  REGISTER_BACKWARD_ELEMT(T, U, 0, 0); \
  REGISTER_BACKWARD_ELEMT(T, U, 0, 1); \
  REGISTER_BACKWARD_ELEMT(T, U, 1, 0); \
  REGISTER_BACKWARD_ELEMT(T, U, 1, 1);
TFBN_SPLIT_KERNELS(REGISTER_SPLIT_OPS)

REGISTER_KERNEL_BUILDER(
    Name("TfBnOps>BatchNormGatherStats").Device(TFBN_KERNEL_DEVICE),
    BatchNormGatherStatsOp<TFBN_KERNEL_BACKEND>);

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_SPLIT_REGISTRATIONS_H_
