// Registers the kernels of all ops for the device TFBN_KERNEL_DEVICE, on the
// backend TFBN_KERNEL_BACKEND: included by one file per device, which defines
// both.

#pragma once

#include "cc/core/gather_stats.h"
#include "cc/tf/kernels/batch_norm_op.h"
#include "cc/tf/kernels/generated/kernel_list.h"
#include "cc/tf/ops/check_shapes.h"
#include "cc/tf/ops/first_copy.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::DT_BFLOAT16;
using ::tensorflow::DT_DOUBLE;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_HALF;

// The kernel of TfBnOps>BatchNormGatherStats: validate -> outputs -> backend,
// which has
//   static void Launch(OpKernelContext*, const GatherStatsArgs&);
template <typename Backend>
class BatchNormGatherStatsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    WithoutExceptions(context, [&] { Run(context); });
  }

 private:
  void Run(tensorflow::OpKernelContext* context) {
    namespace tf = ::tensorflow;
    tf::PartialTensorShape shapes[3], unused;
    for (int i = 0; i < 3; ++i) {
      shapes[i] = tf::PartialTensorShape(context->input(i).shape().dim_sizes());
    }
    OP_REQUIRES_OK(context, CheckGatherStatsShapes(shapes, &unused));
    GatherStatsArgs args;
    args.parts = context->input(1).dim_size(0);
    args.channels = context->input(1).dim_size(1);
    args.counts = DataOf(context->input(0));
    args.means = DataOf(context->input(1));
    args.m2s = DataOf(context->input(2));
    tf::Tensor *count, *mean, *m2;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &count));
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, {args.channels}, &mean));
    OP_REQUIRES_OK(context, context->allocate_output(2, {args.channels}, &m2));
    args.count = count->scalar<double>().data();
    args.mean = mean->flat<double>().data();
    args.m2 = m2->flat<double>().data();
    const int64_t begin = BeginOfCall();
    Backend::Launch(context, args);
    if (begin != 0) {
      const auto numbers = (args.parts + 1) * (2 * args.channels + 1);
      AddToRecords<Backend>(context, /*x=*/1, FormulaKind::kForward,
                            DType::kFloat64,
                            numbers * static_cast<int64_t>(sizeof(double)),
                            begin, /*last=*/nullptr);
    }
  }

  static const double* DataOf(const tensorflow::Tensor& tensor) {
    return tensor.flat<double>().data();
  }
};

#define T(...) .TypeConstraint("T", {__VA_ARGS__})
#define U(type) .TypeConstraint("U", type)
#define HOST(output) .HostMemory(#output)
#define REGISTER_KERNEL(op, types, constraints)                          \
  REGISTER_KERNEL_BUILDER(                                               \
      Name("TfBnOps>" #op).Device(TFBN_KERNEL_DEVICE) types constraints, \
      BatchNormOp<k##op, TFBN_KERNEL_BACKEND>);

bool RegisterKernels() {
  TFBN_FOR_EACH_TWIN_KERNEL(REGISTER_KERNEL)
  TFBN_FOR_EACH_OTHER_KERNEL(REGISTER_KERNEL)
  REGISTER_KERNEL_BUILDER(
      Name("TfBnOps>BatchNormGatherStats").Device(TFBN_KERNEL_DEVICE),
      BatchNormGatherStatsOp<TFBN_KERNEL_BACKEND>);
  return true;
}

[[maybe_unused]] const bool kKernelsRegistered =
    IsFirstCopy() && RegisterKernels();

#undef T
#undef U
#undef HOST

}  // namespace
}  // namespace tf_bn_ops
