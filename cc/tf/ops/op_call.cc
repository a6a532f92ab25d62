// Reads attrs by their names, and checks shapes; messages and the order of
// checks of TensorFlow's own ops are the built-in's, for code that reads them.

#include "cc/tf/ops/op_call.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// Of one of the types that kernels are registered for.
DType DTypeOf(tf::DataType type) {
  switch (type) {
    case tf::DT_HALF:
      return DType::kFloat16;
    case tf::DT_BFLOAT16:
      return DType::kBfloat16;
    case tf::DT_DOUBLE:
      return DType::kFloat64;
    default:
      return DType::kFloat32;
  }
}

// A float, with what it cannot hold in epsilon_rest, or a scalar tensor.
absl::Status ReadEpsilon(tf::OpKernelConstruction* context, double* epsilon) {
  float number;
  if (context->GetAttr("epsilon", &number).ok()) {
    *epsilon = number;
    std::vector<float> rest;
    if (context->HasAttr("epsilon_rest")) {
      TF_RETURN_IF_ERROR(context->GetAttr("epsilon_rest", &rest));
    }
    for (const float part : rest) *epsilon += part;
    return absl::OkStatus();
  }
  tf::Tensor tensor;
  TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &tensor));
  if (tensor.dtype() != tf::DT_DOUBLE || tensor.dims() != 0) {
    return InvalidArgument("epsilon must be a scalar of type double, but is ",
                           tf::DataTypeString(tensor.dtype()), " of shape ",
                           tensor.shape().DebugString());
  }
  *epsilon = tensor.scalar<double>()();
  return absl::OkStatus();
}

template <typename T, typename Field>
absl::Status ReadIfThere(tf::OpKernelConstruction* context, const char* name,
                         Field* field) {
  if (!context->HasAttr(name)) return absl::OkStatus();
  T value;
  TF_RETURN_IF_ERROR(context->GetAttr(name, &value));
  *field = value;
  return absl::OkStatus();
}

using Shapes = const tf::TensorShape* const*;

absl::Status CheckVector(const tf::TensorShape& shape, const char* name) {
  if (shape.dims() == 1) return absl::OkStatus();
  return InvalidArgument(name, " must be 1-dimensional", shape.DebugString());
}

absl::Status CheckSize(const tf::TensorShape& shape, const char* name,
                       const View& view) {
  if (shape.num_elements() == view.channels) return absl::OkStatus();
  return InvalidArgument(name,
                         " must have the same number of elements as the "
                         "channels of x, got ",
                         shape.num_elements(), " and ", view.channels);
}

absl::Status CheckRank(const tf::TensorShape& shape) {
  if (shape.dims() == 4 || shape.dims() == 5) return absl::OkStatus();
  return InvalidArgument("input must be 4 or 5-dimensional",
                         shape.DebugString());
}

// x, scale, offset, mean, variance and at most one side input.
absl::Status CheckForward(Shapes shapes, int count, int channel_dim,
                          Call* call) {
  const tf::TensorShape& x = *shapes[0];
  TF_RETURN_IF_ERROR(CheckRank(x));
  constexpr const char* kNames[] = {"x", "scale", "offset", "estimated_mean",
                                    "estimated_variance"};
  for (int i = 1; i < 5; ++i) {
    TF_RETURN_IF_ERROR(CheckVector(*shapes[i], kNames[i]));
  }
  call->view = ViewOf(x, channel_dim);
  TF_RETURN_IF_ERROR(CheckSize(*shapes[1], "scale", call->view));
  TF_RETURN_IF_ERROR(CheckSize(*shapes[2], "offset", call->view));
  if (ReadsStatistics(*call)) {
    const std::string when = call->is_training
                                 ? "When exponential_avg_factor != 1, "
                                 : "When is_training=false, ";
    TF_RETURN_IF_ERROR(
        CheckSize(*shapes[3], (when + "mean").c_str(), call->view));
    TF_RETURN_IF_ERROR(
        CheckSize(*shapes[4], (when + "variance").c_str(), call->view));
  }
  if (count > 5 && *shapes[5] != x) {
    return InvalidArgument("side_input shape must be equal to input shape: ",
                           shapes[5]->DebugString(), " != ", x.DebugString());
  }
  return absl::OkStatus();
}

// y_backprop, x, scale, mean, variance and of V3 reserve_space_3, which may
// have any shape; behind an activation offset and y, which are read with an
// activation alone.
absl::Status CheckGradient(Shapes shapes, int count, int channel_dim,
                           Call* call) {
  const tf::TensorShape& x = *shapes[1];
  TF_RETURN_IF_ERROR(CheckRank(*shapes[0]));
  TF_RETURN_IF_ERROR(CheckRank(x));
  TF_RETURN_IF_ERROR(CheckVector(*shapes[2], "scale"));
  TF_RETURN_IF_ERROR(CheckVector(*shapes[3], "saved mean"));
  TF_RETURN_IF_ERROR(CheckVector(*shapes[4], "saved variance"));
  if (x != *shapes[0]) {
    return InvalidArgument(
        "x and y_backprop must have same shape, but x has shape ",
        x.DebugString(), " and y_backprop has shape ",
        shapes[0]->DebugString());
  }
  call->view = ViewOf(x, channel_dim);
  TF_RETURN_IF_ERROR(CheckSize(*shapes[2], "scale", call->view));
  TF_RETURN_IF_ERROR(CheckSize(*shapes[3], "reserve_space_1", call->view));
  TF_RETURN_IF_ERROR(CheckSize(*shapes[4], "reserve_space_2", call->view));
  if (count < 8 || call->activation == Activation::kIdentity) {
    return absl::OkStatus();
  }
  const tf::TensorShape &offset = *shapes[6], &y = *shapes[7];
  if (y != x) {
    return InvalidArgument("x and y must have same shape, but x has shape ",
                           x.DebugString(), " and y has shape ",
                           y.DebugString());
  }
  // What says that the mask is computed from y: no offset, or reserve_space_3.
  const bool is_of_y = !IsSmooth(call->activation) &&
                       (offset == *shapes[5] ||
                        (offset.dims() == 1 && offset.num_elements() == 0));
  if (!is_of_y && offset != tf::TensorShape({call->view.channels})) {
    return InvalidArgument(
        "offset must be a vector of as many elements as x has channels, ",
        "or an empty one, got ", offset.DebugString(), " and ",
        call->view.channels);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLists(int ys, int side_inputs, Activation activation) {
  const char* const what = ys > 1 ? "y" : "side input";
  if (ys > 1 || side_inputs > 1) {
    return InvalidArgument("at most one ", what, " is accepted, but num_",
                           ys > 1 ? "y" : "side_inputs", " is ",
                           std::max(ys, side_inputs));
  }
  if (side_inputs == 0 || ys > 0 || activation == Activation::kIdentity) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "y must be given where an activation follows a side input: x does not "
      "say which elements it passed");
}

absl::Status OpCall::ReadAttrs(const OpSignature& op, bool saves_rstd,
                               tf::OpKernelConstruction* context) {
  op_ = &op;
  attrs_.formula = op.formula;
  attrs_.float64_statistics = op.is_part;
  attrs_.is_training = op.is_training;
  tf::DataType elements, vectors;
  TF_RETURN_IF_ERROR(context->GetAttr("T", &elements));
  // Without an attr U, vectors are of the type of x.
  if (!context->GetAttr("U", &vectors).ok()) vectors = elements;
  attrs_.dtype = DTypeOf(elements);
  attrs_.stat_dtype = DTypeOf(vectors);
  if (context->HasAttr("epsilon")) {
    TF_RETURN_IF_ERROR(ReadEpsilon(context, &attrs_.epsilon));
  }
  TF_RETURN_IF_ERROR(
      ReadIfThere<bool>(context, "is_training", &attrs_.is_training));
  TF_RETURN_IF_ERROR(ReadIfThere<float>(context, "exponential_avg_factor",
                                        &attrs_.exponential_avg_factor));
  TF_RETURN_IF_ERROR(ReadIfThere<bool>(context, "bessel_correction",
                                       &attrs_.bessel_correction));
  TF_RETURN_IF_ERROR(ReadLists(context, &attrs_.activation, &side_inputs_));
  TF_RETURN_IF_ERROR(
      ReadIfThere<float>(context, "leakyrelu_alpha", &attrs_.leakyrelu_alpha));
  if (attrs_.activation == Activation::kLeakyRelu &&
      !std::isfinite(attrs_.leakyrelu_alpha)) {
    return InvalidArgument("leakyrelu_alpha must be finite, but is ",
                           attrs_.leakyrelu_alpha);
  }
  if (op.checks == OpSignature::kByKind) return axis_.Read(op, context);
  // Also where x has another rank than data_format has letters: TensorFlow
  // compares them when it builds a graph, and its Eigen kernels do not.
  std::string data_format;
  TF_RETURN_IF_ERROR(context->GetAttr("data_format", &data_format));
  tf::TensorFormat format;
  if (!tf::FormatFromString(data_format, &format)) {
    return InvalidArgument("Invalid data format");
  }
  axis_.axis = format == tf::FORMAT_NHWC ? -1 : 1;
  const bool has_rstd = attrs_.is_training && saves_rstd;
  attrs_.saves_rstd = has_rstd && op.formula == FormulaKind::kForward;
  attrs_.variance_is_rstd = has_rstd && op.formula == FormulaKind::kGradient;
  return absl::OkStatus();
}

absl::Status OpCall::Make(Shapes shapes, int count, Call* call) const {
  *call = attrs_;
  switch (op_->checks) {
    case OpSignature::kByKind:
      return CheckShapes(*op_, axis_, shapes, count, &call->view);
    case OpSignature::kForward:
      return CheckForward(shapes, count, ChannelDim(shapes[0]->dims()), call);
    case OpSignature::kGradient:
      return CheckGradient(shapes, count, ChannelDim(shapes[1]->dims()), call);
  }
  return absl::OkStatus();
}

Role OpCall::InputRole(const Call& call, int i,
                       const tf::TensorShape& shape) const {
  const Role role = op_->Input(i).role;
  if (role == Role::kForwardCoefficients && shape != CoefficientsShape(call)) {
    return Role::kNone;
  }
  if (!ReadsByAttrs(call, role)) return Role::kNone;
  if (call.formula != FormulaKind::kGradient) return role;
  // The mask is computed from x by reserve_space_3 and offset, and so is the
  // derivative of a smooth activation. Another shape says that y is another
  // op's, or behind a side input.
  if (role == Role::kOffset && shape != tf::TensorShape({call.view.channels})) {
    return Role::kNone;
  }
  if (role == Role::kY && IsSmooth(call.activation) && side_inputs_ == 0) {
    return Role::kNone;
  }
  return role;
}

}  // namespace tf_bn_ops
