// The kernel class of TfBnOps>BatchNormTrainingBackprop, the same for every
// device: validate, make the view, hand it to the backend. For Backend see
// fused_batch_norm_grad_op.h; `variance` is the variance on all of them.

#ifndef TF_BN_OPS_CC_KERNELS_BATCH_NORM_TRAINING_BACKPROP_OP_H_
#define TF_BN_OPS_CC_KERNELS_BATCH_NORM_TRAINING_BACKPROP_OP_H_

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/kernels/cpu_launch.h"
#include "cc/kernels/dtype_of.h"
#include "cc/kernels/training_backprop_checks.h"
#include "cc/kernels/view_of.h"
#include "cc/ops/training_backprop_shapes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// Inputs and outputs in the order of the OpDef; T is the type of all of them.
template <typename T, typename Backend = CpuBackend>
class BatchNormTrainingBackpropOp : public tensorflow::OpKernel {
 public:
  explicit BatchNormTrainingBackpropOp(
      tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadEpsilon(context, &epsilon_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& input = context->input(0);
    const tensorflow::Tensor& gamma = context->input(1);
    const tensorflow::Tensor& beta = context->input(2);
    const tensorflow::Tensor& mean = context->input(3);
    const tensorflow::Tensor& variance = context->input(4);
    const tensorflow::Tensor& normalized_delta = context->input(5);
    tensorflow::PartialTensorShape unused_delta, unused_channels;
    OP_REQUIRES_OK(
        context,
        CheckTrainingBackpropShapes(
            {tensorflow::PartialTensorShape(input.shape().dim_sizes()),
             tensorflow::PartialTensorShape(gamma.shape().dim_sizes()),
             tensorflow::PartialTensorShape(beta.shape().dim_sizes()),
             tensorflow::PartialTensorShape(mean.shape().dim_sizes()),
             tensorflow::PartialTensorShape(variance.shape().dim_sizes()),
             tensorflow::PartialTensorShape(
                 normalized_delta.shape().dim_sizes())},
            &unused_delta, &unused_channels));

    BatchNormGradArgs args;
    args.view = ViewOf(input.shape(), 1);
    args.dtype = DTypeOf<T>::value;
    args.stat_dtype = DTypeOf<T>::value;
    args.is_training = true;
    args.epsilon = epsilon_;
    args.y_backprop = normalized_delta.data();
    args.x = input.data();
    args.scale = gamma.data();
    args.mean = mean.data();
    args.variance = variance.data();

    tensorflow::Tensor* input_delta = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {5, 0}, 0, input.shape(), &input_delta));
    args.x_backprop = input_delta->data();
    tensorflow::Tensor* gamma_delta = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, gamma.shape(), &gamma_delta));
    args.scale_backprop = gamma_delta->data();
    tensorflow::Tensor* beta_delta = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(2, gamma.shape(), &beta_delta));
    args.offset_backprop = beta_delta->data();

    Backend::Launch(context, args);
  }

 private:
  double epsilon_;
};

#define TFBN_REGISTER_TRAINING_BACKPROP(device, Backend)                  \
  TFBN_REGISTER_TRAINING_BACKPROP_TYPE(device, Backend, Eigen::half);     \
  TFBN_REGISTER_TRAINING_BACKPROP_TYPE(device, Backend, Eigen::bfloat16); \
  TFBN_REGISTER_TRAINING_BACKPROP_TYPE(device, Backend, float);           \
  TFBN_REGISTER_TRAINING_BACKPROP_TYPE(device, Backend, double)
#define TFBN_REGISTER_TRAINING_BACKPROP_TYPE(device, Backend, T)    \
  REGISTER_KERNEL_BUILDER(Name("TfBnOps>BatchNormTrainingBackprop") \
                              .Device(device)                       \
                              .TypeConstraint<T>("T"),              \
                          BatchNormTrainingBackpropOp<T, Backend>)

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_BATCH_NORM_TRAINING_BACKPROP_OP_H_
