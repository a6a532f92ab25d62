// XLA kernels, for jit_compile=True, of all ops but the split ones: few
// sources, because each one that includes XLA's headers takes most of a minute
// to compile.

#include <cstdint>
#include <vector>

#include "cc/ops/batch_norm_training_backprop.h"
#include "cc/ops/fused_batch_norm.h"
#include "cc/ops/fused_batch_norm_grad.h"
#include "cc/ops/fused_batch_norm_grad_ex.h"
#include "cc/ops/fused_batch_norm_grad_grad.h"
#include "cc/xla/hlo_first_order.h"
#include "cc/xla/hlo_first_order_ex.h"
#include "cc/xla/hlo_forward.h"
#include "cc/xla/hlo_second_order.h"
#include "cc/xla/spec_xla_op.h"
#include "cc/xla/xla_op.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// In XLA's own operations on every device: XLA fuses them with what surrounds a
// second derivative.
std::vector<xla::XlaOp> Build(bool /*is_cpu*/,
                              const XlaBatchNormGradGradArgs& args) {
  return BuildHlo(args);
}

// Inputs that are not read may have any size, but operands of the custom call
// have that of the vectors.
void ReplaceUnreadInputs(XlaArgs*) {}
void ReplaceUnreadInputs(XlaBatchNormArgs* args) {
  if (!args->ReadsStatistics()) args->mean = args->variance = args->scale;
}

void ReplaceUnreadInputs(XlaBatchNormGradExArgs* args) {
  if (args->activation == Activation::kIdentity) args->y = args->x;
}

// The XLA kernel of an op, from the Spec (cc/ops) that its other kernels use:
// validate -> view -> arguments -> operations -> outputs.
template <typename Spec, typename Args>
class BatchNormXlaOp : public SpecXlaOp<Spec, Args> {
 public:
  using SpecXlaOp<Spec, Args>::SpecXlaOp;

  void Compile(tf::XlaOpKernelContext* context) override {
    Args args;
    OP_REQUIRES_OK(context, this->ReadCall(context, Spec::kScale, &args));
    ReplaceUnreadInputs(&args);
    const std::vector<xla::XlaOp> outputs = Build(this->is_cpu_, args);
    for (int i = 0; i < Spec::kOutputs; ++i) context->SetOutput(i, outputs[i]);
    // Placeholders: reserve_space_3 of the forward ops, and in gradients what
    // stands where the forward op has mean and variance. The gradient of a side
    // input comes behind them.
    const int last = static_cast<int>(outputs.size()) - Spec::kOutputs;
    const tf::Tensor placeholder(tf::DT_FLOAT, tf::TensorShape({0}));
    for (int i = Spec::kOutputs; i < this->num_outputs() - last; ++i) {
      context->SetConstantOutput(i, placeholder);
    }
    for (int i = 0; i < last; ++i) {
      context->SetOutput(this->num_outputs() - last + i,
                         outputs[Spec::kOutputs + i]);
    }
  }
};

using FusedBatchNormXlaOp =
    BatchNormXlaOp<FusedBatchNormSpec, XlaBatchNormArgs>;
using FusedBatchNormExXlaOp =
    BatchNormXlaOp<FusedBatchNormExSpec<0>, XlaBatchNormArgs>;
using FusedBatchNormAddExXlaOp =
    BatchNormXlaOp<FusedBatchNormExSpec<1>, XlaBatchNormAddArgs>;
using FusedBatchNormGradXlaOp =
    BatchNormXlaOp<FusedBatchNormGradSpec, XlaBatchNormGradArgs>;
using FusedBatchNormGradExXlaOp =
    BatchNormXlaOp<FusedBatchNormGradExSpec<0>, XlaBatchNormGradExArgs>;
using FusedBatchNormGradAddExXlaOp =
    BatchNormXlaOp<FusedBatchNormGradExSpec<1>, XlaBatchNormGradExAddArgs>;
using BatchNormTrainingBackpropXlaOp =
    BatchNormXlaOp<BatchNormTrainingBackpropSpec, XlaBatchNormGradArgs>;
using FusedBatchNormGradGradXlaOp =
    BatchNormXlaOp<FusedBatchNormGradGradSpec, XlaBatchNormGradGradArgs>;

TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNorm", FusedBatchNormXlaOp, );
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormV2", FusedBatchNormXlaOp, );
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormV3", FusedBatchNormXlaOp,
                     .TypeConstraint<float>("U"));
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormEx", FusedBatchNormExXlaOp,
                     .AttrConstraint<int64_t>("num_side_inputs", 0));
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormEx", FusedBatchNormAddExXlaOp,
                     .AttrConstraint<int64_t>("num_side_inputs", 1));
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGrad", FusedBatchNormGradXlaOp, );
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGradV2", FusedBatchNormGradXlaOp, );
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGradV3", FusedBatchNormGradXlaOp, );
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGradEx", FusedBatchNormGradExXlaOp,
                     .AttrConstraint<int64_t>("num_side_inputs", 0));
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGradEx",
                     FusedBatchNormGradAddExXlaOp,
                     .AttrConstraint<int64_t>("num_side_inputs", 1));
TFBN_REGISTER_XLA_OP("TfBnOps>BatchNormTrainingBackprop",
                     BatchNormTrainingBackpropXlaOp, );
TFBN_REGISTER_XLA_OP("TfBnOps>FusedBatchNormGradGrad",
                     FusedBatchNormGradGradXlaOp, );

}  // namespace
}  // namespace tf_bn_ops
