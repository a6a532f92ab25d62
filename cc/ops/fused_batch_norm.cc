// OpDefs of TfBnOps>FusedBatchNorm, V2 and V3, which equal TensorFlow's own in
// all but name and documentation (tests/ops/test_fidelity.py compares them),
// and of TfBnOps>FusedBatchNormEx, which takes what TensorFlow's
// _FusedBatchNormEx takes, and more.

#include "cc/ops/fused_batch_norm.h"

#include "absl/strings/str_cat.h"
#include "cc/ops/errors.h"
#include "cc/ops/shape_inference.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::shape_inference::FusedBatchNormShape;
using ::tensorflow::shape_inference::FusedBatchNormV3Shape;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Adds what mean and variance say where they are read, and the side input:
// TensorFlow's shape function looks at the former in inference alone.
absl::Status MergeFurtherInputs(InferenceContext* c, bool has_side_input) {
  ShapeHandle y = c->output(0), vector = c->output(1);
  FusedBatchNormSpec spec;
  TF_RETURN_IF_ERROR(spec.ReadAttrs(c));
  for (int input : {FusedBatchNormSpec::kMean, FusedBatchNormSpec::kVariance}) {
    ShapeHandle given;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 1, &given));
    if (spec.is_training && spec.exponential_avg_factor == 1) continue;
    TF_RETURN_IF_ERROR(c->Merge(vector, given, &vector));
  }
  if (has_side_input) {
    TF_RETURN_IF_ERROR(c->Merge(y, c->input(FusedBatchNormSpec::kInputs), &y));
  }
  TF_RETURN_IF_ERROR(MergeChannels(c, &y, &vector));
  c->set_output(0, y);
  for (int i = 1; i <= 4; ++i) c->set_output(i, vector);
  return absl::OkStatus();
}

// Not TensorFlow's FusedBatchNormExShape, which refuses ranks and channel
// counts that its GPU kernel does not take.
absl::Status InferFusedBatchNormExShapes(InferenceContext* c) {
  int num_side_inputs;
  TF_RETURN_IF_ERROR(c->GetAttr("num_side_inputs", &num_side_inputs));
  if (num_side_inputs > 1) {
    return InvalidArgument("FusedBatchNormEx accepts at most one side input, ",
                           "num_side_inputs is ", num_side_inputs);
  }
  TF_RETURN_IF_ERROR(FusedBatchNormV3Shape(c));
  return MergeFurtherInputs(c, num_side_inputs == 1);
}

// What the documentations have in common.
constexpr char kCommonDoc[] = R"doc(
With M = N*H*W (times D), sums over all dimensions but the channel's, and in training
mean = sum(x)/M, variance = sum((x - mean)^2)/M:

  y = scale * (x - mean) / sqrt(variance + epsilon) + offset

With f = exponential_avg_factor, in training

  batch_mean = (1 - f) * (mean given) + f * mean
  batch_variance = (1 - f) * (variance given) + f * variance * M/max(M - 1, 1)

Frozen, mean and variance are those given, and so are batch_mean and batch_variance.

x: What is normalized, 4-D or 5-D.
scale: Scale factors, 1-D, one per channel.
offset: Added to each channel, 1-D.
mean: Frozen the mean of the population, in training the running mean, 1-D; in training with a
  factor of 1 it is not read, and may have any size.
variance: The same for the variance.
y: The normalized tensor.
batch_mean: The new running mean.
batch_variance: The new running variance.
reserve_space_1: The mean that x was normalized with, for the gradient.
reserve_space_2: The biased variance that x was normalized with, for the gradient (on a GPU in
  training 1/sqrt(variance + epsilon)).
epsilon: Added to the variance.
exponential_avg_factor: Weight of this batch in the running statistics.
data_format: Where the channels are.
is_training: Whether mean and variance are those of x (training) or those given (frozen).
)doc";

constexpr char kDoc[] = R"doc(
Fused batch normalization.

Same inputs, attributes and outputs as TensorFlow's op of the same name.
)doc";

constexpr char kExDoc[] = R"doc(
Fused batch normalization, addition and activation.

Same inputs, attributes and outputs as TensorFlow's _FusedBatchNormEx: side_input is added to y, then
the activation is applied.
)doc";

constexpr char kExArgumentsDoc[] =
    R"doc(side_input: At most one tensor of the shape of x.
reserve_space_3: With an activation and without a side input the coefficients that y was computed with,
  3 per channel, for the gradient; otherwise a placeholder.
num_side_inputs: How many, 0 or 1.
activation_mode: The activation.
bessel_correction: Whether batch_variance has the factor M/max(M - 1, 1).
)doc";

}  // namespace

REGISTER_OP("TfBnOps>FusedBatchNorm")
    .Input("x: T")
    .Input("scale: T")
    .Input("offset: T")
    .Input("mean: T")
    .Input("variance: T")
    .Output("y: T")
    .Output("batch_mean: T")
    .Output("batch_variance: T")
    .Output("reserve_space_1: T")
    .Output("reserve_space_2: T")
    .Attr("T: {float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("exponential_avg_factor: float = 1.0")
    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(FusedBatchNormShape)
    .Doc(absl::StrCat(kDoc, kCommonDoc));

REGISTER_OP("TfBnOps>FusedBatchNormV2")
    .Input("x: T")
    .Input("scale: U")
    .Input("offset: U")
    .Input("mean: U")
    .Input("variance: U")
    .Output("y: T")
    .Output("batch_mean: U")
    .Output("batch_variance: U")
    .Output("reserve_space_1: U")
    .Output("reserve_space_2: U")
    .Attr("T: " TFBN_FUSED_TYPES)
    .Attr("U: {float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("exponential_avg_factor: float = 1.0")
    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(FusedBatchNormShape)
    .Doc(absl::StrCat(kDoc, kCommonDoc));

REGISTER_OP("TfBnOps>FusedBatchNormV3")
    .Input("x: T")
    .Input("scale: U")
    .Input("offset: U")
    .Input("mean: U")
    .Input("variance: U")
    .Output("y: T")
    .Output("batch_mean: U")
    .Output("batch_variance: U")
    .Output("reserve_space_1: U")
    .Output("reserve_space_2: U")
    .Output("reserve_space_3: U")
    .Attr("T: " TFBN_FUSED_TYPES)
    .Attr("U: {bfloat16, float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("exponential_avg_factor: float = 1.0")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(FusedBatchNormV3Shape)
    .Doc(absl::StrCat(kDoc, kCommonDoc));

REGISTER_OP("TfBnOps>FusedBatchNormEx")
    .Input("x: T")
    .Input("scale: U")
    .Input("offset: U")
    .Input("mean: U")
    .Input("variance: U")
    .Input("side_input: num_side_inputs * T")
    .Output("y: T")
    .Output("batch_mean: U")
    .Output("batch_variance: U")
    .Output("reserve_space_1: U")
    .Output("reserve_space_2: U")
    .Output("reserve_space_3: U")
    .Attr("T: " TFBN_FUSED_TYPES)
    .Attr("U: {float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("exponential_avg_factor: float = 1.0")
    .Attr("num_side_inputs: int >= 0 = 0")
    .Attr(TFBN_ACTIVATION_MODE_ATTR)
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .Attr("bessel_correction: bool = true")
    .SetShapeFn(InferFusedBatchNormExShapes)
    .Doc(absl::StrCat(kExDoc, kCommonDoc, kExArgumentsDoc));

}  // namespace tf_bn_ops
