// The kernel class of FusedBatchNormGrad, V2 and V3, the same for every device:
// validate, make the view, hand it to the backend. cc/kernels registers it for
// the ops of this library, cc/override for TensorFlow's own.
//
// A Backend has
//   static constexpr bool kVarianceIsRstdInTraining;
//   static void Launch(OpKernelContext*, const BatchNormGradArgs&);

#ifndef TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_OP_H_
#define TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_OP_H_

#include <string>

#include "cc/core/batch_norm_grad.h"
#include "cc/kernels/cpu_launch.h"
#include "cc/kernels/dtype_of.h"
#include "cc/kernels/view_of.h"
#include "cc/ops/errors.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_bn_ops {

// Element type T of y_backprop and x; statistics are float. One class for all
// three versions: they differ in types and in reserve_space_3, an input of V3
// that only cuDNN reads.
template <typename T, typename Backend = CpuBackend>
class FusedBatchNormGradOp : public tensorflow::OpKernel {
 public:
  explicit FusedBatchNormGradOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
    std::string data_format;
    OP_REQUIRES_OK(context, context->GetAttr("data_format", &data_format));
    OP_REQUIRES(context, tensorflow::FormatFromString(data_format, &format_),
                InvalidArgument("Invalid data format"));
    OP_REQUIRES_OK(context, context->GetAttr("is_training", &is_training_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& y_backprop = context->input(0);
    const tensorflow::Tensor& x = context->input(1);
    const tensorflow::Tensor& scale = context->input(2);
    const tensorflow::Tensor& mean = context->input(3);
    const tensorflow::Tensor& variance = context->input(4);

    // The messages are the built-in's, so that code which reads them goes on to
    // work.
    OP_REQUIRES(context, y_backprop.dims() == 4 || y_backprop.dims() == 5,
                InvalidArgument("input must be 4 or 5-dimensional",
                                y_backprop.shape().DebugString()));
    OP_REQUIRES(context, x.dims() == 4 || x.dims() == 5,
                InvalidArgument("input must be 4 or 5-dimensional",
                                x.shape().DebugString()));
    OP_REQUIRES(context, scale.dims() == 1,
                InvalidArgument("scale must be 1-dimensional",
                                scale.shape().DebugString()));
    OP_REQUIRES(context, mean.dims() == 1,
                InvalidArgument("saved mean must be 1-dimensional",
                                mean.shape().DebugString()));
    OP_REQUIRES(context, variance.dims() == 1,
                InvalidArgument("saved variance must be 1-dimensional",
                                variance.shape().DebugString()));
    OP_REQUIRES(context, x.shape() == y_backprop.shape(),
                InvalidArgument(
                    "x and y_backprop must have same shape, but x has shape ",
                    x.shape().DebugString(), " and y_backprop has shape ",
                    y_backprop.shape().DebugString()));
    const View view = ViewOf(
        x.shape(), format_ == tensorflow::FORMAT_NHWC ? x.dims() - 1 : 1);
    const auto check_channels = [&](const char* name,
                                    const tensorflow::Tensor& tensor) {
      OP_REQUIRES(
          context, tensor.NumElements() == view.channels,
          InvalidArgument(name,
                          " must have the same number of elements as the "
                          "channels of x, got ",
                          tensor.NumElements(), " and ", view.channels));
    };
    check_channels("scale", scale);
    if (!context->status().ok()) return;
    check_channels("reserve_space_1", mean);
    if (!context->status().ok()) return;
    check_channels("reserve_space_2", variance);
    if (!context->status().ok()) return;

    BatchNormGradArgs args;
    args.view = view;
    args.dtype = DTypeOf<T>::value;
    args.stat_dtype = DType::kFloat32;
    args.is_training = is_training_;
    args.variance_is_rstd = is_training_ && Backend::kVarianceIsRstdInTraining;
    args.epsilon = epsilon_;
    args.y_backprop = y_backprop.data();
    args.x = x.data();
    args.scale = scale.data();
    args.mean = mean.data();
    args.variance = variance.data();

    tensorflow::Tensor* x_backprop = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {0, 1}, 0, x.shape(), &x_backprop));
    args.x_backprop = x_backprop->data();
    tensorflow::Tensor* scale_backprop = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, scale.shape(), &scale_backprop));
    args.scale_backprop = scale_backprop->data();
    tensorflow::Tensor* offset_backprop = nullptr;
    OP_REQUIRES_OK(
        context, context->allocate_output(2, scale.shape(), &offset_backprop));
    args.offset_backprop = offset_backprop->data();
    // Placeholders that stand where the forward op has mean and variance.
    tensorflow::Tensor* placeholder = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                3, tensorflow::TensorShape({0}), &placeholder));
    OP_REQUIRES_OK(context, context->allocate_output(
                                4, tensorflow::TensorShape({0}), &placeholder));

    Backend::Launch(context, args);
  }

 private:
  float epsilon_;
  tensorflow::TensorFormat format_;
  bool is_training_;
};

// Registers the kernels of all three ops for a device; the ops' element types
// stand here alone.
#define TFBN_REGISTER_FUSED_BATCH_NORM_GRAD(device, Backend)                \
  REGISTER_KERNEL_BUILDER(Name("TfBnOps>FusedBatchNormGrad")                \
                              .Device(device)                               \
                              .TypeConstraint<float>("T"),                  \
                          FusedBatchNormGradOp<float, Backend>);            \
  TFBN_REGISTER_FUSED_BATCH_NORM_GRAD_TYPES("FusedBatchNormGradV2", device, \
                                            Backend);                       \
  TFBN_REGISTER_FUSED_BATCH_NORM_GRAD_TYPES("FusedBatchNormGradV3", device, \
                                            Backend)
#define TFBN_REGISTER_FUSED_BATCH_NORM_GRAD_TYPES(op, device, Backend)        \
  TFBN_REGISTER_FUSED_BATCH_NORM_GRAD_TYPE(op, device, Backend, Eigen::half); \
  TFBN_REGISTER_FUSED_BATCH_NORM_GRAD_TYPE(op, device, Backend,               \
                                           Eigen::bfloat16);                  \
  TFBN_REGISTER_FUSED_BATCH_NORM_GRAD_TYPE(op, device, Backend, float)
#define TFBN_REGISTER_FUSED_BATCH_NORM_GRAD_TYPE(op, device, Backend, T) \
  REGISTER_KERNEL_BUILDER(Name("TfBnOps>" op)                            \
                              .Device(device)                            \
                              .TypeConstraint<T>("T")                    \
                              .TypeConstraint<float>("U"),               \
                          FusedBatchNormGradOp<T, Backend>)

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_OP_H_
