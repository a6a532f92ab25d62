// GPU kernels of TfBnOps>FusedBatchNormGrad, V2 and V3.

#include "cc/kernels/fused_batch_norm_grad_op.h"

#include "cc/kernels/gpu/gpu_launch.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

TFBN_REGISTER_FUSED_BATCH_NORM_GRAD(tensorflow::DEVICE_GPU, GpuBackend);

}  // namespace
}  // namespace tf_bn_ops
