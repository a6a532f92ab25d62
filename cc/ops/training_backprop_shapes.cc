// The shape rules of BatchNormTrainingBackprop and their errors.

#include "cc/ops/training_backprop_shapes.h"

#include <cstdint>

#include "cc/ops/errors.h"

namespace tf_bn_ops {
namespace {

using tensorflow::PartialTensorShape;

struct Named {
  const char* name;
  const PartialTensorShape* shape;
};

absl::Status Mismatch(const char* sentence, const Named& a, const Named& b) {
  return InvalidArgument(sentence, ", but ", a.name, " has shape ",
                         a.shape->DebugString(), " and ", b.name, " has shape ",
                         b.shape->DebugString());
}

bool KnownRank(const PartialTensorShape& shape) {
  return !shape.unknown_rank();
}

// The size of dimension `i`; -1 if it or the rank is unknown.
int64_t Dim(const PartialTensorShape& shape, int i) {
  return KnownRank(shape) ? shape.dim_size(i) : -1;
}

}  // namespace

absl::Status CheckTrainingBackpropShapes(const TrainingBackpropShapes& shapes,
                                         PartialTensorShape* input_delta,
                                         PartialTensorShape* channels) {
  const Named input = {"input", &shapes.input};
  const Named delta = {"normalized_delta", &shapes.normalized_delta};
  const Named vectors[] = {{"gamma", &shapes.gamma},
                           {"beta", &shapes.beta},
                           {"mean", &shapes.mean},
                           {"variance", &shapes.variance}};
  if (KnownRank(*input.shape) && input.shape->dims() < 2) {
    return Mismatch("input must have at least the two dimensions (N, C)", input,
                    delta);
  }
  for (const Named& vector : vectors) {
    if (KnownRank(*vector.shape) && vector.shape->dims() != 1) {
      return InvalidArgument(
          vector.name,
          " must be 1-dimensional, with one element per channel of input, but ",
          vector.name, " has shape ", vector.shape->DebugString(),
          " and input has shape ", input.shape->DebugString());
    }
  }
  Named known = vectors[0];  // The first vector whose size is known, if any.
  for (const Named& vector : vectors) {
    if (Dim(*vector.shape, 0) < 0) continue;
    if (Dim(*known.shape, 0) < 0) known = vector;
    if (Dim(*vector.shape, 0) != Dim(*known.shape, 0)) {
      return Mismatch("gamma, beta, mean and variance must have the same shape",
                      known, vector);
    }
  }
  if (!shapes.input.IsCompatibleWith(shapes.normalized_delta) ||
      (KnownRank(*delta.shape) && delta.shape->dims() < 2)) {
    return Mismatch("normalized_delta must have the shape of input", delta,
                    input);
  }
  if (!shapes.input.MergeWith(shapes.normalized_delta, input_delta).ok()) {
    return Mismatch("normalized_delta must have the shape of input", delta,
                    input);
  }
  int64_t size = Dim(*known.shape, 0);
  const int64_t input_channels = Dim(*input_delta, 1);
  // Whichever of the two gave the channel dimension is named.
  const Named data = Dim(*input.shape, 1) >= 0 ? input : delta;
  if (size >= 0 && input_channels >= 0 && size != input_channels) {
    return InvalidArgument(known.name, " must have one element per channel of ",
                           data.name, " (dimension 1), but ", known.name,
                           " has shape ", known.shape->DebugString(), " and ",
                           data.name, " has shape ", data.shape->DebugString());
  }
  if (size < 0) size = input_channels;
  if (size == 0) {
    return Mismatch("input must have at least one channel (dimension 1)", input,
                    known);
  }
  *channels = PartialTensorShape({size});
  if (KnownRank(*input_delta) && input_channels < 0)
    input_delta->set_dim(1, size);
  return absl::OkStatus();
}

}  // namespace tf_bn_ops
