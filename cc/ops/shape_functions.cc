// Shape functions of the ops that are no twins of TensorFlow's.

#include "cc/ops/shape_functions.h"

#include <string>
#include <vector>

#include "cc/ops/check_shapes.h"
#include "cc/ops/errors.h"
#include "cc/ops/generated/op_signatures.h"
#include "cc/ops/op_call.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::PartialTensorShape;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// What is known of the shapes of the inputs.
std::vector<PartialTensorShape> InputShapes(InferenceContext* c) {
  std::vector<PartialTensorShape> shapes;
  for (int i = 0; i < c->num_inputs(); ++i) {
    tensorflow::TensorShapeProto proto;
    c->ShapeHandleToProto(c->input(i), &proto);
    shapes.emplace_back(proto);
  }
  return shapes;
}

// The length of a list, which is 0 or 1; 0 where the op has no such attr.
absl::Status ReadLength(InferenceContext* c, const char* attr, const char* what,
                        int* length) {
  *length = 0;
  if (!c->GetAttr(attr, length).ok() || *length <= 1) return absl::OkStatus();
  return InvalidArgument("at most one ", what, " is accepted, but ", attr,
                         " is ", *length);
}
absl::Status ReadSideInputs(InferenceContext* c, int* side_inputs) {
  return ReadLength(c, "num_side_inputs", "side input", side_inputs);
}

// Merges the channels of x, which `view` has the shape of in the op's attr
// data_format, with the size of `vector`, [channels].
absl::Status MergeChannels(InferenceContext* c, ShapeHandle* view,
                           ShapeHandle* vector) {
  std::string data_format;
  TF_RETURN_IF_ERROR(c->GetAttr("data_format", &data_format));
  const int dim = data_format.back() == 'C' ? c->Rank(*view) - 1 : 1;
  DimensionHandle channels;
  TF_RETURN_IF_ERROR(
      c->Merge(c->Dim(*view, dim), c->Dim(*vector, 0), &channels));
  *vector = c->Vector(channels);
  return c->ReplaceDim(*view, dim, channels, view);
}

}  // namespace

absl::Status InferShapes(const OpSignature& op, InferenceContext* c) {
  int ys, side_inputs;
  TF_RETURN_IF_ERROR(ReadLength(c, "num_y", "y", &ys));
  TF_RETURN_IF_ERROR(ReadSideInputs(c, &side_inputs));
  ChannelAxis axis;
  TF_RETURN_IF_ERROR(axis.Read(op, c));
  const std::vector<PartialTensorShape> shapes = InputShapes(c);
  PartialTensorShape data, channels;
  TF_RETURN_IF_ERROR(CheckShapes(op, axis, shapes.data(),
                                 static_cast<int>(shapes.size()), &data,
                                 &channels));
  ShapeHandle view, vector;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(data, &view));
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(channels, &vector));
  for (int i = 0; i < c->num_outputs(); ++i) {
    const ArgKind kind = op.Output(i).kind;
    c->set_output(i, kind == ArgKind::kVector   ? vector
                     : kind == ArgKind::kScalar ? c->Scalar()
                                                : view);
  }
  return absl::OkStatus();
}

absl::Status InferBackwardElemtShapes(InferenceContext* c) {
  int ys, side_inputs;
  TF_RETURN_IF_ERROR(c->GetAttr("num_y", &ys));
  TF_RETURN_IF_ERROR(c->GetAttr("num_side_inputs", &side_inputs));
  Activation activation;
  TF_RETURN_IF_ERROR(ReadActivationMode(c, &activation));
  TF_RETURN_IF_ERROR(CheckMaskSource(ys, side_inputs, activation));
  return InferShapes(kBatchNormBackwardElemt, c);
}

absl::Status InferGatherStatsShapes(InferenceContext* c) {
  const std::vector<PartialTensorShape> inputs = InputShapes(c);
  PartialTensorShape channels;
  TF_RETURN_IF_ERROR(
      CheckGatherStatsShapes({inputs[0], inputs[1], inputs[2]}, &channels));
  ShapeHandle vector;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(channels, &vector));
  c->set_output(0, c->Scalar());
  c->set_output(1, vector);
  c->set_output(2, vector);
  return absl::OkStatus();
}

// Adds what mean and variance say where they are read, and the side input:
// TensorFlow's shape function looks at the former in inference alone.
absl::Status InferExShapes(InferenceContext* c) {
  int side_inputs;
  TF_RETURN_IF_ERROR(ReadSideInputs(c, &side_inputs));
  TF_RETURN_IF_ERROR(tensorflow::shape_inference::FusedBatchNormV3Shape(c));
  ShapeHandle y = c->output(0), vector = c->output(1);
  bool is_training;
  float factor;
  TF_RETURN_IF_ERROR(c->GetAttr("is_training", &is_training));
  TF_RETURN_IF_ERROR(c->GetAttr("exponential_avg_factor", &factor));
  for (const Role role : {Role::kMean, Role::kVariance}) {
    ShapeHandle given;
    const int input = kFusedBatchNormEx.InputOf(role);
    TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 1, &given));
    if (is_training && factor == 1) continue;
    TF_RETURN_IF_ERROR(c->Merge(vector, given, &vector));
  }
  if (side_inputs == 1) {
    const int input = kFusedBatchNormEx.InputOf(Role::kSideInput);
    TF_RETURN_IF_ERROR(c->Merge(y, c->input(input), &y));
  }
  TF_RETURN_IF_ERROR(MergeChannels(c, &y, &vector));
  c->set_output(0, y);
  for (int i = 1; i <= 4; ++i) c->set_output(i, vector);
  Call call;
  call.is_training = is_training;
  TF_RETURN_IF_ERROR(ReadActivationMode(c, &call.activation));
  if (OpCall::KeepsCoefficients(call)) {
    c->set_output(5, c->Matrix(kNumForwardCoefficients, c->Dim(vector, 0)));
  }
  return absl::OkStatus();
}

// Adds what x says, and offset and y where they are read: TensorFlow's shape
// function takes the dimensions from y_backprop, all but the channels'.
absl::Status InferGradExShapes(InferenceContext* c) {
  int side_inputs;
  TF_RETURN_IF_ERROR(ReadSideInputs(c, &side_inputs));
  TF_RETURN_IF_ERROR(tensorflow::shape_inference::FusedBatchNormGradShape(c));
  const auto input = [c](Role role) {
    return c->input(kFusedBatchNormGradEx.InputOf(role));
  };
  ShapeHandle view, vector = c->output(1);
  TF_RETURN_IF_ERROR(c->Merge(c->output(0), input(Role::kX), &view));
  Activation activation;
  TF_RETURN_IF_ERROR(ReadActivationMode(c, &activation));
  if (activation != Activation::kIdentity) {
    TF_RETURN_IF_ERROR(c->Merge(view, input(Role::kY), &view));
    ShapeHandle offset = input(Role::kOffset), same;
    if (c->RankKnown(offset) && c->Rank(offset) != 1) {
      // It can only be reserve_space_3 again: the mask is computed from y.
      const ShapeHandle reserve_space = input(Role::kForwardCoefficients);
      if (!c->Merge(offset, reserve_space, &same).ok()) {
        return InvalidArgument(
            "offset must be a vector of as many elements as x has channels, "
            "or an empty one, got ",
            c->DebugString(offset));
      }
    } else if (c->RankKnown(offset) && c->ValueKnown(c->Dim(offset, 0)) &&
               c->Value(c->Dim(offset, 0)) > 0) {
      TF_RETURN_IF_ERROR(c->Merge(vector, offset, &vector));
    }
  }
  TF_RETURN_IF_ERROR(MergeChannels(c, &view, &vector));
  c->set_output(0, view);
  c->set_output(1, vector);
  c->set_output(2, vector);
  if (side_inputs == 1) c->set_output(c->num_outputs() - 1, view);
  return absl::OkStatus();
}

}  // namespace tf_bn_ops
