// OpDefs of TfBnOps>FusedBatchNormGrad, V2 and V3, which equal TensorFlow's own
// in all but name and documentation: tests/ops/test_fidelity.py compares them.

#include "cc/ops/fused_batch_norm_grad.h"

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::shape_inference::FusedBatchNormGradShape;

constexpr char kDoc[] = R"doc(
Gradient of fused batch normalization.

Same inputs, attributes and outputs as TensorFlow's op of the same name. With M = N*H*W (times D),
rstd = 1/sqrt(variance + epsilon) and sums over all dimensions but the channel's:

  offset_backprop = sum(y_backprop)
  scale_backprop = rstd * sum(y_backprop * (x - mean))
  training: x_backprop = scale * rstd * (y_backprop - offset_backprop/M
                         - (x - mean) * rstd * scale_backprop/M)
  frozen: x_backprop = scale * rstd * y_backprop

y_backprop: Gradient with respect to the output y, 4-D or 5-D.
x: The input of the batch normalization, of the shape of y_backprop.
scale: Scale factors, 1-D, one per channel.
reserve_space_1: Mean, 1-D: of the batch in training, of the population otherwise.
reserve_space_2: Variance, 1-D: of the batch in training (on a GPU 1/sqrt(variance + epsilon)), of
  the population otherwise.
x_backprop: Gradient with respect to x.
scale_backprop: Gradient with respect to scale.
offset_backprop: Gradient with respect to the offset.
epsilon: Added to the variance.
data_format: Where the channels are.
is_training: Whether mean and variance are functions of x (training) or constants (frozen).
)doc";

}  // namespace

REGISTER_OP("TfBnOps>FusedBatchNormGrad")
    .Input("y_backprop: T")
    .Input("x: T")
    .Input("scale: T")
    .Input("reserve_space_1: T")
    .Input("reserve_space_2: T")
    .Output("x_backprop: T")
    .Output("scale_backprop: T")
    .Output("offset_backprop: T")
    .Output("reserve_space_3: T")
    .Output("reserve_space_4: T")
    .Attr("T: {float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(FusedBatchNormGradShape)
    .Doc(kDoc);

REGISTER_OP("TfBnOps>FusedBatchNormGradV2")
    .Input("y_backprop: T")
    .Input("x: T")
    .Input("scale: float")
    .Input("reserve_space_1: U")
    .Input("reserve_space_2: U")
    .Output("x_backprop: T")
    .Output("scale_backprop: U")
    .Output("offset_backprop: U")
    .Output("reserve_space_3: U")
    .Output("reserve_space_4: U")
    .Attr("T: " TFBN_FUSED_TYPES)
    .Attr("U: {float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(FusedBatchNormGradShape)
    .Doc(kDoc);

REGISTER_OP("TfBnOps>FusedBatchNormGradV3")
    .Input("y_backprop: T")
    .Input("x: T")
    .Input("scale: float")
    .Input("reserve_space_1: U")
    .Input("reserve_space_2: U")
    .Input("reserve_space_3: U")
    .Output("x_backprop: T")
    .Output("scale_backprop: U")
    .Output("offset_backprop: U")
    .Output("reserve_space_4: U")
    .Output("reserve_space_5: U")
    .Attr("T: " TFBN_FUSED_TYPES)
    .Attr("U: {float}")
    .Attr("epsilon: float = 0.0001")
    .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
    .Attr("is_training: bool = true")
    .SetShapeFn(FusedBatchNormGradShape)
    .Doc(kDoc);

}  // namespace tf_bn_ops
