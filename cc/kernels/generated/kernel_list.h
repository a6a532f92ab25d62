// clang-format off
// The kernels of the twins of TensorFlow's ops, and of the others that have an x: X(op, T, U,
// constraints, Spec) for each. Constraints are words that the including file defines: U(type),
// NUM_Y(length), NUM_SIDE_INPUTS(length), HOST(output).
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#ifndef TF_BN_OPS_CC_KERNELS_GENERATED_KERNEL_LIST_H_
#define TF_BN_OPS_CC_KERNELS_GENERATED_KERNEL_LIST_H_

#include "cc/ops/op_specs.h"

namespace tf_bn_ops {

#define TFBN_FOR_EACH_TWIN_KERNEL(X) \
  X(FusedBatchNorm, float, float, , FusedBatchNormSpec) \
  X(FusedBatchNormGrad, float, float, , FusedBatchNormGradSpec) \
  X(FusedBatchNormGradV2, half, float, , FusedBatchNormGradSpec) \
  X(FusedBatchNormGradV2, bfloat16, float, , FusedBatchNormGradSpec) \
  X(FusedBatchNormGradV2, float, float, , FusedBatchNormGradSpec) \
  X(FusedBatchNormGradV3, half, float, , FusedBatchNormGradSpec) \
  X(FusedBatchNormGradV3, bfloat16, float, , FusedBatchNormGradSpec) \
  X(FusedBatchNormGradV3, float, float, , FusedBatchNormGradSpec) \
  X(FusedBatchNormV2, half, float, , FusedBatchNormSpec) \
  X(FusedBatchNormV2, bfloat16, float, , FusedBatchNormSpec) \
  X(FusedBatchNormV2, float, float, , FusedBatchNormSpec) \
  X(FusedBatchNormV3, half, float, U(float), FusedBatchNormSpec) \
  X(FusedBatchNormV3, bfloat16, float, U(float), FusedBatchNormSpec) \
  X(FusedBatchNormV3, float, float, U(float), FusedBatchNormSpec)

#define TFBN_FOR_EACH_OTHER_KERNEL(X) \
  X(BatchNormBackwardElemt, half, float, U(float) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, half, float, U(float) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, half, float, U(float) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, half, float, U(float) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardElemt, half, double, U(double) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, half, double, U(double) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, half, double, U(double) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, half, double, U(double) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardElemt, bfloat16, float, U(float) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, bfloat16, float, U(float) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, bfloat16, float, U(float) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, bfloat16, float, U(float) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardElemt, bfloat16, double, U(double) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, bfloat16, double, U(double) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, bfloat16, double, U(double) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, bfloat16, double, U(double) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardElemt, float, float, U(float) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, float, float, U(float) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, float, float, U(float) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, float, float, U(float) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardElemt, float, double, U(double) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, float, double, U(double) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, float, double, U(double) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, float, double, U(double) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardElemt, double, double, U(double) NUM_Y(0) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<0, 0>) \
  X(BatchNormBackwardElemt, double, double, U(double) NUM_Y(0) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<0, 1>) \
  X(BatchNormBackwardElemt, double, double, U(double) NUM_Y(1) NUM_SIDE_INPUTS(0), BatchNormBackwardElemtSpec<1, 0>) \
  X(BatchNormBackwardElemt, double, double, U(double) NUM_Y(1) NUM_SIDE_INPUTS(1), BatchNormBackwardElemtSpec<1, 1>) \
  X(BatchNormBackwardReduce, half, float, U(float) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, half, float, U(float) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormBackwardReduce, half, double, U(double) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, half, double, U(double) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormBackwardReduce, bfloat16, float, U(float) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, bfloat16, float, U(float) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormBackwardReduce, bfloat16, double, U(double) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, bfloat16, double, U(double) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormBackwardReduce, float, float, U(float) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, float, float, U(float) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormBackwardReduce, float, double, U(double) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, float, double, U(double) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormBackwardReduce, double, double, U(double) NUM_Y(0), BatchNormBackwardReduceSpec<0>) \
  X(BatchNormBackwardReduce, double, double, U(double) NUM_Y(1), BatchNormBackwardReduceSpec<1>) \
  X(BatchNormElemt, half, float, U(float) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, half, float, U(float) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormElemt, half, double, U(double) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, half, double, U(double) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormElemt, bfloat16, float, U(float) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, bfloat16, float, U(float) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormElemt, bfloat16, double, U(double) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, bfloat16, double, U(double) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormElemt, float, float, U(float) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, float, float, U(float) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormElemt, float, double, U(double) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, float, double, U(double) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormElemt, double, double, U(double) NUM_SIDE_INPUTS(0), BatchNormElemtSpec<0>) \
  X(BatchNormElemt, double, double, U(double) NUM_SIDE_INPUTS(1), BatchNormElemtSpec<1>) \
  X(BatchNormStats, half, double, HOST(count), BatchNormStatsSpec) \
  X(BatchNormStats, bfloat16, double, HOST(count), BatchNormStatsSpec) \
  X(BatchNormStats, float, double, HOST(count), BatchNormStatsSpec) \
  X(BatchNormStats, double, double, HOST(count), BatchNormStatsSpec) \
  X(BatchNormTrainingBackprop, half, half, , BatchNormTrainingBackpropSpec) \
  X(BatchNormTrainingBackprop, bfloat16, bfloat16, , BatchNormTrainingBackpropSpec) \
  X(BatchNormTrainingBackprop, float, float, , BatchNormTrainingBackpropSpec) \
  X(BatchNormTrainingBackprop, double, double, , BatchNormTrainingBackpropSpec) \
  X(FusedBatchNormEx, half, float, NUM_SIDE_INPUTS(0), FusedBatchNormExSpec<0>) \
  X(FusedBatchNormEx, half, float, NUM_SIDE_INPUTS(1), FusedBatchNormExSpec<1>) \
  X(FusedBatchNormEx, bfloat16, float, NUM_SIDE_INPUTS(0), FusedBatchNormExSpec<0>) \
  X(FusedBatchNormEx, bfloat16, float, NUM_SIDE_INPUTS(1), FusedBatchNormExSpec<1>) \
  X(FusedBatchNormEx, float, float, NUM_SIDE_INPUTS(0), FusedBatchNormExSpec<0>) \
  X(FusedBatchNormEx, float, float, NUM_SIDE_INPUTS(1), FusedBatchNormExSpec<1>) \
  X(FusedBatchNormGradEx, half, float, NUM_SIDE_INPUTS(0), FusedBatchNormGradExSpec<0>) \
  X(FusedBatchNormGradEx, half, float, NUM_SIDE_INPUTS(1), FusedBatchNormGradExSpec<1>) \
  X(FusedBatchNormGradEx, bfloat16, float, NUM_SIDE_INPUTS(0), FusedBatchNormGradExSpec<0>) \
  X(FusedBatchNormGradEx, bfloat16, float, NUM_SIDE_INPUTS(1), FusedBatchNormGradExSpec<1>) \
  X(FusedBatchNormGradEx, float, float, NUM_SIDE_INPUTS(0), FusedBatchNormGradExSpec<0>) \
  X(FusedBatchNormGradEx, float, float, NUM_SIDE_INPUTS(1), FusedBatchNormGradExSpec<1>) \
  X(FusedBatchNormGradGrad, half, float, U(float), FusedBatchNormGradGradSpec) \
  X(FusedBatchNormGradGrad, half, half, U(half), FusedBatchNormGradGradSpec) \
  X(FusedBatchNormGradGrad, bfloat16, float, U(float), FusedBatchNormGradGradSpec) \
  X(FusedBatchNormGradGrad, bfloat16, bfloat16, U(bfloat16), FusedBatchNormGradGradSpec) \
  X(FusedBatchNormGradGrad, float, float, U(float), FusedBatchNormGradGradSpec) \
  X(FusedBatchNormGradGrad, double, double, U(double), FusedBatchNormGradGradSpec)

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_GENERATED_KERNEL_LIST_H_
