// Spec of TfBnOps>FusedBatchNormGradGrad for shape inference and the kernels of
// every device and of XLA: attributes, accepted shapes, element types, and
// which input is which of the formula's. fused_batch_norm_grad_grad.cc has the
// OpDef.

#ifndef TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_GRAD_H_
#define TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_GRAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"
#include "cc/core/view.h"
#include "cc/ops/dtype_of.h"
#include "cc/ops/errors.h"
#include "cc/ops/fused_batch_norm_attrs.h"
#include "cc/ops/view_of.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// X(T, U) for each kernel: vectors in float, as the fused ops have them, or all
// tensors of one element type, as BatchNormTrainingBackprop has them.
#define TFBN_FUSED_BATCH_NORM_GRAD_GRAD_KERNELS(X) \
  TFBN_FOR_EACH_FUSED_TYPE(X, float)               \
  TFBN_FOR_EACH_NARROW_TYPE(TFBN_SAME_TYPE, X)     \
  X(double, double)

struct FusedBatchNormGradGradSpec : FusedBatchNormAttrs {
  using Args = BatchNormGradGradArgs;

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
  static constexpr const char* kInputNames[kInputs] = {"x_backprop_grad",
                                                       "scale_backprop_grad",
                                                       "offset_backprop_grad",
                                                       "y_backprop",
                                                       "x",
                                                       "scale",
                                                       "reserve_space_1",
                                                       "reserve_space_2"};
  static constexpr int kOutputs = 3;
  static constexpr int kDataOutputs = 2;

  // epsilon is the sum of two attrs, and data_format that of any rank.
  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    float first;
    std::vector<float> rest;
    std::string data_format;
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &first));
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon_rest", &rest));
    TF_RETURN_IF_ERROR(context->GetAttr("data_format", &data_format));
    TF_RETURN_IF_ERROR(context->GetAttr("is_training", &is_training));
    epsilon = first;
    for (float part : rest) epsilon += part;
    channels_last = !data_format.empty() && data_format.back() == 'C';
    return absl::OkStatus();
  }

  // OK if the shapes fit together as far as they are known, with what is known
  // of the shapes of x and of the vectors; or InvalidArgument in one sentence
  // that names the tensor at fault and its shape.
  absl::Status CheckShapes(
      const tensorflow::PartialTensorShape (&shapes)[kInputs],
      tensorflow::PartialTensorShape* data,
      tensorflow::PartialTensorShape* channels) const;

  // The same of known shapes, with the view of x.
  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const {
    return ValidateByCheckShapes(*this, shapes, view);
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
  static void BindOutputs(const Allocate& output, Args* args) {
    args->y_backprop_grad = output(0, kX, {kXBackpropGrad, kYBackprop, kX});
    args->x_grad = output(1, kX, {kYBackprop, kX, kXBackpropGrad});
    args->scale_grad = output(2, kScale, {});
  }
};

inline absl::Status FusedBatchNormGradGradSpec::CheckShapes(
    const tensorflow::PartialTensorShape (&shapes)[kInputs],
    tensorflow::PartialTensorShape* data,
    tensorflow::PartialTensorShape* channels) const {
  const auto described = [&](int i) {
    return absl::StrCat(kInputNames[i], " has shape ", shapes[i].DebugString());
  };
  *data = shapes[kX];
  for (Input i : {kXBackpropGrad, kYBackprop}) {
    tensorflow::PartialTensorShape merged;
    if (!data->MergeWith(shapes[i], &merged).ok()) {
      return InvalidArgument(kInputNames[i], " must have the shape of x, but ",
                             described(i), " and ", described(kX));
    }
    *data = merged;
  }
  const bool known_rank = !data->unknown_rank();
  if (known_rank && data->dims() < 2) {
    return InvalidArgument("x must have at least two dimensions, but ",
                           described(kX));
  }
  const int channel_dim = known_rank ? ChannelDim(data->dims()) : -1;
  int64_t size = known_rank ? data->dim_size(channel_dim) : -1;
  for (Input i :
       {kScaleBackpropGrad, kOffsetBackpropGrad, kScale, kMean, kVariance}) {
    if (shapes[i].unknown_rank()) continue;
    if (shapes[i].dims() != 1) {
      return InvalidArgument(
          kInputNames[i],
          " must be 1-dimensional, with one element per channel of x, but ",
          described(i));
    }
    const int64_t elements = shapes[i].dim_size(0);
    if (size >= 0 && elements >= 0 && elements != size) {
      return InvalidArgument(
          kInputNames[i], " must have one element per channel of x, ", size,
          " (data_format says that channels are ",
          channels_last ? "the last dimension" : "dimension 1", "), but ",
          described(i));
    }
    if (size < 0) size = elements;
  }
  if (known_rank && size >= 0) data->set_dim(channel_dim, size);
  *channels = tensorflow::PartialTensorShape({size});
  return absl::OkStatus();
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_GRAD_GRAD_H_
