// CPU kernels of TfBnOps>BatchNormTrainingBackprop: validate, make the view,
// hand it on.

#include "cc/kernels/cpu_launch.h"
#include "cc/ops/errors.h"
#include "cc/ops/training_backprop_shapes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// Inputs and outputs in the order of the OpDef; T is the type of all of them.
template <typename T>
class BatchNormTrainingBackpropOp : public tf::OpKernel {
 public:
  explicit BatchNormTrainingBackpropOp(tf::OpKernelConstruction* context)
      : OpKernel(context) {
    tf::Tensor epsilon;
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon));
    OP_REQUIRES(
        context, epsilon.dtype() == tf::DT_DOUBLE && epsilon.dims() == 0,
        InvalidArgument("epsilon must be a scalar of type double, but is ",
                        tf::DataTypeString(epsilon.dtype()), " of shape ",
                        epsilon.shape().DebugString()));
    epsilon_ = epsilon.scalar<double>()();
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& input = context->input(0);
    const tf::Tensor& gamma = context->input(1);
    const tf::Tensor& beta = context->input(2);
    const tf::Tensor& mean = context->input(3);
    const tf::Tensor& variance = context->input(4);
    const tf::Tensor& normalized_delta = context->input(5);
    tf::PartialTensorShape unused_delta, unused_channels;
    OP_REQUIRES_OK(
        context,
        CheckTrainingBackpropShapes(
            {tf::PartialTensorShape(input.shape().dim_sizes()),
             tf::PartialTensorShape(gamma.shape().dim_sizes()),
             tf::PartialTensorShape(beta.shape().dim_sizes()),
             tf::PartialTensorShape(mean.shape().dim_sizes()),
             tf::PartialTensorShape(variance.shape().dim_sizes()),
             tf::PartialTensorShape(normalized_delta.shape().dim_sizes())},
            &unused_delta, &unused_channels));

    BatchNormGradArgs args;
    args.view = View{input.dim_size(0), input.dim_size(1), 1};
    for (int i = 2; i < input.dims(); ++i) args.view.inner *= input.dim_size(i);
    args.dtype = DTypeOf<T>::value;
    args.stat_dtype = DTypeOf<T>::value;
    args.is_training = true;
    args.epsilon = epsilon_;
    args.y_backprop = normalized_delta.data();
    args.x = input.data();
    args.scale = gamma.data();
    args.mean = mean.data();
    args.variance = variance.data();

    tf::Tensor* input_delta = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {5, 0}, 0, input.shape(), &input_delta));
    args.x_backprop = input_delta->data();
    tf::Tensor* gamma_delta = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, gamma.shape(), &gamma_delta));
    args.scale_backprop = gamma_delta->data();
    tf::Tensor* beta_delta = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(2, gamma.shape(), &beta_delta));
    args.offset_backprop = beta_delta->data();

    LaunchCpuBatchNormGrad(context, args);
  }

 private:
  double epsilon_;
};

#define REGISTER_CPU_KERNEL(T)                                      \
  REGISTER_KERNEL_BUILDER(Name("TfBnOps>BatchNormTrainingBackprop") \
                              .Device(tf::DEVICE_CPU)               \
                              .TypeConstraint<T>("T"),              \
                          BatchNormTrainingBackpropOp<T>)

REGISTER_CPU_KERNEL(Eigen::half);
REGISTER_CPU_KERNEL(Eigen::bfloat16);
REGISTER_CPU_KERNEL(float);
REGISTER_CPU_KERNEL(double);

}  // namespace
}  // namespace tf_bn_ops
