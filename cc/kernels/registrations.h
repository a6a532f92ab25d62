// Registers the kernels of all ops for the device TFBN_KERNEL_DEVICE, on the
// backend TFBN_KERNEL_BACKEND: included by one file per device, which defines
// both.

#ifndef TF_BN_OPS_CC_KERNELS_REGISTRATIONS_H_
#define TF_BN_OPS_CC_KERNELS_REGISTRATIONS_H_

#include "cc/kernels/batch_norm_op.h"
#include "cc/kernels/gather_stats_op.h"
#include "cc/kernels/generated/kernel_list.h"
#include "cc/ops/first_copy.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::DT_BFLOAT16;
using ::tensorflow::DT_DOUBLE;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_HALF;

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

#endif  // TF_BN_OPS_CC_KERNELS_REGISTRATIONS_H_
