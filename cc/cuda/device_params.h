// The parameters of the three kernels.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_PARAMS_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_PARAMS_H_

#include <cstdint>

#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

template <typename Formula>
struct KernelParams {
  typename Formula::Args args;
  LaunchConfig config;
  double* partial_sums = nullptr;  // [kNumSums][splits][Columns()]
  // [kNumCoefficients][channels], in the compute type.
  void* coefficients = nullptr;
  // The range of channels that a finish kernel covers.
  int64_t first_channel = 0;
  int64_t end_channel = 0;
};

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_PARAMS_H_
