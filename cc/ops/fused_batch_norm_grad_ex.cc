// OpDef of TfBnOps>FusedBatchNormGradEx, which takes what TensorFlow's
// _FusedBatchNormGradEx takes, and more.

#include "cc/ops/fused_batch_norm_grad_ex.h"

#include "cc/ops/shape_inference.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::shape_inference::FusedBatchNormGradShape;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

using Spec = FusedBatchNormGradExSpec<0>;
enum Output : int { kXBackprop, kScaleBackprop, kOffsetBackprop };

// Adds what x says, and offset and y where they are read: TensorFlow's shape
// function takes the dimensions from y_backprop, all but the channels'.
absl::Status MergeFurtherInputs(InferenceContext* c) {
  ShapeHandle view, vector = c->output(kScaleBackprop);
  TF_RETURN_IF_ERROR(
      c->Merge(c->output(kXBackprop), c->input(Spec::kX), &view));
  Activation activation;
  TF_RETURN_IF_ERROR(ReadActivationMode(c, &activation));
  if (activation != Activation::kIdentity) {
    TF_RETURN_IF_ERROR(c->Merge(view, c->input(Spec::kY), &view));
    TF_RETURN_IF_ERROR(c->Merge(vector, c->input(Spec::kOffset), &vector));
  }
  TF_RETURN_IF_ERROR(MergeChannels(c, &view, &vector));
  c->set_output(kXBackprop, view);
  c->set_output(kScaleBackprop, vector);
  c->set_output(kOffsetBackprop, vector);
  return absl::OkStatus();
}

absl::Status InferFusedBatchNormGradExShapes(InferenceContext* c) {
  int num_side_inputs;
  TF_RETURN_IF_ERROR(c->GetAttr("num_side_inputs", &num_side_inputs));
  if (num_side_inputs > 1) {
    return InvalidArgument(
        "FusedBatchNormGradEx accepts at most one side input, ",
        "num_side_inputs is ", num_side_inputs);
  }
  TF_RETURN_IF_ERROR(FusedBatchNormGradShape(c));
  TF_RETURN_IF_ERROR(MergeFurtherInputs(c));
  if (num_side_inputs == 1) {
    c->set_output(Spec::kSideInputBackprop, c->output(kXBackprop));
  }
  return absl::OkStatus();
}

constexpr char kDoc[] = R"doc(
Gradient of fused batch normalization, addition and activation.

Same inputs, attributes and outputs as TensorFlow's _FusedBatchNormGradEx. y_backprop is masked by the
derivative of the activation; the rest is FusedBatchNormGradV3 of what is left of it.

y_backprop: Gradient with respect to the output y, 4-D or 5-D.
x: The input of the batch normalization, of the shape of y_backprop.
scale: Scale factors, 1-D, one per channel.
reserve_space_1: As FusedBatchNormEx returns it.
reserve_space_2: As FusedBatchNormEx returns it.
reserve_space_3: As FusedBatchNormEx returns it. Where it holds the coefficients that y was computed
  with, the mask is computed from x and y is not read.
offset: Offsets, 1-D; read with an activation.
y: The output of FusedBatchNormEx; read with an activation.
x_backprop: Gradient with respect to x.
scale_backprop: Gradient with respect to scale.
offset_backprop: Gradient with respect to the offset.
side_input_backprop: Gradient with respect to the side input.
epsilon: Added to the variance.
num_side_inputs: How many side inputs FusedBatchNormEx had, 0 or 1.
activation_mode: The activation.
data_format: Where the channels are.
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc";

}  // namespace

REGISTER_OP("TfBnOps>FusedBatchNormGradEx")
    .Input("y_backprop: T")
    .Input("x: T")
    .Input("scale: float")
    .Input("reserve_space_1: U")
    .Input("reserve_space_2: U")
    .Input("reserve_space_3: U")
    .Input("offset: float")
    .Input("y: T")
    .Output("x_backprop: T")
    .Output("scale_backprop: U")
    .Output("offset_backprop: U")
    .Output("reserve_space_4: U")
    .Output("reserve_space_5: U")
    .Output("side_input_backprop: num_side_inputs * T")
    .Attr("T: " TFBN_FUSED_TYPES)
    .Attr("U: {float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("num_side_inputs: int >= 0 = 0")
    .Attr(TFBN_ACTIVATION_MODE_ATTR)
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(InferFusedBatchNormGradExShapes)
    .Doc(kDoc);

}  // namespace tf_bn_ops
