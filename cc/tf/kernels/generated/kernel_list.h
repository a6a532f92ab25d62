// clang-format off
// The kernels of the twins of TensorFlow's ops, and of the others that have an x: X(op, T(types),
// constraints). T and constraints are words that the including file defines: U(type), HOST(output).
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#pragma once

#include "cc/tf/ops/generated/op_signatures.h"

namespace tf_bn_ops {

#define TFBN_FOR_EACH_TWIN_KERNEL(X) \
  X(FusedBatchNorm, T(DT_FLOAT), ) \
  X(FusedBatchNormGrad, T(DT_FLOAT), ) \
  X(FusedBatchNormGradV2, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), ) \
  X(FusedBatchNormGradV3, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), ) \
  X(FusedBatchNormV2, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), ) \
  X(FusedBatchNormV3, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT))

#define TFBN_FOR_EACH_OTHER_KERNEL(X) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT)) \
  X(BatchNormBackwardElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE)) \
  X(BatchNormBackwardReduce, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT)) \
  X(BatchNormBackwardReduce, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE)) \
  X(BatchNormElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT)) \
  X(BatchNormElemt, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), U(DT_DOUBLE)) \
  X(BatchNormStats, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), HOST(count)) \
  X(BatchNormTrainingBackprop, T(DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE), ) \
  X(FusedBatchNormEx, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), ) \
  X(FusedBatchNormGradEx, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), ) \
  X(FusedBatchNormGradGrad, T(DT_HALF, DT_BFLOAT16, DT_FLOAT), U(DT_FLOAT)) \
  X(FusedBatchNormGradGrad, T(DT_HALF), U(DT_HALF)) \
  X(FusedBatchNormGradGrad, T(DT_BFLOAT16), U(DT_BFLOAT16)) \
  X(FusedBatchNormGradGrad, T(DT_DOUBLE), U(DT_DOUBLE))

}  // namespace tf_bn_ops
