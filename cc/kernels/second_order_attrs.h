// The attributes of FusedBatchNormGradGrad, for all kernels of the op.

#ifndef TF_BN_OPS_CC_KERNELS_SECOND_ORDER_ATTRS_H_
#define TF_BN_OPS_CC_KERNELS_SECOND_ORDER_ATTRS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/ops/second_order_shapes.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {

struct SecondOrderAttrs {
  double epsilon = 0;
  bool channels_last = true;
  bool is_training = true;

  absl::Status Read(tensorflow::OpKernelConstruction* context) {
    float first;
    std::vector<float> rest;
    std::string data_format;
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &first));
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon_rest", &rest));
    TF_RETURN_IF_ERROR(context->GetAttr("data_format", &data_format));
    TF_RETURN_IF_ERROR(context->GetAttr("is_training", &is_training));
    channels_last = ChannelsLast(data_format);
    epsilon = first;
    for (float part : rest) epsilon += part;
    return absl::OkStatus();
  }

  // The dimension of the channels in a tensor of this rank.
  int ChannelDim(int rank) const { return channels_last ? rank - 1 : 1; }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_SECOND_ORDER_ATTRS_H_
