// The attributes and shapes that FusedBatchNormGrad, V2 and V3 accept: one
// check for the kernels of every device and for XLA's.

#ifndef TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_CHECKS_H_
#define TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "cc/core/view.h"
#include "cc/kernels/view_of.h"
#include "cc/ops/errors.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_bn_ops {

struct FusedBatchNormGradAttrs {
  float epsilon;
  tensorflow::TensorFormat format;
  bool is_training;

  // Fills them in, or says what is wrong with them.
  absl::Status Read(tensorflow::OpKernelConstruction* context) {
    absl::Status status = context->GetAttr("epsilon", &epsilon);
    std::string data_format;
    if (status.ok()) status = context->GetAttr("data_format", &data_format);
    if (status.ok() && !tensorflow::FormatFromString(data_format, &format)) {
      status = InvalidArgument("Invalid data format");
    }
    if (status.ok()) status = context->GetAttr("is_training", &is_training);
    return status;
  }
};

// The dimension of the channels in a tensor of `dims` dimensions.
inline int ChannelDim(tensorflow::TensorFormat format, int dims) {
  return format == tensorflow::FORMAT_NHWC ? dims - 1 : 1;
}

// OK if the shapes fit together, with the view of x; otherwise InvalidArgument.
// The messages are the built-in's, so that code which reads them goes on to
// work.
inline absl::Status CheckFusedBatchNormGradShapes(
    const tensorflow::TensorShape& y_backprop, const tensorflow::TensorShape& x,
    const tensorflow::TensorShape& scale, const tensorflow::TensorShape& mean,
    const tensorflow::TensorShape& variance, tensorflow::TensorFormat format,
    View* view) {
  for (const tensorflow::TensorShape* shape : {&y_backprop, &x}) {
    if (shape->dims() != 4 && shape->dims() != 5) {
      return InvalidArgument("input must be 4 or 5-dimensional",
                             shape->DebugString());
    }
  }
  const struct {
    const char* what;
    const char* name;
    const tensorflow::TensorShape& shape;
  } vectors[] = {{"scale", "scale", scale},
                 {"saved mean", "reserve_space_1", mean},
                 {"saved variance", "reserve_space_2", variance}};
  for (const auto& vector : vectors) {
    if (vector.shape.dims() != 1) {
      return InvalidArgument(vector.what, " must be 1-dimensional",
                             vector.shape.DebugString());
    }
  }
  if (x != y_backprop) {
    return InvalidArgument(
        "x and y_backprop must have same shape, but x has shape ",
        x.DebugString(), " and y_backprop has shape ",
        y_backprop.DebugString());
  }
  *view = ViewOf(x, ChannelDim(format, x.dims()));
  for (const auto& vector : vectors) {
    if (vector.shape.num_elements() != view->channels) {
      return InvalidArgument(vector.name,
                             " must have the same number of elements as the "
                             "channels of x, got ",
                             vector.shape.num_elements(), " and ",
                             view->channels);
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_CHECKS_H_
