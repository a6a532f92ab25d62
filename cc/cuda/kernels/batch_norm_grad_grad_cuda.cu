// The CUDA kernels of the second-order gradient.

#include "cc/core/formulas/second_order.h"
#include "cc/cuda/cuda_launcher.h"

namespace tf_bn_ops {
namespace cuda {

TFBN_INSTANTIATE_CUDA(BatchNormGradGradFormula)

}  // namespace cuda
}  // namespace tf_bn_ops
