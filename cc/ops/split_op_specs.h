// Specs of the ops that synchronised batch normalization consists of, each one
// pass over one batch, for the kernels of every device and of XLA: attributes,
// accepted shapes, element types, and which tensor is which of the formula's.

#ifndef TF_BN_OPS_CC_OPS_SPLIT_OP_SPECS_H_
#define TF_BN_OPS_CC_OPS_SPLIT_OP_SPECS_H_

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "cc/core/formulas/forward.h"
#include "cc/core/formulas/gradient.h"
#include "cc/core/view.h"
#include "cc/ops/activation_mode.h"
#include "cc/ops/check_shapes.h"
#include "cc/ops/generated/op_signatures.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// What the Specs have in common; `Op` has kInputs, kX and kSignature.
template <typename Op>
struct SplitSpec {
  ChannelAxis axis;

  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    return axis.Read(Op::kSignature, context);
  }

  int ChannelDim(int rank) const { return axis.Dim(rank); }

  // OK with the view of x, or InvalidArgument in one sentence that names the
  // tensor at fault and its shape.
  template <int kInputs>
  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const {
    return CheckShapes(Op::kSignature, axis, shapes, kInputs, view);
  }

  template <typename FormulaArgs>
  void BindAttrs(bool /*saves_rstd*/, FormulaArgs* args) const {
    args->float64_statistics = true;
  }
};

// Those with an activation.
template <typename Op>
struct ActivationSplitSpec : SplitSpec<Op> {
  double epsilon = 0;
  Activation activation = Activation::kIdentity;

  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    absl::Status status = SplitSpec<Op>::ReadAttrs(context);
    float epsilon_attr = 0;
    if (status.ok()) status = context->GetAttr("epsilon", &epsilon_attr);
    epsilon = epsilon_attr;
    return status.ok() ? ReadActivationMode(context, &activation) : status;
  }

  template <typename FormulaArgs>
  void BindAttrs(bool saves_rstd, FormulaArgs* args) const {
    SplitSpec<Op>::BindAttrs(saves_rstd, args);
    args->epsilon = epsilon;
    args->activation = activation;
  }

  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    args->x = input(Op::kX);
    args->scale = input(Op::kScale);
    args->offset = input(Op::kOffset);
    args->mean = input(Op::kMean);
    args->variance = input(Op::kVariance);
  }
};

struct BatchNormStatsSpec : SplitSpec<BatchNormStatsSpec> {
  static constexpr FormulaKind kFormula = FormulaKind::kForward;

  // In the order of the OpDef, as all that follow.
  enum Input : int { kX, kInputs };
  static constexpr const OpSignature& kSignature = kBatchNormStats;

  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    args->x = input(kX);
  }
  template <typename Outputs>
  static void BindOutputs(const Outputs& output, Call* args) {
    args->local_count = output.Scalar(0);
    args->local_mean = output.Vector(1, args->view.channels);
    args->local_m2 = output.Vector(2, args->view.channels);
  }
};

// With `kSideInputs` (0 or 1) tensors that are added before the activation.
template <int kSideInputs>
struct BatchNormElemtSpec
    : ActivationSplitSpec<BatchNormElemtSpec<kSideInputs>> {
  using Base = ActivationSplitSpec<BatchNormElemtSpec>;
  static constexpr FormulaKind kFormula = FormulaKind::kForward;

  enum Input : int {
    kX,
    kScale,
    kOffset,
    kMean,
    kVariance,
    kSideInput,
    kInputs = kSideInput + kSideInputs
  };
  static constexpr const OpSignature& kSignature = kBatchNormElemt;

  template <typename FormulaArgs>
  void BindAttrs(bool saves_rstd, FormulaArgs* args) const {
    Base::BindAttrs(saves_rstd, args);
    args->is_training = false;
  }
  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    Base::BindInputs(input, args);
    if constexpr (kSideInputs > 0) args->side_input = input(kSideInput);
  }
  template <typename Outputs>
  static void BindOutputs(const Outputs& output, Call* args) {
    if constexpr (kSideInputs > 0) {
      args->y = output(0, kX, {kX, kSideInput});
    } else {
      args->y = output(0, kX, {kX});
    }
  }
};

// With `kYs` (0 or 1) tensors y: without it the mask of the activation comes
// from x.
template <int kYs>
struct BatchNormBackwardReduceSpec
    : ActivationSplitSpec<BatchNormBackwardReduceSpec<kYs>> {
  using Base = ActivationSplitSpec<BatchNormBackwardReduceSpec>;
  static constexpr FormulaKind kFormula = FormulaKind::kGradient;

  enum Input : int {
    kYBackprop,
    kX,
    kScale,
    kOffset,
    kMean,
    kVariance,
    kY,
    kInputs = kY + kYs
  };
  static constexpr const OpSignature& kSignature = kBatchNormBackwardReduce;

  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    Base::BindInputs(input, args);
    args->y_backprop = input(kYBackprop);
    if constexpr (kYs > 0) args->y = input(kY);
  }
  template <typename Outputs>
  static void BindOutputs(const Outputs& output, Call* args) {
    args->local_sum_dy = output.Vector(0, args->view.channels);
    args->local_sum_dy_xmu = output.Vector(1, args->view.channels);
    args->scale_backprop = output.Vector(2, args->view.channels);
    args->offset_backprop = output.Vector(3, args->view.channels);
  }
};

// The arguments, which select the formula.

template <int kYs, int kSideInputs>
struct BatchNormBackwardElemtSpec
    : ActivationSplitSpec<BatchNormBackwardElemtSpec<kYs, kSideInputs>> {
  using Base = ActivationSplitSpec<BatchNormBackwardElemtSpec>;
  static constexpr FormulaKind kFormula = FormulaKind::kGradient;

  enum Input : int {
    kYBackprop,
    kX,
    kScale,
    kOffset,
    kMean,
    kVariance,
    kSumDy,
    kSumDyXmu,
    kCount,
    kY,
    kInputs = kY + kYs
  };
  static constexpr const OpSignature& kSignature = kBatchNormBackwardElemt;

  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    const absl::Status status = Base::ReadAttrs(context);
    return status.ok() ? CheckMaskSource(kYs, kSideInputs, this->activation)
                       : status;
  }

  template <typename FormulaArgs>
  void BindAttrs(bool saves_rstd, FormulaArgs* args) const {
    Base::BindAttrs(saves_rstd, args);
    args->is_training = false;
  }
  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    Base::BindInputs(input, args);
    args->y_backprop = input(kYBackprop);
    args->sum_dy = input(kSumDy);
    args->sum_dy_xmu = input(kSumDyXmu);
    args->count = input(kCount);
    if constexpr (kYs > 0) args->y = input(kY);
  }
  template <typename Outputs>
  static void BindOutputs(const Outputs& output, Call* args) {
    if constexpr (kSideInputs > 0) {
      args->x_backprop = output(0, kX, {kX});
      args->side_input_backprop = output(1, kX, {kYBackprop});
    } else if constexpr (kYs > 0) {
      args->x_backprop = output(0, kX, {kYBackprop, kX, kY});
    } else {
      args->x_backprop = output(0, kX, {kYBackprop, kX});
    }
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_SPLIT_OP_SPECS_H_
