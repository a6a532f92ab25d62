// Spec of TfBnOps>BatchNormTrainingBackprop for the kernels of every device and
// of XLA: attributes, accepted shapes, element types, and which input is which
// of the formula's.

#ifndef TF_BN_OPS_CC_OPS_BATCH_NORM_TRAINING_BACKPROP_H_
#define TF_BN_OPS_CC_OPS_BATCH_NORM_TRAINING_BACKPROP_H_

#include "absl/status/status.h"
#include "cc/core/view.h"
#include "cc/ops/check_shapes.h"
#include "cc/ops/errors.h"
#include "cc/ops/first_order_bindings.h"
#include "cc/ops/generated/op_signatures.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_bn_ops {

struct BatchNormTrainingBackpropSpec
    : FirstOrderBindings<BatchNormTrainingBackpropSpec> {
  // In the order of the OpDef.
  enum Input : int {
    kX,          // input, (N, C, ...)
    kScale,      // gamma, (C)
    kOffset,     // beta, (C); no result depends on it
    kMean,       // (C)
    kVariance,   // (C)
    kYBackprop,  // normalized_delta, (N, C, ...)
    kInputs
  };

  double epsilon = 0;

  // Reads the attribute, or says what is wrong with it.
  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    tensorflow::Tensor tensor;
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &tensor));
    if (tensor.dtype() != tensorflow::DT_DOUBLE || tensor.dims() != 0) {
      return InvalidArgument("epsilon must be a scalar of type double, but is ",
                             tensorflow::DataTypeString(tensor.dtype()),
                             " of shape ", tensor.shape().DebugString());
    }
    epsilon = tensor.scalar<double>()();
    return absl::OkStatus();
  }

  int ChannelDim(int) const { return 1; }

  // OK with the view of `input`, or InvalidArgument.
  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const {
    return CheckShapes(kBatchNormTrainingBackprop, ChannelAxis(), shapes,
                       kInputs, view);
  }

  // `variance` is the variance on every device: no forward op saves rstd there.
  template <typename FormulaArgs>
  void BindAttrs(bool /*saves_rstd*/, FormulaArgs* args) const {
    args->is_training = true;
    args->epsilon = epsilon;
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_BATCH_NORM_TRAINING_BACKPROP_H_
