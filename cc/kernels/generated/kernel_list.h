// clang-format off
// The kernels of the twins of TensorFlow's ops, and of the others that have an x: X(op, T(types),
// constraints, Spec). T and constraints are words that the including file defines: U(type),
// NUM_Y(length), NUM_SIDE_INPUTS(length), HOST(output).
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#ifndef TF_BN_OPS_CC_KERNELS_GENERATED_KERNEL_LIST_H_
#define TF_BN_OPS_CC_KERNELS_GENERATED_KERNEL_LIST_H_

#include "cc/ops/op_specs.h"

namespace tf_bn_ops {

#define TFBN_FOR_EACH_TWIN_KERNEL(X) \
  X(FusedBatchNorm, T(DT_FLOAT), , FusedBatchNormSpec) \
  X(FusedBatchNormGrad, T(DT_FLOAT), , FusedBatchNormGradSpec) \
  X(FusedBatchNormGradV2, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), , FusedBatchNormGradSpec) \
  X(FusedBatchNormGradV3, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), , FusedBatchNormGradSpec) \
  X(FusedBatchNormV2, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), , FusedBatchNormSpec) \
  X(FusedBatchNormV3, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT), FusedBatchNormSpec)

#define TFBN_FOR_EACH_OTHER_KERNEL(X) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardReduce, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormBackwardReduce, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormStats, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), HOST(count), BatchNormStatsSpec) \
  X(BatchNormTrainingBackprop, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), , BatchNormTrainingBackpropSpec) \
  X(FusedBatchNormEx, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), NUM_SIDE_INPUTS(0), FusedBatchNormExSpec<0>) \
  X(FusedBatchNormEx, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), NUM_SIDE_INPUTS(1), FusedBatchNormExSpec<1>) \
  X(FusedBatchNormGradEx, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), NUM_SIDE_INPUTS(0), FusedBatchNormGradExSpec<0>) \
  X(FusedBatchNormGradEx, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), NUM_SIDE_INPUTS(1), FusedBatchNormGradExSpec<1>) \
  X(FusedBatchNormGradGrad, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT), FusedBatchNormGradGradSpec) \
  X(FusedBatchNormGradGrad, T(DT_HALF), U(DT_HALF), FusedBatchNormGradGradSpec) \
  X(FusedBatchNormGradGrad, T(DT_BFLOAT16), U(DT_BFLOAT16), FusedBatchNormGradGradSpec) \
  X(FusedBatchNormGradGrad, T(DT_DOUBLE), U(DT_DOUBLE), FusedBatchNormGradGradSpec)

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_GENERATED_KERNEL_LIST_H_
