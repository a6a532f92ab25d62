// Spec of TfBnOps>FusedBatchNormGradGrad for the kernels of every device and of
// XLA: attributes, accepted shapes, element types, and which input is which of
// the formula's.

#ifndef TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_GRAD_H_
#define TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_GRAD_H_

#include <vector>

#include "absl/status/status.h"
#include "cc/core/formulas/second_order.h"
#include "cc/core/view.h"
#include "cc/ops/check_shapes.h"
#include "cc/ops/generated/op_signatures.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

struct FusedBatchNormGradGradSpec {
  static constexpr FormulaKind kFormula = FormulaKind::kSecondOrder;

  // In the order of the OpDef.
  enum Input : int {
    kXBackpropGrad,
    kScaleBackpropGrad,
    kOffsetBackpropGrad,
    kYBackprop,
    kX,
    kScale,
    kMean,
    kVariance,
    kInputs
  };
  static constexpr int kOutputs = 3;

  double epsilon = 0;  // The sum of two attrs.
  bool is_training = true;
  ChannelAxis axis;

  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    float first;
    std::vector<float> rest;
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &first));
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon_rest", &rest));
    TF_RETURN_IF_ERROR(context->GetAttr("is_training", &is_training));
    epsilon = first;
    for (float part : rest) epsilon += part;
    return axis.Read(kFusedBatchNormGradGrad, context);
  }

  int ChannelDim(int rank) const { return axis.Dim(rank); }

  // OK with the view of x, or InvalidArgument.
  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const {
    return CheckShapes(kFusedBatchNormGradGrad, axis, shapes, kInputs, view);
  }

  // reserve_space_2 is read if frozen alone, when it is the variance on every
  // device.
  template <typename FormulaArgs>
  void BindAttrs(bool /*saves_rstd*/, FormulaArgs* args) const {
    args->is_training = is_training;
    args->epsilon = epsilon;
  }

  // See FirstOrderBindings.
  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    args->x_backprop_grad = input(kXBackpropGrad);
    args->scale_backprop_grad = input(kScaleBackpropGrad);
    args->offset_backprop_grad = input(kOffsetBackpropGrad);
    args->y_backprop = input(kYBackprop);
    args->x = input(kX);
    args->scale = input(kScale);
    args->mean = input(kMean);
    args->variance = input(kVariance);
  }
  // No input's buffer is reused twice: each output tries them in its own order.
  template <typename Allocate>
  static void BindOutputs(const Allocate& output, Call* args) {
    args->y_backprop_grad = output(0, kX, {kXBackpropGrad, kYBackprop, kX});
    args->x_grad = output(1, kX, {kYBackprop, kX, kXBackpropGrad});
    args->scale_grad = output(2, kScale, {});
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_GRAD_H_
