// XLA kernels of all ops, for jit_compile=True: one source, because each one
// that includes XLA's headers takes most of a minute.

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cc/kernels/fused_batch_norm_grad_checks.h"
#include "cc/kernels/second_order_attrs.h"
#include "cc/kernels/training_backprop_checks.h"
#include "cc/kernels/view_of.h"
#include "cc/ops/second_order_shapes.h"
#include "cc/ops/training_backprop_shapes.h"
#include "cc/xla/batch_norm_grad.h"
#include "cc/xla/cpu_call.h"
#include "cc/xla/hlo.h"
#include "cc/xla/second_order_hlo.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// What programs are compiled for. TF_BN_OPS_XLA=hlo: no call of the CPU
// backend, for programs that are to run in a process without this library. The
// tests have hlo-gpu: what is compiled for a GPU, on the CPU.
struct Target {
  explicit Target(const tf::OpKernelConstruction& context) {
    const char* const variable = std::getenv("TF_BN_OPS_XLA");
    const std::string chosen = variable == nullptr ? "" : variable;
    is_cpu =
        context.device_type() == tf::DEVICE_CPU_XLA_JIT && chosen != "hlo-gpu";
    calls_backend = is_cpu && chosen != "hlo";
  }

  bool is_cpu;
  bool calls_backend;
};

XlaBatchNormGrad BuildBatchNormGrad(const Target& target,
                                    const XlaBatchNormGradArgs& args) {
  return target.calls_backend ? BuildCpuCall(args) : BuildHlo(args);
}

// The shape of an input; dimensions that are known at run time alone are an
// error.
absl::Status StaticShape(tf::XlaOpKernelContext* context, int input,
                         tf::TensorShape* shape) {
  const absl::StatusOr<xla::Shape> found = context->InputXlaShape(input);
  if (!found.ok()) return found.status();
  if (!found->is_static()) {
    return absl::UnimplementedError(absl::StrCat(
        "the batch-norm gradient is compiled for shapes that are known, but ",
        "input ", input, " has shape ", found->ToString()));
  }
  return tf::XLAShapeToTensorShape(*found, shape);
}

// Fills in values and their shapes, which StaticShape has accepted; the numbers
// are indices of the context's inputs. On failure sets its status.
void ReadInputs(tf::XlaOpKernelContext* context, int y_backprop, int x,
                int scale, int mean, int variance, XlaBatchNormGradArgs* args) {
  args->y_backprop = context->Input(y_backprop);
  args->x = context->Input(x);
  args->scale = context->Input(scale);
  args->mean = context->Input(mean);
  args->variance = context->Input(variance);
  const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(x);
  OP_REQUIRES_OK(context, shape.status());
  args->shape = *shape;
  const absl::StatusOr<xla::Shape> stat_shape = context->InputXlaShape(scale);
  OP_REQUIRES_OK(context, stat_shape.status());
  args->stat_shape = *stat_shape;
}

// Not REGISTER_XLA_OP, whose kernels TensorFlow takes into account until the
// first use of XLA in the process: this library may be loaded later. Types need
// no constraint: XLA has all those that the ops allow.
#define TFBN_REGISTER_XLA_OP(op, Kernel)                                     \
  REGISTER_KERNEL_BUILDER(Name(op).Device(::tensorflow::DEVICE_CPU_XLA_JIT), \
                          Kernel);                                           \
  REGISTER_KERNEL_BUILDER(Name(op).Device(::tensorflow::DEVICE_GPU_XLA_JIT), \
                          Kernel)

class FusedBatchNormGradXlaOp : public tf::XlaOpKernel {
 public:
  explicit FusedBatchNormGradXlaOp(tf::OpKernelConstruction* context)
      : XlaOpKernel(context), target_(*context) {
    OP_REQUIRES_OK(context, attrs_.Read(context));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    tf::TensorShape shapes[5];
    for (int i = 0; i < 5; ++i) {
      OP_REQUIRES_OK(context, StaticShape(context, i, &shapes[i]));
    }
    XlaBatchNormGradArgs args;
    OP_REQUIRES_OK(context, CheckFusedBatchNormGradShapes(
                                shapes[0], shapes[1], shapes[2], shapes[3],
                                shapes[4], attrs_.format, &args.view));
    ReadInputs(context, 0, 1, 2, 3, 4, &args);
    if (!context->status().ok()) return;
    args.channel_dim = ChannelDim(attrs_.format, shapes[1].dims());
    args.is_training = attrs_.is_training;
    // As in the kernels that are not compiled: on a GPU the forward op hands on
    // the inverse standard deviation.
    args.variance_is_rstd = attrs_.is_training && !target_.is_cpu;
    args.epsilon = attrs_.epsilon;
    const XlaBatchNormGrad grad = BuildBatchNormGrad(target_, args);
    context->SetOutput(0, grad.x_backprop);
    context->SetOutput(1, grad.scale_backprop);
    context->SetOutput(2, grad.offset_backprop);
    const tf::Tensor placeholder(tf::DT_FLOAT, tf::TensorShape({0}));
    context->SetConstantOutput(3, placeholder);
    context->SetConstantOutput(4, placeholder);
  }

 private:
  const Target target_;
  FusedBatchNormGradAttrs attrs_;
};

TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGrad", FusedBatchNormGradXlaOp);
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGradV2", FusedBatchNormGradXlaOp);
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGradV3", FusedBatchNormGradXlaOp);

class BatchNormTrainingBackpropXlaOp : public tf::XlaOpKernel {
 public:
  explicit BatchNormTrainingBackpropXlaOp(tf::OpKernelConstruction* context)
      : XlaOpKernel(context), target_(*context) {
    OP_REQUIRES_OK(context, ReadEpsilon(context, &epsilon_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    tf::TensorShape shapes[6];
    for (int i = 0; i < 6; ++i) {
      OP_REQUIRES_OK(context, StaticShape(context, i, &shapes[i]));
    }
    const auto partial = [&](int i) {
      return tf::PartialTensorShape(shapes[i].dim_sizes());
    };
    tf::PartialTensorShape unused_delta, unused_channels;
    OP_REQUIRES_OK(context, CheckTrainingBackpropShapes(
                                {partial(0), partial(1), partial(2), partial(3),
                                 partial(4), partial(5)},
                                &unused_delta, &unused_channels));
    XlaBatchNormGradArgs args;
    ReadInputs(context, 5, 0, 1, 3, 4, &args);
    if (!context->status().ok()) return;
    args.view = ViewOf(shapes[0], 1);
    args.channel_dim = 1;
    args.is_training = true;
    args.epsilon = epsilon_;
    const XlaBatchNormGrad grad = BuildBatchNormGrad(target_, args);
    context->SetOutput(0, grad.x_backprop);
    context->SetOutput(1, grad.scale_backprop);
    context->SetOutput(2, grad.offset_backprop);
  }

 private:
  const Target target_;
  double epsilon_;
};

TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormTrainingBackprop",
                     BatchNormTrainingBackpropXlaOp);

// Of XLA's own operations on every device: what surrounds a second derivative
// is mostly of the kind that XLA fuses.
class FusedBatchNormGradGradXlaOp : public tf::XlaOpKernel {
 public:
  explicit FusedBatchNormGradGradXlaOp(tf::OpKernelConstruction* context)
      : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, attrs_.Read(context));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    tf::PartialTensorShape shapes[kSecondOrderInputs];
    tf::TensorShape shape;
    for (int i = 0; i < kSecondOrderInputs; ++i) {
      OP_REQUIRES_OK(context, StaticShape(context, i, &shape));
      shapes[i] = tf::PartialTensorShape(shape.dim_sizes());
    }
    tf::PartialTensorShape unused_data, unused_channels;
    OP_REQUIRES_OK(context,
                   CheckSecondOrderShapes(shapes, attrs_.channels_last,
                                          &unused_data, &unused_channels));
    OP_REQUIRES_OK(context, StaticShape(context, 4, &shape));
    XlaSecondOrderArgs args;
    args.channel_dim = attrs_.ChannelDim(shape.dims());
    args.view = ViewOf(shape, args.channel_dim);
    args.is_training = attrs_.is_training;
    args.epsilon = attrs_.epsilon;
    args.x_backprop_grad = context->Input(0);
    args.scale_backprop_grad = context->Input(1);
    args.offset_backprop_grad = context->Input(2);
    args.y_backprop = context->Input(3);
    args.x = context->Input(4);
    args.scale = context->Input(5);
    args.mean = context->Input(6);
    args.variance = context->Input(7);
    const absl::StatusOr<xla::Shape> data_shape = context->InputXlaShape(4);
    OP_REQUIRES_OK(context, data_shape.status());
    args.shape = *data_shape;
    const absl::StatusOr<xla::Shape> stat_shape = context->InputXlaShape(5);
    OP_REQUIRES_OK(context, stat_shape.status());
    args.stat_shape = *stat_shape;
    const XlaSecondOrder grad = BuildSecondOrderHlo(args);
    context->SetOutput(0, grad.y_backprop_grad);
    context->SetOutput(1, grad.x_grad);
    context->SetOutput(2, grad.scale_grad);
  }

 private:
  SecondOrderAttrs attrs_;
};

TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGradGrad",
                     FusedBatchNormGradGradXlaOp);

}  // namespace
}  // namespace tf_bn_ops
