// clang-format off
// OpDefs. Those of V1 to V3 equal TensorFlow's own in all but name and documentation, which
// tf_bn_ops.raw_ops has in full.
// Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.

#include "cc/tf/ops/first_copy.h"
#include "cc/tf/ops/generated/op_signatures.h"
#include "cc/tf/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"

namespace tf_bn_ops {

namespace {

bool RegisterOps() {
REGISTER_OP("TfBnOps>BatchNormBackwardElemt")
    .Input("y_backprop: T") .Input("x: T") .Input("scale: U") .Input("offset: U")
        .Input("mean: double") .Input("variance: double") .Input("sum_dy: double")
        .Input("sum_dy_xmu: double") .Input("count: double") .Input("y: num_y * T")
    .Output("x_backprop: T") .Output("side_input_backprop: num_side_inputs * T")
    .Attr("T: {half, bfloat16, float, double}") .Attr("U: {float, double}")
        .Attr("epsilon: float = 0.0001") .Attr("epsilon_rest: list(float) = []")
        .Attr("num_y: int >= 0 = 0") .Attr("num_side_inputs: int >= 0 = 0")
        .Attr("activation_mode: {'Identity', 'Relu', 'Relu6'} = 'Identity'") .Attr("axis: int = -1")
    .SetShapeFn(InferShapes<kBatchNormBackwardElemt>)
    .Doc("The gradient of batch normalization with respect to x, from sums over all batches.");

REGISTER_OP("TfBnOps>BatchNormBackwardReduce")
    .Input("y_backprop: T") .Input("x: T") .Input("scale: U") .Input("offset: U")
        .Input("mean: double") .Input("variance: double") .Input("y: num_y * T")
    .Output("sum_dy: double") .Output("sum_dy_xmu: double") .Output("scale_backprop: U")
        .Output("offset_backprop: U")
    .Attr("T: {half, bfloat16, float, double}") .Attr("U: {float, double}")
        .Attr("epsilon: float = 0.0001") .Attr("epsilon_rest: list(float) = []")
        .Attr("num_y: int >= 0 = 0")
        .Attr("activation_mode: {'Identity', 'Relu', 'Relu6'} = 'Identity'") .Attr("axis: int = -1")
    .SetShapeFn(InferShapes<kBatchNormBackwardReduce>)
    .Doc("The sums of the gradient of batch normalization over one batch.");

REGISTER_OP("TfBnOps>BatchNormElemt")
    .Input("x: T") .Input("scale: U") .Input("offset: U") .Input("mean: double")
        .Input("variance: double") .Input("side_input: num_side_inputs * T")
    .Output("y: T")
    .Attr("T: {half, bfloat16, float, double}") .Attr("U: {float, double}")
        .Attr("epsilon: float = 0.0001") .Attr("epsilon_rest: list(float) = []")
        .Attr("num_side_inputs: int >= 0 = 0")
        .Attr("activation_mode: {'Identity', 'Relu', 'Relu6'} = 'Identity'") .Attr("axis: int = -1")
    .SetShapeFn(InferShapes<kBatchNormElemt>)
    .Doc("Batch normalization with given statistics, addition and activation.");

REGISTER_OP("TfBnOps>BatchNormGatherStats")
    .Input("counts: double") .Input("means: double") .Input("m2s: double")
    .Output("count: double") .Output("mean: double") .Output("m2: double")
    
    .SetShapeFn(InferGatherStatsShapes)
    .Doc("Statistics of a batch from those of its parts, by the formula of Chan et al.");

REGISTER_OP("TfBnOps>BatchNormStats")
    .Input("x: T")
    .Output("count: double") .Output("mean: double") .Output("m2: double")
    .Attr("T: {half, bfloat16, float, double}") .Attr("axis: int = -1")
    .SetShapeFn(InferShapes<kBatchNormStats>)
    .Doc("Statistics of one batch, from which those of several batches are combined.");

REGISTER_OP("TfBnOps>BatchNormTrainingBackprop")
    .Input("input: T") .Input("gamma: T") .Input("beta: T") .Input("mean: T") .Input("variance: T")
        .Input("normalized_delta: T")
    .Output("input_delta: T") .Output("gamma_delta: T") .Output("beta_delta: T")
    .Attr("T: {half, bfloat16, float, double}") .Attr("epsilon: tensor")
    .SetShapeFn(InferShapes<kBatchNormTrainingBackprop>)
    .Doc("Gradient of batch normalization in training, nGraph's op of this name.");

REGISTER_OP("TfBnOps>FusedBatchNorm")
    .Input("x: T") .Input("scale: T") .Input("offset: T") .Input("mean: T") .Input("variance: T")
    .Output("y: T") .Output("batch_mean: T") .Output("batch_variance: T")
        .Output("reserve_space_1: T") .Output("reserve_space_2: T")
    .Attr("T: {float}") .Attr("epsilon: float = 0.0001")
        .Attr("exponential_avg_factor: float = 1.0") .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
        .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormShape)
    .Doc("Batch normalization, the twin of TensorFlow's FusedBatchNorm.");

REGISTER_OP("TfBnOps>FusedBatchNormEx")
    .Input("x: T") .Input("scale: U") .Input("offset: U") .Input("mean: U") .Input("variance: U")
        .Input("side_input: num_side_inputs * T")
    .Output("y: T") .Output("batch_mean: U") .Output("batch_variance: U")
        .Output("reserve_space_1: U") .Output("reserve_space_2: U") .Output("reserve_space_3: U")
    .Attr("T: {half, bfloat16, float}") .Attr("U: {float}") .Attr("epsilon: float = 0.0001")
        .Attr("exponential_avg_factor: float = 1.0") .Attr("num_side_inputs: int >= 0 = 0")
        .Attr("activation_mode: {'Identity', 'Relu', 'Relu6', 'Silu', 'HardSilu', 'LeakyRelu'} = 'Identity'")
        .Attr("leakyrelu_alpha: float = 0.2")
        .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
        .Attr("is_training: bool = true") .Attr("bessel_correction: bool = true")
    .SetShapeFn(InferShapes<kFusedBatchNormEx>)
    .Doc("Batch normalization, addition and activation, TensorFlow's _FusedBatchNormEx.");

REGISTER_OP("TfBnOps>FusedBatchNormGrad")
    .Input("y_backprop: T") .Input("x: T") .Input("scale: T") .Input("reserve_space_1: T")
        .Input("reserve_space_2: T")
    .Output("x_backprop: T") .Output("scale_backprop: T") .Output("offset_backprop: T")
        .Output("reserve_space_3: T") .Output("reserve_space_4: T")
    .Attr("T: {float}") .Attr("epsilon: float = 0.0001")
        .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'") .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormGradShape)
    .Doc("Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGrad.");

REGISTER_OP("TfBnOps>FusedBatchNormGradEx")
    .Input("y_backprop: T") .Input("x: T") .Input("scale: float") .Input("reserve_space_1: U")
        .Input("reserve_space_2: U") .Input("reserve_space_3: U") .Input("offset: float")
        .Input("y: T")
    .Output("x_backprop: T") .Output("scale_backprop: U") .Output("offset_backprop: U")
        .Output("reserve_space_4: U") .Output("reserve_space_5: U")
        .Output("side_input_backprop: num_side_inputs * T")
    .Attr("T: {half, bfloat16, float}") .Attr("U: {float}") .Attr("epsilon: float = 0.0001")
        .Attr("num_side_inputs: int >= 0 = 0")
        .Attr("activation_mode: {'Identity', 'Relu', 'Relu6', 'Silu', 'HardSilu', 'LeakyRelu'} = 'Identity'")
        .Attr("leakyrelu_alpha: float = 0.2")
        .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
        .Attr("is_training: bool = true")
    .SetShapeFn(InferShapes<kFusedBatchNormGradEx>)
    .Doc("Gradient of FusedBatchNormEx in one op, TensorFlow's _FusedBatchNormGradEx.");

REGISTER_OP("TfBnOps>FusedBatchNormGradGrad")
    .Input("x_backprop_grad: T") .Input("scale_backprop_grad: U") .Input("offset_backprop_grad: U")
        .Input("y_backprop: T") .Input("x: T") .Input("scale: U") .Input("reserve_space_1: U")
        .Input("reserve_space_2: U")
    .Output("y_backprop_grad: T") .Output("x_grad: T") .Output("scale_grad: U")
    .Attr("T: {half, bfloat16, float, double}") .Attr("U: {half, bfloat16, float, double}")
        .Attr("epsilon: float = 0.0001") .Attr("epsilon_rest: list(float) = []")
        .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
        .Attr("is_training: bool = true")
    .SetShapeFn(InferShapes<kFusedBatchNormGradGrad>)
    .Doc("Gradient of the gradient of batch normalization, as TensorFlow registers it.");

REGISTER_OP("TfBnOps>FusedBatchNormGradV2")
    .Input("y_backprop: T") .Input("x: T") .Input("scale: float") .Input("reserve_space_1: U")
        .Input("reserve_space_2: U")
    .Output("x_backprop: T") .Output("scale_backprop: U") .Output("offset_backprop: U")
        .Output("reserve_space_3: U") .Output("reserve_space_4: U")
    .Attr("T: {half, bfloat16, float}") .Attr("U: {float}") .Attr("epsilon: float = 0.0001")
        .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'") .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormGradShape)
    .Doc("Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV2.");

REGISTER_OP("TfBnOps>FusedBatchNormGradV3")
    .Input("y_backprop: T") .Input("x: T") .Input("scale: float") .Input("reserve_space_1: U")
        .Input("reserve_space_2: U") .Input("reserve_space_3: U")
    .Output("x_backprop: T") .Output("scale_backprop: U") .Output("offset_backprop: U")
        .Output("reserve_space_4: U") .Output("reserve_space_5: U")
    .Attr("T: {half, bfloat16, float}") .Attr("U: {float}") .Attr("epsilon: float = 0.0001")
        .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
        .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormGradShape)
    .Doc("Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV3.");

REGISTER_OP("TfBnOps>FusedBatchNormV2")
    .Input("x: T") .Input("scale: U") .Input("offset: U") .Input("mean: U") .Input("variance: U")
    .Output("y: T") .Output("batch_mean: U") .Output("batch_variance: U")
        .Output("reserve_space_1: U") .Output("reserve_space_2: U")
    .Attr("T: {half, bfloat16, float}") .Attr("U: {float}") .Attr("epsilon: float = 0.0001")
        .Attr("exponential_avg_factor: float = 1.0") .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
        .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormShape)
    .Doc("Batch normalization, the twin of TensorFlow's FusedBatchNormV2.");

REGISTER_OP("TfBnOps>FusedBatchNormV3")
    .Input("x: T") .Input("scale: U") .Input("offset: U") .Input("mean: U") .Input("variance: U")
    .Output("y: T") .Output("batch_mean: U") .Output("batch_variance: U")
        .Output("reserve_space_1: U") .Output("reserve_space_2: U") .Output("reserve_space_3: U")
    .Attr("T: {half, bfloat16, float}") .Attr("U: {bfloat16, float}")
        .Attr("epsilon: float = 0.0001") .Attr("exponential_avg_factor: float = 1.0")
        .Attr("data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'")
        .Attr("is_training: bool = true")
    .SetShapeFn(tensorflow::shape_inference::FusedBatchNormV3Shape)
    .Doc("Batch normalization, the twin of TensorFlow's FusedBatchNormV3.");

return true;
}

[[maybe_unused]] const bool kRegistered = IsFirstCopy() && RegisterOps();

}  // namespace

}  // namespace tf_bn_ops
