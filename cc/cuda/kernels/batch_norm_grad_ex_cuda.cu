// The CUDA kernels of the gradient behind an activation.

#include "cc/core/formulas/gradient.h"
#include "cc/cuda/cuda_launcher.h"

namespace tf_bn_ops {
namespace cuda {

TFBN_INSTANTIATE_CUDA(BatchNormGradExFormula)
TFBN_INSTANTIATE_CUDA(BatchNormGradExFromYFormula)
TFBN_INSTANTIATE_CUDA(BatchNormGradExAddFormula)
TFBN_INSTANTIATE_CUDA(BatchNormGradSmoothFormula)

}  // namespace cuda
}  // namespace tf_bn_ops
