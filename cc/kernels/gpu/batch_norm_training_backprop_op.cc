// GPU kernels of TfBnOps>BatchNormTrainingBackprop.

#include "cc/kernels/batch_norm_training_backprop_op.h"

#include "cc/kernels/gpu/gpu_launch.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

TFBN_REGISTER_TRAINING_BACKPROP(tensorflow::DEVICE_GPU, GpuBackend);

}  // namespace
}  // namespace tf_bn_ops
