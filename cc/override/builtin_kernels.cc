// Registers this library's CPU kernels for TensorFlow's own FusedBatchNormGrad,
// V2 and V3, in every process that loads this library: of the kernels that are
// registered for an op, the one of the highest priority runs.

#include "cc/kernels/batch_norm_op.h"
#include "cc/kernels/cpu_launch.h"
#include "cc/ops/fused_batch_norm_grad.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

// TensorFlow's kernels have priority 0.
constexpr int kPriority = 1;

#define REGISTER_OVERRIDE(op, T, label)   \
  REGISTER_KERNEL_BUILDER(                \
      Name(op)                            \
          .Device(tensorflow::DEVICE_CPU) \
          .TypeConstraint<T>("T")         \
          .Label(label)                   \
          .Priority(kPriority),           \
      BatchNormOp<FusedBatchNormGradSpec, T, float, CpuBackend>);

#define REGISTER_BUILTIN(op, T) REGISTER_OVERRIDE(op, T, "")
TFBN_FUSED_BATCH_NORM_GRAD_KERNELS(REGISTER_BUILTIN)

// With oneDNN, TensorFlow renames ops and looks for kernels of this label. Only
// the types that it has such kernels for: for others it must not rename.
#define REGISTER_ONEDNN(op, T) \
  REGISTER_OVERRIDE("_MklNative" op, T, "MklNameChangeOp")
REGISTER_ONEDNN("FusedBatchNormGrad", float)
REGISTER_ONEDNN("FusedBatchNormGradV2", Eigen::half)
REGISTER_ONEDNN("FusedBatchNormGradV2", Eigen::bfloat16)
REGISTER_ONEDNN("FusedBatchNormGradV2", float)
REGISTER_ONEDNN("FusedBatchNormGradV3", Eigen::bfloat16)
REGISTER_ONEDNN("FusedBatchNormGradV3", float)

}  // namespace
}  // namespace tf_bn_ops
