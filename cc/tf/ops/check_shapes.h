// Which shapes an op accepts whose checks follow from its signature, the view
// of x, and how errors are made.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/view.h"
#include "cc/tf/ops/op_signature.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// One sentence: the parts, strings and numbers, in a row. (TensorFlow's
// function of this name is deprecated in its newer versions.)
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The view of a tensor whose channels are its dimension `channel_dim`.
inline View ViewOf(const tensorflow::TensorShape& shape, int channel_dim) {
  View view{1, shape.dim_size(channel_dim), 1};
  // Beside a dimension of 0, the others may have any product, also one beyond
  // 64 bits.
  if (shape.num_elements() == 0) return View{0, view.channels, 1};
  for (int i = 0; i < channel_dim; ++i) view.outer *= shape.dim_size(i);
  for (int i = channel_dim + 1; i < shape.dims(); ++i) {
    view.inner *= shape.dim_size(i);
  }
  return view;
}

// The dimension of x that the channels are; from the end if negative.
struct ChannelAxis {
  int axis = 1;
  int rank = 0;  // Of x, where an op takes data_format's alone; 0: any.
  // Beside the number of channels in messages.
  std::string reason = "dimension 1";

  // From the attrs of `context`, of a kernel or of a shape function.
  template <typename Context>
  absl::Status Read(const OpSignature& op, Context* context) {
    if (op.layout == OpSignature::kAxis) {
      TF_RETURN_IF_ERROR(context->GetAttr("axis", &axis));
      reason = "axis is " + std::to_string(axis);
    } else if (op.layout == OpSignature::kDataFormat) {
      std::string data_format;
      TF_RETURN_IF_ERROR(context->GetAttr("data_format", &data_format));
      const bool takes_any = op.checks == OpSignature::kByKind;
      rank = takes_any ? 0 : static_cast<int>(data_format.size());
      const bool last = !data_format.empty() && data_format.back() == 'C';
      axis = last ? -1 : 1;
      reason = "data_format says that channels are ";
      reason += last ? "the last dimension" : "dimension 1";
    }
    return absl::OkStatus();
  }
  int Dim(int rank) const { return axis < 0 ? axis + rank : axis; }
};

// OK if the shapes of the `count` inputs of a call fit together as far as they
// are known, with what is known of the shapes of x and of the vectors; or
// InvalidArgument in one sentence that names the tensor at fault and its shape.
absl::Status CheckShapes(const OpSignature& op, const ChannelAxis& axis,
                         const tensorflow::PartialTensorShape* shapes,
                         int count, tensorflow::PartialTensorShape* data,
                         tensorflow::PartialTensorShape* channels);

// The same of known shapes, with the view of x.
absl::Status CheckShapes(const OpSignature& op, const ChannelAxis& axis,
                         const tensorflow::TensorShape* const* shapes,
                         int count, View* view);

// The shapes of BatchNormGatherStats: counts [W], means and m2s [W, C].
absl::Status CheckGatherStatsShapes(
    const tensorflow::PartialTensorShape (&shapes)[3],
    tensorflow::PartialTensorShape* channels);

}  // namespace tf_bn_ops
