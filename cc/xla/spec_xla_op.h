// Base of the XLA kernels that follow from a Spec (cc/ops): validates a call
// and binds its attrs and inputs to the arguments.

#ifndef TF_BN_OPS_CC_XLA_SPEC_XLA_OP_H_
#define TF_BN_OPS_CC_XLA_SPEC_XLA_OP_H_

#include "absl/status/status.h"
#include "cc/xla/xla_op.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

template <typename Spec, typename Args>
class SpecXlaOp : public tensorflow::XlaOpKernel {
 public:
  explicit SpecXlaOp(tensorflow::OpKernelConstruction* context)
      : XlaOpKernel(context),
        is_cpu_(context->device_type() == tensorflow::DEVICE_CPU_XLA_JIT) {
    OP_REQUIRES_OK(context, spec_.ReadAttrs(context));
  }

 protected:
  // `vector_input`: the input that says what type vectors have.
  absl::Status ReadCall(tensorflow::XlaOpKernelContext* context,
                        int vector_input, Args* args) const {
    TF_RETURN_IF_ERROR(CheckCompileVariable());
    xla::Shape xla_shapes[Spec::kInputs];
    tensorflow::TensorShape shapes[Spec::kInputs];
    const tensorflow::TensorShape* pointers[Spec::kInputs];
    for (int i = 0; i < Spec::kInputs; ++i) {
      TF_RETURN_IF_ERROR(StaticShape(context, i, &xla_shapes[i], &shapes[i]));
      pointers[i] = &shapes[i];
    }
    TF_RETURN_IF_ERROR(spec_.Validate(pointers, &args->view));
    args->channel_dim = spec_.ChannelDim(shapes[Spec::kX].dims());
    args->shape = xla_shapes[Spec::kX];
    args->stat_shape = xla_shapes[vector_input];
    spec_.BindAttrs(/*saves_rstd=*/!is_cpu_, args);
    Spec::BindInputs([context](int i) { return context->Input(i); }, args);
    return absl::OkStatus();
  }

  const bool is_cpu_;

 private:
  Spec spec_;
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_SPEC_XLA_OP_H_
