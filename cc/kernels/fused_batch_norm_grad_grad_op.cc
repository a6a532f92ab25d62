// CPU kernels of TfBnOps>FusedBatchNormGradGrad.

#include "cc/kernels/fused_batch_norm_grad_grad_op.h"

#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

TFBN_REGISTER_SECOND_ORDER(tensorflow::DEVICE_CPU, CpuBackend);

}  // namespace
}  // namespace tf_bn_ops
