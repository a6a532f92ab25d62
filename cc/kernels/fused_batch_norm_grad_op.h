// The kernel class of FusedBatchNormGrad, V2 and V3, the same for every device:
// validate, make the view, hand it to the backend. cc/kernels registers it for
// the ops of this library, cc/override for TensorFlow's own.
//
// A Backend has
//   static constexpr bool kVarianceIsRstdInTraining;
//   static void Launch(OpKernelContext*, const BatchNormGradArgs&);

#ifndef TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_OP_H_
#define TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_OP_H_

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/kernels/cpu_launch.h"
#include "cc/kernels/dtype_of.h"
#include "cc/kernels/fused_batch_norm_grad_checks.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// Element type T of y_backprop and x; statistics are float. One class for all
// three versions: they differ in types and in reserve_space_3, an input of V3
// that only cuDNN reads.
template <typename T, typename Backend = CpuBackend>
class FusedBatchNormGradOp : public tensorflow::OpKernel {
 public:
  explicit FusedBatchNormGradOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, attrs_.Read(context));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& y_backprop = context->input(0);
    const tensorflow::Tensor& x = context->input(1);
    const tensorflow::Tensor& scale = context->input(2);
    const tensorflow::Tensor& mean = context->input(3);
    const tensorflow::Tensor& variance = context->input(4);

    View view;
    OP_REQUIRES_OK(
        context, CheckFusedBatchNormGradShapes(
                     y_backprop.shape(), x.shape(), scale.shape(), mean.shape(),
                     variance.shape(), attrs_.format, &view));

    BatchNormGradArgs args;
    args.view = view;
    args.dtype = DTypeOf<T>::value;
    args.stat_dtype = DType::kFloat32;
    args.is_training = attrs_.is_training;
    args.variance_is_rstd =
        attrs_.is_training && Backend::kVarianceIsRstdInTraining;
    args.epsilon = attrs_.epsilon;
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
  FusedBatchNormGradAttrs attrs_;
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
