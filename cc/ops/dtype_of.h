// DType, the core's enum, of TensorFlow's types.

#ifndef TF_BN_OPS_CC_OPS_DTYPE_OF_H_
#define TF_BN_OPS_CC_OPS_DTYPE_OF_H_

#include "cc/core/dtype.h"
#include "tensorflow/core/framework/types.h"

namespace tf_bn_ops {

// Of one of the types that kernels are registered for.
inline DType DTypeOf(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_HALF:
      return DType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return DType::kBfloat16;
    case tensorflow::DT_DOUBLE:
      return DType::kFloat64;
    default:
      return DType::kFloat32;
  }
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_DTYPE_OF_H_
