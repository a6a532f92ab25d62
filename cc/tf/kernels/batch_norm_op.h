// The kernel class of every op of the family on every device: attrs and shapes
// -> call -> inputs and outputs by role -> backend.
//
// A Backend has
//   static constexpr const char* kDevice;
//   static constexpr bool kSavesRstd;
//   static void Launch(OpKernelContext*, const Call&);
// with kSavesRstd: whether the device's forward op saves rstd in
// reserve_space_2 in training (cuDNN's convention), not the variance; and
// kDevice: what records call it (cc/core/records.h).

#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "cc/core/call.h"
#include "cc/core/records.h"
#include "cc/tf/ops/op_call.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

// The inputs whose buffer an output may take, the first one that is free.
struct Reuse {
  Role output, inputs[3];
};
constexpr Reuse kReuses[] = {
    {Role::kY, {Role::kX, Role::kSideInput, Role::kNone}},
    {Role::kBatchMean, {Role::kMean, Role::kNone, Role::kNone}},
    {Role::kBatchVariance, {Role::kVariance, Role::kNone, Role::kNone}},
    {Role::kXBackprop, {Role::kYBackprop, Role::kX, Role::kY}},
    {Role::kSideInputBackprop, {Role::kYBackprop, Role::kNone, Role::kNone}},
    {Role::kYBackpropGrad, {Role::kXBackpropGrad, Role::kYBackprop, Role::kX}},
    {Role::kXGrad, {Role::kYBackprop, Role::kX, Role::kXBackpropGrad}}};

// Adds the call that the context's kernel has computed to the records.
template <typename Backend>
__attribute__((noinline)) void AddToRecords(
    tensorflow::OpKernelContext* context, int x, FormulaKind direction,
    DType dtype, int64_t bytes, int64_t begin, std::atomic<Record*>* last) {
  if (!context->status().ok()) return;
  const tensorflow::OpKernel& kernel = context->op_kernel();
  const auto dims = context->input(x).shape().dim_sizes();
  RecordCall({kernel.name(), kernel.type_string(), Backend::kDevice, direction,
              dtype, dims.data(), dims.size(), bytes},
             begin, last);
}

// Calls run(); the system may have no memory left, or no thread, and
// TensorFlow's threads are not to be unwound.
template <typename Run>
void WithoutExceptions(tensorflow::OpKernelContext* context, const Run& run) {
  try {
    run();
  } catch (const std::exception& e) {
    context->SetStatus(absl::ResourceExhaustedError(e.what()));
  }
}

template <typename Backend>
class BatchNormKernel : public tensorflow::OpKernel {
 public:
  BatchNormKernel(const OpSignature& op,
                  tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, op_.ReadAttrs(op, Backend::kSavesRstd, context));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    WithoutExceptions(context, [&] { Run(context); });
  }

 private:
  void Run(tensorflow::OpKernelContext* context) {
    const int count = context->num_inputs();
    absl::InlinedVector<const tensorflow::TensorShape*, 10> shapes(count);
    for (int i = 0; i < count; ++i) shapes[i] = &context->input(i).shape();
    Call call;
    OP_REQUIRES_OK(context, op_.Make(shapes.data(), count, &call));
    for (int i = 0; i < count; ++i) {
      const Role role = op_.InputRole(call, i, *shapes[i]);
      if (role == Role::kNone) continue;
      ArrayOf(call, role) = context->input(i).data();
    }
    // From the last one on: where there is a side input its gradient, which is
    // y_backprop or the same masked, takes the buffer of y_backprop.
    for (int i = context->num_outputs() - 1; i >= 0; --i) {
      OP_REQUIRES_OK(context, Allocate(context, i, &call));
    }
    const int64_t begin = BeginOfCall();
    Backend::Launch(context, call);
    if (begin != 0) {
      AddToRecords<Backend>(context, op_.signature().x, call.formula,
                            call.dtype, BytesOf(call), begin, &last_record_);
    }
  }

  // Output i, which may take the buffer of one of the inputs that its role
  // says.
  absl::Status Allocate(tensorflow::OpKernelContext* context, int i,
                        Call* call) const {
    const OpSignature& op = op_.signature();
    const OpSignature::Arg& output = op.Output(i);
    tensorflow::TensorShape shape;
    bool is_stored = output.role != Role::kNone;
    switch (output.kind()) {
      case ArgKind::kView:
        shape = context->input(op.x).shape();
        break;
      case ArgKind::kVector:
        shape.AddDim(call->view.channels);
        break;
      case ArgKind::kScalar:
        break;
      case ArgKind::kOpaque:  // The forward coefficients.
        is_stored = OpCall::KeepsCoefficients(*call);
        shape = is_stored ? OpCall::CoefficientsShape(*call)
                          : tensorflow::TensorShape({0});
        break;
      case ArgKind::kPlaceholder:
        shape.AddDim(0);
        break;
    }
    absl::InlinedVector<int, 3> reusable;
    for (const Reuse& reuse : kReuses) {
      if (!is_stored || reuse.output != output.role) continue;
      for (const Role role : reuse.inputs) {
        const int input = op.InputOf(role);
        if (role != Role::kNone && input < context->num_inputs()) {
          reusable.push_back(input);
        }
      }
    }
    tensorflow::Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(
        context->forward_input_or_allocate_output(reusable, i, shape, &tensor));
    if (is_stored) ArrayOf(*call, output.role) = tensor->data();
    return absl::OkStatus();
  }

  OpCall op_;
  std::atomic<Record*> last_record_{nullptr};
};

template <const OpSignature& kOp, typename Backend>
class BatchNormOp : public BatchNormKernel<Backend> {
 public:
  explicit BatchNormOp(tensorflow::OpKernelConstruction* context)
      : BatchNormKernel<Backend>(kOp, context) {}
};

}  // namespace tf_bn_ops
