// DType, the core's enum, of the element types that ops are registered for.

#ifndef TF_BN_OPS_CC_OPS_DTYPE_OF_H_
#define TF_BN_OPS_CC_OPS_DTYPE_OF_H_

#include "cc/core/dtype.h"
#include "tensorflow/core/framework/types.h"

namespace tf_bn_ops {

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

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_DTYPE_OF_H_
