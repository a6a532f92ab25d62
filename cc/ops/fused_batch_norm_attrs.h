// The attrs that all fused ops have, forward and gradients: base of their
// specs.

#ifndef TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_ATTRS_H_
#define TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_ATTRS_H_

#include <string>

#include "absl/status/status.h"
#include "cc/ops/errors.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_bn_ops {

struct FusedBatchNormAttrs {
  double epsilon = 0;
  bool channels_last = true;
  bool is_training = true;

  // Reads them from `context`, of a kernel or of a shape function, or says what
  // is wrong with them.
  template <typename Context>
  absl::Status ReadAttrs(Context* context) {
    float epsilon_attr;
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &epsilon_attr));
    epsilon = epsilon_attr;
    std::string data_format;
    TF_RETURN_IF_ERROR(context->GetAttr("data_format", &data_format));
    tensorflow::TensorFormat format;
    if (!tensorflow::FormatFromString(data_format, &format)) {
      return InvalidArgument("Invalid data format");
    }
    channels_last = format == tensorflow::FORMAT_NHWC;
    return context->GetAttr("is_training", &is_training);
  }

  // Also where x has another rank than data_format has letters: TensorFlow
  // compares them when it builds a graph, and its Eigen kernels do not.
  int ChannelDim(int rank) const { return channels_last ? rank - 1 : 1; }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_FUSED_BATCH_NORM_ATTRS_H_
