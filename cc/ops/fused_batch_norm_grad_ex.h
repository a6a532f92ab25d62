// Spec of TfBnOps>FusedBatchNormGradEx for the kernels of every device:
// attributes, accepted shapes, element types, and which input is which of the
// formula's.

#ifndef TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_EX_H_
#define TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_EX_H_

#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "cc/core/formulas/gradient.h"
#include "cc/core/view.h"
#include "cc/ops/activation_mode.h"
#include "cc/ops/errors.h"
#include "cc/ops/fused_batch_norm_grad.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// The gradient of FusedBatchNormExSpec<kSideInputs>.
template <int kSideInputs>
struct FusedBatchNormGradExSpec : FusedBatchNormGradSpec {
  // In the order of the OpDef.
  enum ExInput : int {
    kForwardCoefficients = FusedBatchNormGradSpec::kInputs,
    kOffset,
    kY,
    kInputs,
  };
  // Outputs 3 and 4 are placeholders.
  static constexpr int kSideInputBackprop = 5;

  Activation activation = Activation::kIdentity;

  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    const absl::Status status = FusedBatchNormGradSpec::ReadAttrs(context);
    return status.ok() ? ReadActivationMode(context, &activation) : status;
  }

  // Of reserve_space_3 any shape is accepted. offset and y are read with an
  // activation alone.
  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const {
    const tensorflow::TensorShape* first_order[FusedBatchNormGradSpec::kInputs];
    for (int i = 0; i < FusedBatchNormGradSpec::kInputs; ++i) {
      first_order[i] = shapes[i];
    }
    const absl::Status status =
        FusedBatchNormGradSpec::Validate(first_order, view);
    if (!status.ok() || activation == Activation::kIdentity) return status;
    if (*shapes[kY] != *shapes[kX]) {
      return InvalidArgument("x and y must have same shape, but x has shape ",
                             shapes[kX]->DebugString(), " and y has shape ",
                             shapes[kY]->DebugString());
    }
    if (shapes[kOffset]->dims() != 1 ||
        shapes[kOffset]->num_elements() != view->channels) {
      return InvalidArgument(
          "offset must be 1-dimensional with as many elements as x has "
          "channels, got ",
          shapes[kOffset]->DebugString(), " and ", view->channels);
    }
    return absl::OkStatus();
  }

  template <typename FormulaArgs>
  void BindAttrs(bool saves_rstd, FormulaArgs* args) const {
    FusedBatchNormGradSpec::BindAttrs(saves_rstd, args);
    args->activation = activation;
  }

  // See FirstOrderBindings. `input.Size(i)`: the elements of input i.
  template <typename Inputs, typename FormulaArgs>
  static void BindInputs(const Inputs& input, FormulaArgs* args) {
    FusedBatchNormGradSpec::BindInputs(input, args);
    args->offset = input(kOffset);
    args->y = input(kY);
    if constexpr (std::is_same_v<FormulaArgs, Call>) {
      // What this library's forward op stores there; nothing or another size if
      // reserve_space_3 is another op's.
      if (args->view.channels > 0 &&
          input.Size(kForwardCoefficients) ==
              kNumForwardCoefficients * args->view.channels) {
        args->forward_coefficients = input(kForwardCoefficients);
      }
    }
  }

  template <typename Outputs>
  static void BindOutputs(const Outputs& output, Call* args) {
    if constexpr (kSideInputs == 0) {
      args->x_backprop = output(0, kX, {kYBackprop, kX, kY});
    } else {
      args->x_backprop = output(0, kX, {kX});
      args->side_input_backprop = output(kSideInputBackprop, kX, {kYBackprop});
    }
    args->scale_backprop = output(1, kScale, {});
    args->offset_backprop = output(2, kScale, {});
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_EX_H_
