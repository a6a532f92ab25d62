// Checks the shapes of the split ops.

#include "cc/ops/split_shapes.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/ops/errors.h"

namespace tf_bn_ops {
namespace {

using tensorflow::PartialTensorShape;

std::string Described(const char* name, const PartialTensorShape& shape) {
  return absl::StrCat(name, " has shape ", shape.DebugString());
}

// The shape of x from all inputs that have it.
absl::Status MergeViews(const SplitInputs& inputs,
                        const PartialTensorShape* shapes, int count,
                        PartialTensorShape* data) {
  int x = 0;
  while (std::string(inputs.At(x).name) != "x") ++x;
  *data = shapes[x];
  for (int i = 0; i < count; ++i) {
    if (inputs.At(i).kind != SplitInput::kView) continue;
    PartialTensorShape merged;
    if (!data->MergeWith(shapes[i], &merged).ok()) {
      return InvalidArgument(inputs.At(i).name,
                             " must have the shape of x, but ",
                             Described(inputs.At(i).name, shapes[i]), " and ",
                             Described("x", shapes[x]));
    }
    *data = merged;
  }
  return absl::OkStatus();
}

// The dimension of the channels; -1 if the rank is unknown.
absl::Status ChannelDimOf(const PartialTensorShape& data, int axis, int* dim) {
  *dim = -1;
  if (data.unknown_rank()) return absl::OkStatus();
  const int rank = data.dims();
  if (rank == 0) {
    return InvalidArgument(
        "x must have at least one dimension, that of the channels, but ",
        Described("x", data));
  }
  if (axis < -rank || axis >= rank) {
    return InvalidArgument("axis must be a dimension of x, at least ", -rank,
                           " and at most ", rank - 1, ", but axis is ", axis,
                           " and ", Described("x", data));
  }
  *dim = axis < 0 ? axis + rank : axis;
  return absl::OkStatus();
}

// Merges `size`, -1 if unknown, with the size of a vector.
absl::Status MergeVector(const char* name, const PartialTensorShape& shape,
                         int axis, int64_t* size) {
  if (shape.unknown_rank()) return absl::OkStatus();
  if (shape.dims() != 1) {
    return InvalidArgument(
        name, " must be 1-dimensional, with one element per channel of x, but ",
        Described(name, shape));
  }
  const int64_t elements = shape.dim_size(0);
  if (*size >= 0 && elements >= 0 && elements != *size) {
    return InvalidArgument(name, " must have one element per channel of x, ",
                           *size, " (axis is ", axis, "), but ",
                           Described(name, shape));
  }
  if (*size < 0) *size = elements;
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSplitShapes(const SplitInputs& inputs, int axis,
                              const PartialTensorShape* shapes, int count,
                              PartialTensorShape* data,
                              PartialTensorShape* channels) {
  absl::Status status = MergeViews(inputs, shapes, count, data);
  int dim = -1;
  if (status.ok()) status = ChannelDimOf(*data, axis, &dim);
  if (!status.ok()) return status;
  int64_t size = dim >= 0 ? data->dim_size(dim) : -1;
  for (int i = 0; i < count; ++i) {
    const SplitInput input = inputs.At(i);
    if (input.kind == SplitInput::kVector) {
      status = MergeVector(input.name, shapes[i], axis, &size);
    } else if (input.kind == SplitInput::kScalar && !shapes[i].unknown_rank() &&
               shapes[i].dims() != 0) {
      status = InvalidArgument(input.name, " must be a scalar, but ",
                               Described(input.name, shapes[i]));
    }
    if (!status.ok()) return status;
  }
  if (dim >= 0 && size >= 0) data->set_dim(dim, size);
  *channels = PartialTensorShape({size});
  return absl::OkStatus();
}

absl::Status CheckGatherStatsShapes(const PartialTensorShape (&shapes)[3],
                                    PartialTensorShape* channels) {
  constexpr const char* kNames[] = {"counts", "means", "m2s"};
  constexpr int kRanks[] = {1, 2, 2};
  for (int i = 0; i < 3; ++i) {
    if (!shapes[i].unknown_rank() && shapes[i].dims() != kRanks[i]) {
      return InvalidArgument(kNames[i], " must have ", kRanks[i],
                             i == 0 ? " dimension" : " dimensions",
                             ", the replicas first, but ",
                             Described(kNames[i], shapes[i]));
    }
  }
  PartialTensorShape merged;
  if (!shapes[1].MergeWith(shapes[2], &merged).ok()) {
    return InvalidArgument("means and m2s must have the same shape, but ",
                           Described(kNames[1], shapes[1]), " and ",
                           Described(kNames[2], shapes[2]));
  }
  const int64_t rows = merged.unknown_rank() ? -1 : merged.dim_size(0);
  const int64_t counts = shapes[0].unknown_rank() ? -1 : shapes[0].dim_size(0);
  if (rows >= 0 && counts >= 0 && rows != counts) {
    return InvalidArgument(
        "counts must have one element per row of means and m2s, but ",
        Described(kNames[0], shapes[0]), " and ", Described(kNames[1], merged));
  }
  *channels = PartialTensorShape(
      {merged.unknown_rank() ? int64_t{-1} : merged.dim_size(1)});
  return absl::OkStatus();
}

absl::Status CheckMaskSource(int ys, int side_inputs, Activation activation) {
  if (side_inputs == 0 || ys > 0 || activation == Activation::kIdentity) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "y must be given where an activation follows a side input: x does not "
      "say which elements it passed");
}

}  // namespace tf_bn_ops
