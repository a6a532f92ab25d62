// Puts this library's CPU kernels in the place of TensorFlow's own for
// FusedBatchNormGrad, V2 and V3, in every process that loads this: of the
// kernels that are registered for an op, the one of the highest priority runs.

#include "cc/kernels/fused_batch_norm_grad_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

// TensorFlow's kernels have priority 0.
constexpr int kPriority = 1;

// U is absent in the first version of the op.
#define REGISTER_OVERRIDE(op, label, T, ...)                                   \
  REGISTER_KERNEL_BUILDER(Name(op)                                             \
                              .Device(tf::DEVICE_CPU)                          \
                              .TypeConstraint<T>("T") __VA_ARGS__.Label(label) \
                              .Priority(kPriority),                            \
                          FusedBatchNormGradOp<T>)
#define REGISTER_OVERRIDES(op, label)                                         \
  REGISTER_OVERRIDE(op, label, Eigen::half, .TypeConstraint<float>("U"));     \
  REGISTER_OVERRIDE(op, label, Eigen::bfloat16, .TypeConstraint<float>("U")); \
  REGISTER_OVERRIDE(op, label, float, .TypeConstraint<float>("U"))

REGISTER_OVERRIDE("FusedBatchNormGrad", "", float);
REGISTER_OVERRIDES("FusedBatchNormGradV2", "");
REGISTER_OVERRIDES("FusedBatchNormGradV3", "");

// With oneDNN TensorFlow renames the ops, and looks for kernels of this label;
// those types only that it has kernels for: for others it must not rename.
REGISTER_OVERRIDE("_MklNativeFusedBatchNormGrad", "MklNameChangeOp", float);
REGISTER_OVERRIDES("_MklNativeFusedBatchNormGradV2", "MklNameChangeOp");
REGISTER_OVERRIDE("_MklNativeFusedBatchNormGradV3", "MklNameChangeOp",
                  Eigen::bfloat16, .TypeConstraint<float>("U"));
REGISTER_OVERRIDE("_MklNativeFusedBatchNormGradV3", "MklNameChangeOp", float,
                  .TypeConstraint<float>("U"));

}  // namespace
}  // namespace tf_bn_ops
