// Spec of TfBnOps>BatchNormTrainingBackprop for shape inference and the kernels
// of every device and of XLA: attributes, accepted shapes, element types, and
// which input is which of the formula's. batch_norm_training_backprop.cc has
// the OpDef.

#ifndef TF_BN_OPS_CC_OPS_BATCH_NORM_TRAINING_BACKPROP_H_
#define TF_BN_OPS_CC_OPS_BATCH_NORM_TRAINING_BACKPROP_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cc/core/view.h"
#include "cc/ops/dtype_of.h"
#include "cc/ops/errors.h"
#include "cc/ops/first_order_bindings.h"
#include "cc/ops/view_of.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_bn_ops {

// X(T, U) for each kernel: all tensors have one element type.
#define TFBN_BATCH_NORM_TRAINING_BACKPROP_KERNELS(X) \
  TFBN_FOR_EACH_TYPE(TFBN_SAME_TYPE, X)

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
  static constexpr int kDataOutputs = 1;

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

  // OK if the shapes fit together as far as they are known, with what is known
  // of input_delta and of the vectors; or InvalidArgument in one sentence that
  // names the tensor at fault and both shapes.
  absl::Status CheckShapes(
      const tensorflow::PartialTensorShape (&shapes)[kInputs],
      tensorflow::PartialTensorShape* input_delta,
      tensorflow::PartialTensorShape* channels) const;

  // The same of known shapes, with the view of `input`.
  absl::Status Validate(const tensorflow::TensorShape* const (&shapes)[kInputs],
                        View* view) const {
    return ValidateByCheckShapes(*this, shapes, view);
  }

  // `variance` is the variance on every device: no forward op saves rstd there.
  template <typename FormulaArgs>
  void BindAttrs(bool /*saves_rstd*/, FormulaArgs* args) const {
    args->is_training = true;
    args->epsilon = epsilon;
  }
};

namespace training_backprop {

struct NamedShape {
  const char* name;
  const tensorflow::PartialTensorShape& shape;

  bool HasRank() const { return !shape.unknown_rank(); }
  // The size of dimension `i`; -1 if it or the rank is unknown.
  int64_t Dim(int i) const { return HasRank() ? shape.dim_size(i) : -1; }
};

inline absl::Status Mismatch(const char* sentence, const NamedShape& a,
                             const NamedShape& b) {
  return InvalidArgument(sentence, ", but ", a.name, " has shape ",
                         a.shape.DebugString(), " and ", b.name, " has shape ",
                         b.shape.DebugString());
}

// The vectors are 1-D and, as far as known, of one size. On success `known` is
// the first of them whose size is known, else the first.
inline absl::Status CheckVectors(const NamedShape& input,
                                 const NamedShape (&vectors)[4],
                                 const NamedShape** known) {
  for (const NamedShape& vector : vectors) {
    if (vector.HasRank() && vector.shape.dims() != 1) {
      return InvalidArgument(
          vector.name,
          " must be 1-dimensional, with one element per channel of input, but ",
          vector.name, " has shape ", vector.shape.DebugString(),
          " and input has shape ", input.shape.DebugString());
    }
  }
  *known = &vectors[0];
  for (const NamedShape& vector : vectors) {
    if (vector.Dim(0) < 0) continue;
    if ((*known)->Dim(0) < 0) *known = &vector;
    if (vector.Dim(0) != (*known)->Dim(0)) {
      return Mismatch("gamma, beta, mean and variance must have the same shape",
                      **known, vector);
    }
  }
  return absl::OkStatus();
}

}  // namespace training_backprop

inline absl::Status BatchNormTrainingBackpropSpec::CheckShapes(
    const tensorflow::PartialTensorShape (&shapes)[kInputs],
    tensorflow::PartialTensorShape* input_delta,
    tensorflow::PartialTensorShape* channels) const {
  using training_backprop::Mismatch;
  using training_backprop::NamedShape;
  const NamedShape input = {"input", shapes[kX]};
  const NamedShape delta = {"normalized_delta", shapes[kYBackprop]};
  if (input.HasRank() && input.shape.dims() < 2) {
    return Mismatch("input must have at least the two dimensions (N, C)", input,
                    delta);
  }
  const NamedShape vectors[] = {{"gamma", shapes[kScale]},
                                {"beta", shapes[kOffset]},
                                {"mean", shapes[kMean]},
                                {"variance", shapes[kVariance]}};
  const NamedShape* known = nullptr;
  TF_RETURN_IF_ERROR(training_backprop::CheckVectors(input, vectors, &known));
  if ((delta.HasRank() && delta.shape.dims() < 2) ||
      !input.shape.MergeWith(delta.shape, input_delta).ok()) {
    return Mismatch("normalized_delta must have the shape of input", delta,
                    input);
  }
  int64_t size = known->Dim(0);
  const int64_t input_channels = NamedShape{"", *input_delta}.Dim(1);
  // Whichever of the two gave the channel dimension is named.
  const NamedShape& data = input.Dim(1) >= 0 ? input : delta;
  if (size >= 0 && input_channels >= 0 && size != input_channels) {
    return InvalidArgument(known->name,
                           " must have one element per channel of ", data.name,
                           " (dimension 1), but ", known->name, " has shape ",
                           known->shape.DebugString(), " and ", data.name,
                           " has shape ", data.shape.DebugString());
  }
  if (size < 0) size = input_channels;
  if (size == 0) {
    return Mismatch("input must have at least one channel (dimension 1)", input,
                    *known);
  }
  *channels = tensorflow::PartialTensorShape({size});
  if (!input_delta->unknown_rank() && input_channels < 0) {
    input_delta->set_dim(1, size);
  }
  return absl::OkStatus();
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_BATCH_NORM_TRAINING_BACKPROP_H_
