// OpDefs of TfBnOps>FusedBatchNorm, V2 and V3, which equal TensorFlow's own in
// all but name and documentation (tests/test_fidelity.py compares them), and of
// TfBnOps>FusedBatchNormEx, which takes what TensorFlow's _FusedBatchNormEx
// takes, and more.

#include "cc/ops/fused_batch_norm.h"

#include "absl/strings/str_cat.h"
#include "cc/ops/errors.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::shape_inference::FusedBatchNormShape;
using ::tensorflow::shape_inference::FusedBatchNormV3Shape;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

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
  if (num_side_inputs == 1) {
    ShapeHandle y;
    TF_RETURN_IF_ERROR(
        c->Merge(c->output(0), c->input(FusedBatchNormSpec::kInputs), &y));
    c->set_output(0, y);
  }
  return absl::OkStatus();
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
    .Attr("T: " TFBN_FUSED_BATCH_NORM_TYPES)
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
    .Attr("T: " TFBN_FUSED_BATCH_NORM_TYPES)
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
    .Attr("T: " TFBN_FUSED_BATCH_NORM_TYPES)
    .Attr("U: {float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("exponential_avg_factor: float = 1.0")
    .Attr("num_side_inputs: int >= 0 = 0")
    .Attr("activation_mode: {'Identity', 'Relu', 'Relu6'} = 'Identity'")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .Attr("bessel_correction: bool = true")
    .SetShapeFn(InferFusedBatchNormExShapes)
    .Doc(absl::StrCat(kExDoc, kCommonDoc, kExArgumentsDoc));

}  // namespace tf_bn_ops
