// The shape rules of FusedBatchNormGradGrad and their errors.

#include "cc/ops/second_order_shapes.h"

#include <cstdint>

#include "cc/ops/errors.h"

namespace tf_bn_ops {

using tensorflow::PartialTensorShape;

const char* const kSecondOrderInputNames[kSecondOrderInputs] = {
    "x_backprop_grad",
    "scale_backprop_grad",
    "offset_backprop_grad",
    "y_backprop",
    "x",
    "scale",
    "reserve_space_1",
    "reserve_space_2"};

namespace {

constexpr int kX = 4;
// The other inputs of the shape of x, and those with one element per channel.
constexpr int kLikeX[] = {0, 3};
constexpr int kVectors[] = {1, 2, 5, 6, 7};

}  // namespace

bool ChannelsLast(const std::string& data_format) {
  return !data_format.empty() && data_format.back() == 'C';
}

absl::Status CheckSecondOrderShapes(
    const PartialTensorShape (&shapes)[kSecondOrderInputs], bool channels_last,
    PartialTensorShape* data, PartialTensorShape* channels) {
  const auto described = [&](int i) {
    return absl::StrCat(kSecondOrderInputNames[i], " has shape ",
                        shapes[i].DebugString());
  };
  *data = shapes[kX];
  for (int i : kLikeX) {
    PartialTensorShape merged;
    if (!data->MergeWith(shapes[i], &merged).ok()) {
      return InvalidArgument(kSecondOrderInputNames[i],
                             " must have the shape of x, but ", described(i),
                             " and ", described(kX));
    }
    *data = merged;
  }
  const bool known_rank = !data->unknown_rank();
  if (known_rank && data->dims() < 2) {
    return InvalidArgument("x must have at least two dimensions, but ",
                           described(kX));
  }
  const int channel_dim =
      !known_rank ? -1 : (channels_last ? data->dims() - 1 : 1);
  int64_t size = known_rank ? data->dim_size(channel_dim) : -1;
  for (int i : kVectors) {
    if (shapes[i].unknown_rank()) continue;
    if (shapes[i].dims() != 1) {
      return InvalidArgument(
          kSecondOrderInputNames[i],
          " must be 1-dimensional, with one element per channel of x, but ",
          described(i));
    }
    const int64_t elements = shapes[i].dim_size(0);
    if (size >= 0 && elements >= 0 && elements != size) {
      return InvalidArgument(
          kSecondOrderInputNames[i],
          " must have one element per channel of x, ", size,
          " (data_format says that channels are ",
          channels_last ? "the last dimension" : "dimension 1", "), but ",
          described(i));
    }
    if (size < 0) size = elements;
  }
  if (known_rank && size >= 0) data->set_dim(channel_dim, size);
  *channels = PartialTensorShape({size});
  return absl::OkStatus();
}

}  // namespace tf_bn_ops
