// The kernel class of every op of the family on every device: validate -> view
// -> arguments -> outputs -> backend.
//
// A Spec (cc/ops/fused_batch_norm_grad.h, ...) says what an op accepts and
// which of its tensors is which of the formula's. A Backend has
//   static constexpr bool kSavesRstd;
//   static void Launch(OpKernelContext*, const Call&);
// with kSavesRstd: whether the device's forward op saves rstd in
// reserve_space_2 in training (cuDNN's convention), not the variance.

#ifndef TF_BN_OPS_CC_KERNELS_BATCH_NORM_OP_H_
#define TF_BN_OPS_CC_KERNELS_BATCH_NORM_OP_H_

#include <initializer_list>

#include "absl/status/status.h"
#include "cc/core/call.h"
#include "cc/ops/dtype_of.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// The inputs of a call, for Spec::BindInputs.
class OpInputs {
 public:
  explicit OpInputs(tensorflow::OpKernelContext* context) : context_(context) {}
  void* operator()(int i) const { return context_->input(i).data(); }
  int64_t Size(int i) const { return context_->input(i).NumElements(); }

 private:
  tensorflow::OpKernelContext* const context_;
};

// The outputs of a call, for Spec::BindOutputs. Allocates each; on failure sets
// the context's status and returns nullptr.
class OpOutputs {
 public:
  explicit OpOutputs(tensorflow::OpKernelContext* context)
      : context_(context) {}

  // Output i, of the shape of input `like`, which may take the buffer of one of
  // the inputs `reusable`.
  void* operator()(int i, int like, std::initializer_list<int> reusable) const {
    return Allocate(i, context_->input(like).shape(), reusable);
  }
  // Output i, of shape [size].
  void* Vector(int i, int64_t size) const {
    return Allocate(i, tensorflow::TensorShape({size}), {});
  }
  // Output i, of shape [].
  void* Scalar(int i) const {
    return Allocate(i, tensorflow::TensorShape({}), {});
  }
  // All others, of shape [0].
  void AllocatePlaceholders() const {
    for (int i = 0; i < context_->num_outputs(); ++i) {
      if (context_->mutable_output(i) == nullptr) Vector(i, 0);
    }
  }

 private:
  void* Allocate(int i, const tensorflow::TensorShape& shape,
                 std::initializer_list<int> reusable) const {
    tensorflow::Tensor* output = nullptr;
    const absl::Status status =
        context_->forward_input_or_allocate_output(reusable, i, shape, &output);
    if (!status.ok()) context_->SetStatus(status);
    return status.ok() ? output->data() : nullptr;
  }

  tensorflow::OpKernelContext* const context_;
};

template <typename Spec, typename Backend>
class BatchNormOp : public tensorflow::OpKernel {
 public:
  explicit BatchNormOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, spec_.ReadAttrs(context));
    tensorflow::DataType x, vectors;
    OP_REQUIRES_OK(context, context->GetAttr("T", &x));
    // Without an attr U, vectors are of the type of x.
    if (!context->GetAttr("U", &vectors).ok()) vectors = x;
    dtype_ = DTypeOf(x);
    stat_dtype_ = DTypeOf(vectors);
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::TensorShape* shapes[Spec::kInputs];
    for (int i = 0; i < Spec::kInputs; ++i) {
      shapes[i] = &context->input(i).shape();
    }
    Call args;
    args.formula = Spec::kFormula;
    OP_REQUIRES_OK(context, spec_.Validate(shapes, &args.view));
    args.dtype = dtype_;
    args.stat_dtype = stat_dtype_;
    spec_.BindAttrs(Backend::kSavesRstd, &args);
    Spec::BindInputs(OpInputs(context), &args);
    OpOutputs outputs(context);
    Spec::BindOutputs(outputs, &args);
    outputs.AllocatePlaceholders();
    if (context->status().ok()) Backend::Launch(context, args);
  }

 private:
  Spec spec_;
  // Of tensors of the shape of x, and of the vectors.
  DType dtype_, stat_dtype_;
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_BATCH_NORM_OP_H_
