// The shapes that FusedBatchNormGradGrad accepts: one check for shape
// inference, where parts may be unknown, and for the kernel, where nothing is.

#ifndef TF_BN_OPS_CC_OPS_SECOND_ORDER_SHAPES_H_
#define TF_BN_OPS_CC_OPS_SECOND_ORDER_SHAPES_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// Inputs of the op, in its order.
constexpr int kSecondOrderInputs = 8;
extern const char* const kSecondOrderInputNames[kSecondOrderInputs];

// Whether channels are the last dimension in this value of data_format (of any
// of the ops), or dimension 1.
bool ChannelsLast(const std::string& data_format);

// OK if the shapes fit together as far as they are known; otherwise
// InvalidArgument with one sentence that names the tensor at fault and its
// shape. On success `data` and `channels`, a vector, are what is known of the
// shapes of the outputs.
absl::Status CheckSecondOrderShapes(
    const tensorflow::PartialTensorShape (&shapes)[kSecondOrderInputs],
    bool channels_last, tensorflow::PartialTensorShape* data,
    tensorflow::PartialTensorShape* channels);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_SECOND_ORDER_SHAPES_H_
