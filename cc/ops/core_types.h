// TensorFlow's types and shapes as the core has them.

#ifndef TF_BN_OPS_CC_OPS_CORE_TYPES_H_
#define TF_BN_OPS_CC_OPS_CORE_TYPES_H_

#include "cc/core/dtype.h"
#include "cc/core/view.h"
#include "tensorflow/core/framework/tensor_shape.h"
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

// The view of a tensor whose channels are its dimension `channel_dim`.
inline View ViewOf(const tensorflow::TensorShape& shape, int channel_dim) {
  View view{1, shape.dim_size(channel_dim), 1};
  // Beside a dimension of 0, the others may have any product, also one beyond
  // 64 bits.
  if (shape.num_elements() == 0) return View{0, view.channels, 1};
  for (int i = 0; i < channel_dim; ++i) view.outer *= shape.dim_size(i);
  for (int i = channel_dim + 1; i < shape.dims(); ++i) {
    view.inner *= shape.dim_size(i);
  }
  return view;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_CORE_TYPES_H_
