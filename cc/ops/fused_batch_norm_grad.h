// Spec of TfBnOps>FusedBatchNormGrad, V2 and V3 for the kernels of every device
// and of XLA: attributes, accepted shapes, element types, and which input is
// which of the formula's.

#ifndef TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_H_
#define TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_H_

#include "absl/status/status.h"
#include "cc/core/view.h"
#include "cc/ops/errors.h"
#include "cc/ops/first_order_bindings.h"
#include "cc/ops/fused_batch_norm_attrs.h"
#include "cc/ops/view_of.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// The last two outputs are placeholders.
struct FusedBatchNormGradSpec : FusedBatchNormAttrs,
                                FirstOrderBindings<FusedBatchNormGradSpec> {
  // In the order of the OpDefs, without reserve_space_3 of V3, which only cuDNN
  // reads.
  enum Input : int { kYBackprop, kX, kScale, kMean, kVariance, kInputs };

  // OK with the view of x, or InvalidArgument. Messages and the order of checks
  // are the built-in's, for code that reads them.
  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const;

  // `saves_rstd`: the device's forward op saves rstd in reserve_space_2 in
  // training (cuDNN's convention).
  template <typename FormulaArgs>
  void BindAttrs(bool saves_rstd, FormulaArgs* args) const {
    args->is_training = is_training;
    args->variance_is_rstd = is_training && saves_rstd;
    args->epsilon = epsilon;
  }
};

inline absl::Status FusedBatchNormGradSpec::Validate(
    const tensorflow::TensorShape* const (&shapes)[kInputs], View* view) const {
  for (Input input : {kYBackprop, kX}) {
    if (shapes[input]->dims() != 4 && shapes[input]->dims() != 5) {
      return InvalidArgument("input must be 4 or 5-dimensional",
                             shapes[input]->DebugString());
    }
  }
  const struct {
    const char* what;
    const char* name;
    const tensorflow::TensorShape& shape;
  } vectors[] = {{"scale", "scale", *shapes[kScale]},
                 {"saved mean", "reserve_space_1", *shapes[kMean]},
                 {"saved variance", "reserve_space_2", *shapes[kVariance]}};
  for (const auto& vector : vectors) {
    if (vector.shape.dims() != 1) {
      return InvalidArgument(vector.what, " must be 1-dimensional",
                             vector.shape.DebugString());
    }
  }
  const tensorflow::TensorShape& x = *shapes[kX];
  if (x != *shapes[kYBackprop]) {
    return InvalidArgument(
        "x and y_backprop must have same shape, but x has shape ",
        x.DebugString(), " and y_backprop has shape ",
        shapes[kYBackprop]->DebugString());
  }
  *view = ViewOf(x, ChannelDim(x.dims()));
  for (const auto& vector : vectors) {
    if (vector.shape.num_elements() != view->channels) {
      return InvalidArgument(vector.name,
                             " must have the same number of elements as the "
                             "channels of x, got ",
                             vector.shape.num_elements(), " and ",
                             view->channels);
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_H_
