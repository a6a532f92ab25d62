// The kernel class of TfBnOps>FusedBatchNormGradGrad, the same for every
// device: validate, make the view, hand it to the backend. For Backend see
// fused_batch_norm_grad_op.h; here it has
//   static void Launch(OpKernelContext*, const BatchNormGradGradArgs&);

#ifndef TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_GRAD_OP_H_
#define TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_GRAD_OP_H_

#include "cc/core/formulas/batch_norm_grad_grad.h"
#include "cc/kernels/cpu_launch.h"
#include "cc/kernels/dtype_of.h"
#include "cc/kernels/second_order_attrs.h"
#include "cc/kernels/view_of.h"
#include "cc/ops/second_order_shapes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// Inputs and outputs in the order of the OpDef; T is the type of the tensors, U
// that of the vectors.
template <typename T, typename U, typename Backend = CpuBackend>
class FusedBatchNormGradGradOp : public tensorflow::OpKernel {
 public:
  explicit FusedBatchNormGradGradOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, attrs_.Read(context));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    tensorflow::PartialTensorShape shapes[kSecondOrderInputs];
    for (int i = 0; i < kSecondOrderInputs; ++i) {
      shapes[i] =
          tensorflow::PartialTensorShape(context->input(i).shape().dim_sizes());
    }
    tensorflow::PartialTensorShape unused_data, unused_channels;
    OP_REQUIRES_OK(context,
                   CheckSecondOrderShapes(shapes, attrs_.channels_last,
                                          &unused_data, &unused_channels));
    const tensorflow::TensorShape& shape = context->input(4).shape();
    BatchNormGradGradArgs args;
    args.view = ViewOf(shape, attrs_.ChannelDim(shape.dims()));
    args.dtype = DTypeOf<T>::value;
    args.stat_dtype = DTypeOf<U>::value;
    args.is_training = attrs_.is_training;
    args.epsilon = attrs_.epsilon;
    args.x_backprop_grad = context->input(0).data();
    args.scale_backprop_grad = context->input(1).data();
    args.offset_backprop_grad = context->input(2).data();
    args.y_backprop = context->input(3).data();
    args.x = context->input(4).data();
    args.scale = context->input(5).data();
    args.mean = context->input(6).data();
    args.variance = context->input(7).data();

    // Each may take the buffer of any input that nobody else needs; one input
    // is never forwarded twice.
    tensorflow::Tensor *y_backprop_grad, *x_grad, *scale_grad;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {0, 3, 4}, 0, shape, &y_backprop_grad));
    args.y_backprop_grad = y_backprop_grad->data();
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {3, 4, 0}, 1, shape, &x_grad));
    args.x_grad = x_grad->data();
    OP_REQUIRES_OK(context, context->allocate_output(
                                2, context->input(5).shape(), &scale_grad));
    args.scale_grad = scale_grad->data();

    Backend::Launch(context, args);
  }

 private:
  SecondOrderAttrs attrs_;
};

// Registers the kernels for a device; the pairs of types stand here alone:
// vectors in float, as the fused ops have them, or all in one type, as
// BatchNormTrainingBackprop.
#define TFBN_REGISTER_SECOND_ORDER(device, Backend)                            \
  TFBN_REGISTER_SECOND_ORDER_TYPES(device, Backend, Eigen::half, float);       \
  TFBN_REGISTER_SECOND_ORDER_TYPES(device, Backend, Eigen::half, Eigen::half); \
  TFBN_REGISTER_SECOND_ORDER_TYPES(device, Backend, Eigen::bfloat16, float);   \
  TFBN_REGISTER_SECOND_ORDER_TYPES(device, Backend, Eigen::bfloat16,           \
                                   Eigen::bfloat16);                           \
  TFBN_REGISTER_SECOND_ORDER_TYPES(device, Backend, float, float);             \
  TFBN_REGISTER_SECOND_ORDER_TYPES(device, Backend, double, double)
#define TFBN_REGISTER_SECOND_ORDER_TYPES(device, Backend, T, U)  \
  REGISTER_KERNEL_BUILDER(Name("TfBnOps>FusedBatchNormGradGrad") \
                              .Device(device)                    \
                              .TypeConstraint<T>("T")            \
                              .TypeConstraint<U>("U"),           \
                          FusedBatchNormGradGradOp<T, U, Backend>)

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_FUSED_BATCH_NORM_GRAD_GRAD_OP_H_
