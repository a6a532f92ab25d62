// Shape functions of the ops that are no twins of TensorFlow's.

#include "cc/tf/ops/shape_functions.h"

#include <cstdint>
#include <vector>

#include "cc/tf/ops/check_shapes.h"
#include "cc/tf/ops/op_call.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::PartialTensorShape;
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

// Whether a call reads input i, by its attrs and these shapes: one that it does
// not may have any size.
bool Reads(const OpSignature& op, const Call& call,
           const std::vector<PartialTensorShape>& shapes, int i) {
  const Role role = op.Input(i).role;
  const bool is_vector = shapes[i].dims() == 1;
  if (op.checks == OpSignature::kByKind) return true;
  if (!ReadsByAttrs(call, role)) {
    // Statistics of any size are a vector.
    return op.formula == FormulaKind::kForward && !is_vector;
  }
  if (role != Role::kOffset || op.formula != FormulaKind::kGradient) {
    return true;
  }
  // No offsets, or reserve_space_3 again: the mask is computed from y.
  const int other = op.InputOf(Role::kForwardCoefficients);
  return is_vector ? shapes[i].dim_size(0) != 0
                   : !shapes[i].IsCompatibleWith(shapes[other]);
}

}  // namespace

absl::Status InferShapes(const OpSignature& op, InferenceContext* c) {
  Call call;
  call.formula = op.formula;
  int side_inputs;
  TF_RETURN_IF_ERROR(ReadLists(c, &call.activation, &side_inputs));
  bool is_training;
  float factor;
  if (c->GetAttr("is_training", &is_training).ok()) {
    call.is_training = is_training;
  }
  if (c->GetAttr("exponential_avg_factor", &factor).ok()) {
    call.exponential_avg_factor = factor;
  }
  ChannelAxis axis;
  TF_RETURN_IF_ERROR(axis.Read(op, c));
  std::vector<PartialTensorShape> shapes = InputShapes(c);
  const int count = static_cast<int>(shapes.size());
  std::vector<ShapeHandle> views, vectors;
  for (int i = 0; i < count; ++i) {
    if (!Reads(op, call, shapes, i)) {
      shapes[i] = PartialTensorShape();
    } else if (op.Input(i).kind() == ArgKind::kView) {
      views.push_back(c->input(i));
    } else if (op.Input(i).kind() == ArgKind::kVector) {
      vectors.push_back(c->input(i));
    }
  }
  PartialTensorShape data, channels;
  TF_RETURN_IF_ERROR(
      CheckShapes(op, axis, shapes.data(), count, &data, &channels));
  // Merged with the handles of the inputs, sizes that are not known are known
  // to be the same: the graph optimizer asks for that.
  ShapeHandle view, vector;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(data, &view));
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(channels, &vector));
  for (const ShapeHandle& each : views) {
    TF_RETURN_IF_ERROR(c->Merge(each, view, &view));
  }
  for (const ShapeHandle& each : vectors) {
    TF_RETURN_IF_ERROR(c->Merge(each, vector, &vector));
  }
  for (int i = 0; i < c->num_outputs(); ++i) {
    switch (op.Output(i).kind()) {
      case ArgKind::kView:
        c->set_output(i, view);
        break;
      case ArgKind::kVector:
        c->set_output(i, vector);
        break;
      case ArgKind::kScalar:
        c->set_output(i, c->Scalar());
        break;
      case ArgKind::kOpaque:
        // As of TensorFlow's ops, another shape on each device: a loop's lists
        // of what its gradient reads keep this shape when ops are rewritten.
        c->set_output(i, c->UnknownShape());
        break;
      case ArgKind::kPlaceholder:
        c->set_output(i, c->Vector(0));
        break;
    }
  }
  return absl::OkStatus();
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

}  // namespace tf_bn_ops
