// Checks shapes by the signature of an op.

#include "cc/tf/ops/check_shapes.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tf_bn_ops {
namespace {

using tensorflow::PartialTensorShape;

std::string Described(const char* name, const PartialTensorShape& shape) {
  return absl::StrCat(name, " has shape ", shape.DebugString());
}

// The shape of x from all inputs that have it.
absl::Status MergeViews(const OpSignature& op, const PartialTensorShape* shapes,
                        int count, PartialTensorShape* data) {
  const char* const x = op.inputs[op.x].name;
  *data = shapes[op.x];
  for (int i = 0; i < count; ++i) {
    if (op.Input(i).kind() != ArgKind::kView) continue;
    const char* const name = op.Input(i).name;
    PartialTensorShape merged;
    if (!data->MergeWith(shapes[i], &merged).ok()) {
      return InvalidArgument(name, " must have the shape of ", x, ", but ",
                             Described(name, shapes[i]), " and ",
                             Described(x, shapes[op.x]));
    }
    *data = merged;
  }
  return absl::OkStatus();
}

// The dimension of the channels; -1 if the rank is unknown.
absl::Status FindChannels(const OpSignature& op, const ChannelAxis& axis,
                          const PartialTensorShape& data, int* dim) {
  *dim = -1;
  if (data.unknown_rank()) return absl::OkStatus();
  const char* const x = op.inputs[op.x].name;
  const bool has_axis = op.layout == OpSignature::kAxis;
  const int rank = data.dims();
  if (rank < (has_axis ? 1 : 2)) {
    return InvalidArgument(
        x, " must have at least ",
        has_axis ? "one dimension, that of the channels" : "two dimensions",
        ", but ", Described(x, data));
  }
  if (axis.rank != 0 && rank != axis.rank) {
    return InvalidArgument(x, " must be ", axis.rank, "-dimensional, as ",
                           "data_format says, but ", Described(x, data));
  }
  if (axis.axis < -rank || axis.axis >= rank) {
    return InvalidArgument("axis must be a dimension of ", x, ", at least ",
                           -rank, " and at most ", rank - 1, ", but ",
                           axis.reason, " and ", Described(x, data));
  }
  *dim = axis.Dim(rank);
  return absl::OkStatus();
}

// Merges `size`, -1 if unknown, with the size of a vector.
absl::Status MergeVector(const char* x, const char* name,
                         const PartialTensorShape& shape,
                         const std::string& reason, int64_t* size) {
  if (shape.unknown_rank()) return absl::OkStatus();
  if (shape.dims() != 1) {
    return InvalidArgument(
        name, " must be 1-dimensional, with one element per channel of ", x,
        ", but ", Described(name, shape));
  }
  const int64_t elements = shape.dim_size(0);
  if (*size >= 0 && elements >= 0 && elements != *size) {
    return InvalidArgument(name, " must have one element per channel of ", x,
                           ", ", *size, " (", reason, "), but ",
                           Described(name, shape));
  }
  if (*size < 0) *size = elements;
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckShapes(const OpSignature& op, const ChannelAxis& axis,
                         const PartialTensorShape* shapes, int count,
                         PartialTensorShape* data,
                         PartialTensorShape* channels) {
  const char* const x = op.inputs[op.x].name;
  absl::Status status = MergeViews(op, shapes, count, data);
  int dim = -1;
  if (status.ok()) status = FindChannels(op, axis, *data, &dim);
  if (!status.ok()) return status;
  int64_t size = dim >= 0 ? data->dim_size(dim) : -1;
  for (int i = 0; i < count; ++i) {
    const char* const name = op.Input(i).name;
    const ArgKind kind = op.Input(i).kind();
    if (kind == ArgKind::kVector) {
      status = MergeVector(x, name, shapes[i], axis.reason, &size);
    } else if (kind == ArgKind::kScalar && !shapes[i].unknown_rank() &&
               shapes[i].dims() != 0) {
      status = InvalidArgument(name, " must be a scalar, but ",
                               Described(name, shapes[i]));
    }
    if (!status.ok()) return status;
  }
  if (dim >= 0 && size >= 0) data->set_dim(dim, size);
  if (size >= 0 && size < op.min_channels) {
    return InvalidArgument(x, " must have at least one channel (", axis.reason,
                           "), but ", Described(x, *data));
  }
  *channels = PartialTensorShape({size});
  return absl::OkStatus();
}

absl::Status CheckShapes(const OpSignature& op, const ChannelAxis& axis,
                         const tensorflow::TensorShape* const* shapes,
                         int count, View* view) {
  std::vector<PartialTensorShape> partial;
  for (int i = 0; i < count; ++i) {
    partial.emplace_back(shapes[i]->dim_sizes());
  }
  PartialTensorShape unused_data, unused_channels;
  const absl::Status status = CheckShapes(op, axis, partial.data(), count,
                                          &unused_data, &unused_channels);
  if (status.ok()) {
    *view = ViewOf(*shapes[op.x], axis.Dim(shapes[op.x]->dims()));
  }
  return status;
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

}  // namespace tf_bn_ops
