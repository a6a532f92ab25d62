// The attribute of BatchNormTrainingBackprop, read for the kernels of every
// device and for XLA's. Shapes are checked in training_backprop_shapes.h.

#ifndef TF_BN_OPS_CC_KERNELS_TRAINING_BACKPROP_CHECKS_H_
#define TF_BN_OPS_CC_KERNELS_TRAINING_BACKPROP_CHECKS_H_

#include "absl/status/status.h"
#include "cc/ops/errors.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_bn_ops {

// Reads the attr epsilon, or says what is wrong with it.
inline absl::Status ReadEpsilon(tensorflow::OpKernelConstruction* context,
                                double* epsilon) {
  tensorflow::Tensor tensor;
  const absl::Status status = context->GetAttr("epsilon", &tensor);
  if (!status.ok()) return status;
  if (tensor.dtype() != tensorflow::DT_DOUBLE || tensor.dims() != 0) {
    return InvalidArgument("epsilon must be a scalar of type double, but is ",
                           tensorflow::DataTypeString(tensor.dtype()),
                           " of shape ", tensor.shape().DebugString());
  }
  *epsilon = tensor.scalar<double>()();
  return absl::OkStatus();
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_TRAINING_BACKPROP_CHECKS_H_
