// The CUDA kernels of the first-order gradient.

#include "cc/core/formulas/gradient.h"
#include "cc/cuda/cuda_launcher.h"

namespace tf_bn_ops {
namespace cuda {

TFBN_INSTANTIATE_CUDA(BatchNormGradFormula)

}  // namespace cuda
}  // namespace tf_bn_ops
