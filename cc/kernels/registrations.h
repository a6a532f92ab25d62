// Registers the kernels of all ops for the device TFBN_KERNEL_DEVICE, on the
// backend TFBN_KERNEL_BACKEND: included by one file per device, which defines
// both.

#ifndef TF_BN_OPS_CC_KERNELS_REGISTRATIONS_H_
#define TF_BN_OPS_CC_KERNELS_REGISTRATIONS_H_

#include <cstdint>

#include "cc/kernels/batch_norm_op.h"
#include "cc/kernels/gather_stats_op.h"
#include "cc/kernels/generated/kernel_list.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

using ::Eigen::bfloat16;
using ::Eigen::half;

#define U(type) .TypeConstraint<type>("U")
#define NUM_Y(n) .AttrConstraint<int64_t>("num_y", n)
#define NUM_SIDE_INPUTS(n) .AttrConstraint<int64_t>("num_side_inputs", n)

#define HOST(output) .HostMemory(#output)
#define REGISTER_KERNEL(op, T, Statistics, constraints, ...) \
  REGISTER_KERNEL_BUILDER(                                   \
      Name("TfBnOps>" #op)                                   \
          .Device(TFBN_KERNEL_DEVICE)                        \
          .TypeConstraint<T>("T") constraints,               \
      BatchNormOp<__VA_ARGS__, T, Statistics, TFBN_KERNEL_BACKEND>);
TFBN_FOR_EACH_TWIN_KERNEL(REGISTER_KERNEL)
TFBN_FOR_EACH_OTHER_KERNEL(REGISTER_KERNEL)

REGISTER_KERNEL_BUILDER(
    Name("TfBnOps>BatchNormGatherStats").Device(TFBN_KERNEL_DEVICE),
    BatchNormGatherStatsOp<TFBN_KERNEL_BACKEND>);

#undef U
#undef NUM_Y
#undef NUM_SIDE_INPUTS
#undef HOST

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_KERNELS_REGISTRATIONS_H_
