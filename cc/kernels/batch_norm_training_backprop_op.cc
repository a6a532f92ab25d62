// CPU kernels of TfBnOps>BatchNormTrainingBackprop.

#include "cc/kernels/batch_norm_training_backprop_op.h"

#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {
namespace {

TFBN_REGISTER_TRAINING_BACKPROP(tensorflow::DEVICE_CPU, CpuBackend);

}  // namespace
}  // namespace tf_bn_ops
