// Specs of TfBnOps>FusedBatchNorm, V2, V3 and of TfBnOps>FusedBatchNormEx for
// the kernels of every device and of XLA: attributes, accepted shapes, element
// types, and which input is which of the formula's.

#ifndef TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_H_
#define TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_H_

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "cc/core/formulas/forward.h"
#include "cc/core/view.h"
#include "cc/ops/activation_mode.h"
#include "cc/ops/errors.h"
#include "cc/ops/fused_batch_norm_attrs.h"
#include "cc/ops/view_of.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// V3 has one output more, a placeholder.
struct FusedBatchNormSpec : FusedBatchNormAttrs {
  static constexpr FormulaKind kFormula = FormulaKind::kForward;

  // In the order of the OpDefs.
  enum Input : int { kX, kScale, kOffset, kMean, kVariance, kInputs };
  static constexpr int kOutputs = 5;

  double exponential_avg_factor = 1;

  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    TF_RETURN_IF_ERROR(FusedBatchNormAttrs::ReadAttrs(context));
    float factor;
    TF_RETURN_IF_ERROR(context->GetAttr("exponential_avg_factor", &factor));
    exponential_avg_factor = factor;
    return absl::OkStatus();
  }

  // OK with the view of x, or InvalidArgument. Messages and the order of checks
  // are the built-in's, for code that reads them.
  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const {
    return ValidateForward(shapes, view);
  }

  // `saves_rstd`: the device's op saves rstd in reserve_space_2 in training
  // (cuDNN's convention).
  template <typename FormulaArgs>
  void BindAttrs(bool saves_rstd, FormulaArgs* args) const {
    args->is_training = is_training;
    args->saves_rstd = is_training && saves_rstd;
    args->epsilon = epsilon;
    args->exponential_avg_factor = exponential_avg_factor;
  }

  // See FirstOrderBindings. In training with a factor of 1, mean and variance
  // may have any size and are not read.
  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    args->x = input(kX);
    args->scale = input(kScale);
    args->offset = input(kOffset);
    args->mean = input(kMean);
    args->variance = input(kVariance);
  }
  template <typename Allocate>
  static void BindOutputs(const Allocate& output, Call* args) {
    args->y = output(0, kX, {kX});
    BindStatistics(output, args);
  }

 protected:
  // The outputs of shape [channels].
  template <typename Allocate>
  static void BindStatistics(const Allocate& output, Call* args) {
    args->batch_mean = output(1, kScale, {kMean});
    args->batch_variance = output(2, kScale, {kVariance});
    args->saved_mean = output(3, kScale, {});
    args->saved_variance = output(4, kScale, {});
  }

  // Validate() of the first kInputs shapes.
  absl::Status ValidateForward(const tensorflow::TensorShape* const* shapes,
                               View* view) const;
};

inline absl::Status FusedBatchNormSpec::ValidateForward(
    const tensorflow::TensorShape* const* shapes, View* view) const {
  const tensorflow::TensorShape& x = *shapes[kX];
  if (x.dims() != 4 && x.dims() != 5) {
    return InvalidArgument("input must be 4 or 5-dimensional", x.DebugString());
  }
  constexpr const char* kVectorNames[] = {"scale", "offset", "estimated_mean",
                                          "estimated_variance"};
  for (int i = kScale; i <= kVariance; ++i) {
    if (shapes[i]->dims() != 1) {
      return InvalidArgument(kVectorNames[i - kScale], " must be 1-dimensional",
                             shapes[i]->DebugString());
    }
  }
  *view = ViewOf(x, ChannelDim(x.dims()));
  const auto check_size = [&](int input, const char* name) {
    const int64_t size = shapes[input]->num_elements();
    if (size == view->channels) return absl::OkStatus();
    return InvalidArgument(name,
                           " must have the same number of elements as the "
                           "channels of x, got ",
                           size, " and ", view->channels);
  };
  TF_RETURN_IF_ERROR(check_size(kScale, "scale"));
  TF_RETURN_IF_ERROR(check_size(kOffset, "offset"));
  if (is_training && exponential_avg_factor == 1) return absl::OkStatus();
  TF_RETURN_IF_ERROR(
      check_size(kMean, is_training ? "When exponential_avg_factor != 1, mean"
                                    : "When is_training=false, mean"));
  return check_size(kVariance,
                    is_training ? "When exponential_avg_factor != 1, variance"
                                : "When is_training=false, variance");
}

// Ex with `kSideInputs` (0 or 1) tensors that are added before the activation.
template <int kSideInputs>
struct FusedBatchNormExSpec : FusedBatchNormSpec {
  static constexpr int kSideInput = FusedBatchNormSpec::kInputs;
  static constexpr int kInputs = FusedBatchNormSpec::kInputs + kSideInputs;

  Activation activation = Activation::kIdentity;
  bool bessel_correction = true;

  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    TF_RETURN_IF_ERROR(ReadBuiltinAttrs(context));
    return context->GetAttr("bessel_correction", &bessel_correction);
  }

  // Those that TensorFlow's _FusedBatchNormEx has, too.
  template <typename Context>
  absl::Status ReadBuiltinAttrs(Context* context) {
    TF_RETURN_IF_ERROR(FusedBatchNormSpec::ReadAttrs(context));
    return ReadActivationMode(context, &activation);
  }

  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const {
    TF_RETURN_IF_ERROR(ValidateForward(shapes, view));
    for (int i = kSideInput; i < kInputs; ++i) {
      if (*shapes[i] != *shapes[kX]) {
        return InvalidArgument(
            "side_input shape must be equal to input shape: ",
            shapes[i]->DebugString(), " != ", shapes[kX]->DebugString());
      }
    }
    return absl::OkStatus();
  }

  template <typename FormulaArgs>
  void BindAttrs(bool saves_rstd, FormulaArgs* args) const {
    FusedBatchNormSpec::BindAttrs(saves_rstd, args);
    args->activation = activation;
    args->bessel_correction = bessel_correction;
  }

  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    FusedBatchNormSpec::BindInputs(input, args);
    if constexpr (kSideInputs > 0) args->side_input = input(kSideInput);
  }

  template <typename Allocate>
  static void BindOutputs(const Allocate& output, Call* args) {
    if constexpr (kSideInputs > 0) {
      args->y = output(0, kX, {kX, kSideInput});
    } else {
      args->y = output(0, kX, {kX});
      // reserve_space_3, see BatchNormGradExFormula.
      if (args->activation != Activation::kIdentity) {
        args->forward_coefficients =
            output.Vector(5, kNumForwardCoefficients * args->view.channels);
      }
    }
    BindStatistics(output, args);
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_H_
