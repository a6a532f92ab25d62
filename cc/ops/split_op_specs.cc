// OpDefs and shape functions of the ops that synchronised batch normalization
// consists of. They are PyTorch's batch_norm_stats,
// batch_norm_gather_stats_with_counts, batch_norm_elemt,
// batch_norm_backward_reduce and batch_norm_backward_elemt with the sum of
// squares m2 in place of rstd, which no later op could combine exactly.

#include "cc/ops/split_op_specs.h"

#include <vector>

#include "cc/ops/shape_inference.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::PartialTensorShape;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

std::vector<PartialTensorShape> InputShapes(InferenceContext* c) {
  std::vector<PartialTensorShape> shapes;
  for (int i = 0; i < c->num_inputs(); ++i) {
    shapes.push_back(PartialShapeOf(c, c->input(i)));
  }
  return shapes;
}

// What an op returns: of the shape of x, [C] or [].
struct SplitShapes {
  ShapeHandle view, vector, scalar;
};
template <typename Spec>
absl::Status InferSplit(InferenceContext* c, SplitShapes* out) {
  Spec spec;
  TF_RETURN_IF_ERROR(spec.ReadAttrs(c));
  const std::vector<PartialTensorShape> shapes = InputShapes(c);
  PartialTensorShape data, channels;
  TF_RETURN_IF_ERROR(CheckSplitShapes(Spec::Inputs(), spec.axis, shapes.data(),
                                      static_cast<int>(shapes.size()), &data,
                                      &channels));
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(data, &out->view));
  TF_RETURN_IF_ERROR(
      c->MakeShapeFromPartialTensorShape(channels, &out->vector));
  out->scalar = c->Scalar();
  return absl::OkStatus();
}

// The length of a list, which is 0 or 1.
absl::Status ReadLength(InferenceContext* c, const char* attr, const char* what,
                        int* length) {
  TF_RETURN_IF_ERROR(c->GetAttr(attr, length));
  if (*length <= 1) return absl::OkStatus();
  return InvalidArgument("at most one ", what, " is accepted, but ", attr,
                         " is ", *length);
}

absl::Status InferStats(InferenceContext* c) {
  SplitShapes shapes;
  TF_RETURN_IF_ERROR(InferSplit<BatchNormStatsSpec>(c, &shapes));
  c->set_output(0, shapes.scalar);
  c->set_output(1, shapes.vector);
  c->set_output(2, shapes.vector);
  return absl::OkStatus();
}

absl::Status InferGatherStats(InferenceContext* c) {
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

absl::Status InferElemt(InferenceContext* c) {
  int side_inputs;
  TF_RETURN_IF_ERROR(
      ReadLength(c, "num_side_inputs", "side input", &side_inputs));
  SplitShapes shapes;
  TF_RETURN_IF_ERROR(InferSplit<BatchNormElemtSpec<0>>(c, &shapes));
  c->set_output(0, shapes.view);
  return absl::OkStatus();
}

absl::Status InferBackwardReduce(InferenceContext* c) {
  int ys;
  TF_RETURN_IF_ERROR(ReadLength(c, "num_y", "y", &ys));
  SplitShapes shapes;
  TF_RETURN_IF_ERROR(InferSplit<BatchNormBackwardReduceSpec<0>>(c, &shapes));
  for (int i = 0; i < 4; ++i) c->set_output(i, shapes.vector);
  return absl::OkStatus();
}

absl::Status InferBackwardElemt(InferenceContext* c) {
  int ys, side_inputs;
  TF_RETURN_IF_ERROR(ReadLength(c, "num_y", "y", &ys));
  TF_RETURN_IF_ERROR(
      ReadLength(c, "num_side_inputs", "side input", &side_inputs));
  Activation activation;
  TF_RETURN_IF_ERROR(ReadActivationMode(c, &activation));
  TF_RETURN_IF_ERROR(CheckMaskSource(ys, side_inputs, activation));
  SplitShapes shapes;
  using Spec = BatchNormBackwardElemtSpec<0, 0>;
  TF_RETURN_IF_ERROR(InferSplit<Spec>(c, &shapes));
  for (int i = 0; i <= side_inputs; ++i) c->set_output(i, shapes.view);
  return absl::OkStatus();
}

constexpr char kStatsDoc[] = R"doc(
Statistics of one batch, from which those of several batches are combined.

The sums are accumulated in float64 around an element of the channel, so that a large mean costs no digits.
Without elements all results are 0.

x: A tensor of rank 1 or more.
count: The number of elements of a channel.
mean: The mean of each channel, 1-D.
m2: The sum of (x - mean)^2 of each channel, 1-D.
axis: The dimension of the channels; from the end if negative.
)doc";

constexpr char kGatherStatsDoc[] = R"doc(
Statistics of a batch from those of its parts, by the formula of Chan, Golub and LeVeque.

Row by row in their order, so that results are bitwise identical on all replicas:

  delta = means[w] - mean
  mean += delta * (counts[w] / (count + counts[w]))
  m2   += m2s[w] + delta^2 * (count * counts[w] / (count + counts[w]))
  count += counts[w]

Rows with a count of 0 are ignored, whatever else they hold. Without any other row all results are 0.

counts: Elements of a channel in each part, [W].
means: Their means, [W, C].
m2s: Their sums of (x - mean)^2, [W, C].
count: Elements of a channel in all parts.
mean: Their mean, [C].
m2: Their sum of (x - mean)^2, [C].
)doc";

constexpr char kElemtDoc[] = R"doc(
Batch normalization with given statistics, addition and activation.

  y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset [+ side_input])

x: A tensor of rank 1 or more.
scale: Scale factors, 1-D, one per channel.
offset: Added to each channel, 1-D.
mean: The mean of each channel, 1-D.
variance: The biased variance of each channel, 1-D.
side_input: At most one tensor of the shape of x.
y: The normalized tensor.
epsilon: Added to the variance.
num_side_inputs: How many, 0 or 1.
activation_mode: The activation.
axis: The dimension of the channels; from the end if negative.
)doc";

constexpr char kBackwardReduceDoc[] = R"doc(
The sums of the gradient of batch normalization over one batch.

y_backprop counts where the activation passes it:

  sum_dy = sum(y_backprop)
  sum_dy_xmu = sum(y_backprop * (x - mean))
  scale_backprop = sum_dy_xmu / sqrt(variance + epsilon)
  offset_backprop = sum_dy

y_backprop: Gradient with respect to y, of the shape of x.
x: As given to BatchNormElemt.
scale: As given to BatchNormElemt.
offset: As given to BatchNormElemt.
mean: As given to BatchNormElemt.
variance: As given to BatchNormElemt.
y: At most one tensor, the output of BatchNormElemt: needed with an activation behind a side input.
  Without it the mask of the activation is computed from x.
sum_dy: 1-D.
sum_dy_xmu: 1-D.
scale_backprop: Gradient of this batch with respect to scale.
offset_backprop: Gradient of this batch with respect to offset.
epsilon: Added to the variance.
num_y: How many y there are, 0 or 1.
activation_mode: The activation.
axis: The dimension of the channels; from the end if negative.
)doc";

constexpr char kBackwardElemtDoc[] = R"doc(
The gradient of batch normalization with respect to x, from sums over all batches.

With rstd = 1/sqrt(variance + epsilon), and y_backprop where the activation passes it, else 0:

  x_backprop = scale * rstd * (y_backprop - sum_dy/count - (x - mean) * rstd^2 * sum_dy_xmu/count)
  side_input_backprop = y_backprop

y_backprop: Gradient with respect to y, of the shape of x.
x: As given to BatchNormElemt.
scale: As given to BatchNormElemt.
offset: As given to BatchNormElemt.
mean: As given to BatchNormElemt.
variance: As given to BatchNormElemt.
sum_dy: The sum of BatchNormBackwardReduce's over all batches, 1-D.
sum_dy_xmu: The same.
count: Elements of a channel in all batches, a scalar.
y: At most one tensor, as given to BatchNormBackwardReduce.
x_backprop: Gradient with respect to x.
side_input_backprop: Gradient with respect to the side input.
epsilon: Added to the variance.
num_y: How many y there are, 0 or 1.
num_side_inputs: How many side inputs BatchNormElemt had, 0 or 1.
activation_mode: The activation.
axis: The dimension of the channels; from the end if negative.
)doc";

}  // namespace

REGISTER_OP("TfBnOps>BatchNormStats")
    .Input("x: T")
    .Output("count: double")
    .Output("mean: double")
    .Output("m2: double")
    .Attr("T: " TFBN_ALL_TYPES)
    .Attr("axis: int = -1")
    .SetShapeFn(InferStats)
    .Doc(kStatsDoc);

REGISTER_OP("TfBnOps>BatchNormGatherStats")
    .Input("counts: double")
    .Input("means: double")
    .Input("m2s: double")
    .Output("count: double")
    .Output("mean: double")
    .Output("m2: double")
    .SetShapeFn(InferGatherStats)
    .Doc(kGatherStatsDoc);

REGISTER_OP("TfBnOps>BatchNormElemt")
    .Input("x: T")
    .Input("scale: U")
    .Input("offset: U")
    .Input("mean: double")
    .Input("variance: double")
    .Input("side_input: num_side_inputs * T")
    .Output("y: T")
    .Attr("T: " TFBN_ALL_TYPES)
    .Attr("U: " TFBN_SPLIT_VECTOR_TYPES)
    .Attr("epsilon: float = 0.0001")
    .Attr("num_side_inputs: int >= 0 = 0")
    .Attr(TFBN_ACTIVATION_MODE_ATTR)
    .Attr("axis: int = -1")
    .SetShapeFn(InferElemt)
    .Doc(kElemtDoc);

REGISTER_OP("TfBnOps>BatchNormBackwardReduce")
    .Input("y_backprop: T")
    .Input("x: T")
    .Input("scale: U")
    .Input("offset: U")
    .Input("mean: double")
    .Input("variance: double")
    .Input("y: num_y * T")
    .Output("sum_dy: double")
    .Output("sum_dy_xmu: double")
    .Output("scale_backprop: U")
    .Output("offset_backprop: U")
    .Attr("T: " TFBN_ALL_TYPES)
    .Attr("U: " TFBN_SPLIT_VECTOR_TYPES)
    .Attr("epsilon: float = 0.0001")
    .Attr("num_y: int >= 0 = 0")
    .Attr(TFBN_ACTIVATION_MODE_ATTR)
    .Attr("axis: int = -1")
    .SetShapeFn(InferBackwardReduce)
    .Doc(kBackwardReduceDoc);

REGISTER_OP("TfBnOps>BatchNormBackwardElemt")
    .Input("y_backprop: T")
    .Input("x: T")
    .Input("scale: U")
    .Input("offset: U")
    .Input("mean: double")
    .Input("variance: double")
    .Input("sum_dy: double")
    .Input("sum_dy_xmu: double")
    .Input("count: double")
    .Input("y: num_y * T")
    .Output("x_backprop: T")
    .Output("side_input_backprop: num_side_inputs * T")
    .Attr("T: " TFBN_ALL_TYPES)
    .Attr("U: " TFBN_SPLIT_VECTOR_TYPES)
    .Attr("epsilon: float = 0.0001")
    .Attr("num_y: int >= 0 = 0")
    .Attr("num_side_inputs: int >= 0 = 0")
    .Attr(TFBN_ACTIVATION_MODE_ATTR)
    .Attr("axis: int = -1")
    .SetShapeFn(InferBackwardElemt)
    .Doc(kBackwardElemtDoc);

}  // namespace tf_bn_ops
