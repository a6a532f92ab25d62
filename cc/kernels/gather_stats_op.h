// The kernel class of TfBnOps>BatchNormGatherStats on every device: validate ->
// outputs -> backend, which has
//   static void Launch(OpKernelContext*, const GatherStatsArgs&);

#ifndef TF_BN_OPS_CC_KERNELS_GATHER_STATS_OP_H_
#define TF_BN_OPS_CC_KERNELS_GATHER_STATS_OP_H_

#include <cstdint>

#include "cc/core/gather_stats.h"
#include "cc/ops/check_shapes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_bn_ops {

template <typename Backend>
class BatchNormGatherStatsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
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
    Backend::Launch(context, args);
  }

 private:
  static const double* DataOf(const tensorflow::Tensor& tensor) {
    return tensor.flat<double>().data();
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_GATHER_STATS_OP_H_
