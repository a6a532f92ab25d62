// Shape functions of the OpDefs (generated/op_defs.cc).

#pragma once

#include "absl/status/status.h"
#include "cc/tf/ops/op_signature.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_bn_ops {

// Of all ops but TensorFlow's twins, from the kinds of the arguments.
// (TensorFlow's function of its _FusedBatchNormEx refuses ranks and channel
// counts that its GPU kernel does not take.)
absl::Status InferShapes(const OpSignature& op,
                         tensorflow::shape_inference::InferenceContext* c);
template <const OpSignature& op>
absl::Status InferShapes(tensorflow::shape_inference::InferenceContext* c) {
  return InferShapes(op, c);
}

absl::Status InferGatherStatsShapes(
    tensorflow::shape_inference::InferenceContext* c);

}  // namespace tf_bn_ops
