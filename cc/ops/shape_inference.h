// Shape functions of the ops whose Spec has CheckShapes().

#ifndef TF_BN_OPS_CC_OPS_SHAPE_INFERENCE_H_
#define TF_BN_OPS_CC_OPS_SHAPE_INFERENCE_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace tf_bn_ops {

// Infers the outputs, the first Spec::kDataOutputs of them in the shape of x,
// the others vectors of one element per channel.
template <typename Spec>
absl::Status InferShapes(const Spec& spec,
                         tensorflow::shape_inference::InferenceContext* c) {
  tensorflow::PartialTensorShape shapes[Spec::kInputs];
  for (int i = 0; i < Spec::kInputs; ++i) {
    tensorflow::TensorShapeProto proto;
    c->ShapeHandleToProto(c->input(i), &proto);
    shapes[i] = tensorflow::PartialTensorShape(proto);
  }
  tensorflow::PartialTensorShape data, channels;
  TF_RETURN_IF_ERROR(spec.CheckShapes(shapes, &data, &channels));
  for (int i = 0; i < Spec::kOutputs; ++i) {
    tensorflow::shape_inference::ShapeHandle output;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(
        i < Spec::kDataOutputs ? data : channels, &output));
    c->set_output(i, output);
  }
  return absl::OkStatus();
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_SHAPE_INFERENCE_H_
