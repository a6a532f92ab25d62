// The shapes that BatchNormTrainingBackprop accepts: one check for shape
// inference, where parts may be unknown, and for the kernel, where nothing is.

#ifndef TF_BN_OPS_CC_OPS_TRAINING_BACKPROP_SHAPES_H_
#define TF_BN_OPS_CC_OPS_TRAINING_BACKPROP_SHAPES_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// Inputs of the op, in its order.
struct TrainingBackpropShapes {
  tensorflow::PartialTensorShape input;             // (N, C, ...)
  tensorflow::PartialTensorShape gamma;             // (C)
  tensorflow::PartialTensorShape beta;              // (C)
  tensorflow::PartialTensorShape mean;              // (C)
  tensorflow::PartialTensorShape variance;          // (C)
  tensorflow::PartialTensorShape normalized_delta;  // (N, C, ...)
};

// OK if the shapes fit together as far as they are known; otherwise
// InvalidArgument with one sentence that names the tensor at fault and both
// shapes. On success `input_delta` and `channels`, a vector, are what is known
// of the shapes of the outputs.
absl::Status CheckTrainingBackpropShapes(
    const TrainingBackpropShapes& shapes,
    tensorflow::PartialTensorShape* input_delta,
    tensorflow::PartialTensorShape* channels);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_TRAINING_BACKPROP_SHAPES_H_
