// Shape functions of the ops whose Spec has CheckShapes(), and what those of
// others have in common.

#ifndef TF_BN_OPS_CC_OPS_SHAPE_INFERENCE_H_
#define TF_BN_OPS_CC_OPS_SHAPE_INFERENCE_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace tf_bn_ops {

// What is known of a shape.
inline tensorflow::PartialTensorShape PartialShapeOf(
    tensorflow::shape_inference::InferenceContext* c,
    tensorflow::shape_inference::ShapeHandle shape) {
  tensorflow::TensorShapeProto proto;
  c->ShapeHandleToProto(shape, &proto);
  return tensorflow::PartialTensorShape(proto);
}

// Infers the outputs, the first Spec::kDataOutputs of them in the shape of x,
// the others vectors of one element per channel.
template <typename Spec>
absl::Status InferShapes(const Spec& spec,
                         tensorflow::shape_inference::InferenceContext* c) {
  tensorflow::PartialTensorShape shapes[Spec::kInputs];
  for (int i = 0; i < Spec::kInputs; ++i) {
    shapes[i] = PartialShapeOf(c, c->input(i));
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

// Merges the channels of x, which `view` has the shape of in the op's attr
// data_format, with those of `vector`, [channels].
inline absl::Status MergeChannels(
    tensorflow::shape_inference::InferenceContext* c,
    tensorflow::shape_inference::ShapeHandle* view,
    tensorflow::shape_inference::ShapeHandle* vector) {
  std::string data_format;
  TF_RETURN_IF_ERROR(c->GetAttr("data_format", &data_format));
  const int dim = data_format.back() == 'C' ? c->Rank(*view) - 1 : 1;
  tensorflow::shape_inference::DimensionHandle channels;
  TF_RETURN_IF_ERROR(
      c->Merge(c->Dim(*view, dim), c->Dim(*vector, 0), &channels));
  *vector = c->Vector(channels);
  return c->ReplaceDim(*view, dim, channels, view);
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_SHAPE_INFERENCE_H_
