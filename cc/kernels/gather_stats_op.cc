// The CPU kernel of TfBnOps>BatchNormGatherStats: validate -> outputs ->
// cc/core.

#include <cstdint>

#include "absl/status/status.h"
#include "cc/core/gather_stats.h"
#include "cc/ops/errors.h"
#include "cc/ops/split_shapes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

class BatchNormGatherStatsOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
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
    const int64_t invalid = FindInvalidCount(args);
    OP_REQUIRES(context, invalid < 0,
                InvalidArgument("counts must be finite and not negative, but "
                                "counts[",
                                invalid, "] is ", args.counts[invalid]));
    tf::Tensor *count, *mean, *m2;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &count));
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, {args.channels}, &mean));
    OP_REQUIRES_OK(context, context->allocate_output(2, {args.channels}, &m2));
    args.count = count->scalar<double>().data();
    args.mean = mean->flat<double>().data();
    args.m2 = m2->flat<double>().data();
    GatherStats(args);
  }

 private:
  static const double* DataOf(const tf::Tensor& tensor) {
    return tensor.flat<double>().data();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfBnOps>BatchNormGatherStats").Device(tf::DEVICE_CPU),
    BatchNormGatherStatsOp);

}  // namespace
}  // namespace tf_bn_ops
