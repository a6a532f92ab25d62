// The kernel class of every op of the family on every device: validate -> view
// -> arguments -> outputs -> backend.
//
// A Spec (cc/ops/fused_batch_norm_grad.h, ...) says what an op accepts and
// which of its tensors is which of the formula's. A Backend has
//   static constexpr bool kSavesRstd;
//   static void Launch(OpKernelContext*, const Spec::Args&);
// with kSavesRstd: whether the device's forward op saves rstd in
// reserve_space_2 in training (cuDNN's convention), not the variance.

#ifndef TF_BN_OPS_CC_KERNELS_BATCH_NORM_OP_H_
#define TF_BN_OPS_CC_KERNELS_BATCH_NORM_OP_H_

#include <initializer_list>

#include "absl/status/status.h"
#include "cc/ops/dtype_of.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// T is the element type of tensors of the shape of x, U that of the vectors.
template <typename Spec, typename T, typename U, typename Backend>
class BatchNormOp : public tensorflow::OpKernel {
 public:
  explicit BatchNormOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, spec_.ReadAttrs(context));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::TensorShape* shapes[Spec::kInputs];
    for (int i = 0; i < Spec::kInputs; ++i) {
      shapes[i] = &context->input(i).shape();
    }
    typename Spec::Args args;
    OP_REQUIRES_OK(context, spec_.Validate(shapes, &args.view));
    args.dtype = DTypeOf<T>::value;
    args.stat_dtype = DTypeOf<U>::value;
    spec_.BindAttrs(Backend::kSavesRstd, &args);
    Spec::BindInputs([context](int i) { return context->input(i).data(); },
                     &args);

    const auto allocate = [context](int i, const tensorflow::TensorShape& shape,
                                    std::initializer_list<int> reusable) {
      tensorflow::Tensor* output = nullptr;
      const absl::Status status = context->forward_input_or_allocate_output(
          reusable, i, shape, &output);
      if (!status.ok()) context->SetStatus(status);
      return status.ok() ? output->data() : nullptr;
    };
    Spec::BindOutputs(
        [&](int i, int like, std::initializer_list<int> reusable) {
          return allocate(i, *shapes[like], reusable);
        },
        &args);
    // Placeholders where the forward op has mean and variance.
    for (int i = Spec::kOutputs; i < num_outputs(); ++i) {
      allocate(i, tensorflow::TensorShape({0}), {});
    }
    if (context->status().ok()) Backend::Launch(context, args);
  }

 private:
  Spec spec_;
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_BATCH_NORM_OP_H_
