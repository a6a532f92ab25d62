// The element types that ops are registered for: DType, the core's enum, of
// each, and the lists of them.

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

// The types of x by kind of op, for the OpDefs; and X(T, ...) for each, with
// the arguments behind X.
//
// Those that are narrower than they are computed in, which every op takes:
#define TFBN_NARROW_TYPES "half, bfloat16"
#define TFBN_FOR_EACH_NARROW_TYPE(X, ...) \
  X(Eigen::half, __VA_ARGS__)             \
  X(Eigen::bfloat16, __VA_ARGS__)
// Of ops whose vectors are float, as those of TensorFlow's fused ops.
#define TFBN_FUSED_TYPES "{" TFBN_NARROW_TYPES ", float}"
#define TFBN_FOR_EACH_FUSED_TYPE(X, ...)    \
  TFBN_FOR_EACH_NARROW_TYPE(X, __VA_ARGS__) \
  X(float, __VA_ARGS__)
// Of all other ops.
#define TFBN_ALL_TYPES "{" TFBN_NARROW_TYPES ", float, double}"
#define TFBN_FOR_EACH_TYPE(X, ...)         \
  TFBN_FOR_EACH_FUSED_TYPE(X, __VA_ARGS__) \
  X(double, __VA_ARGS__)
// X(T, T), in one of the lists: vectors are of the type of x.
#define TFBN_SAME_TYPE(T, X) X(T, T)

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_DTYPE_OF_H_
