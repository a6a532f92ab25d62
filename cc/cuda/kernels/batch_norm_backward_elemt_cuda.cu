// The CUDA kernels of the second pass of the gradient by itself.

#include "cc/core/formulas/gradient.h"
#include "cc/cuda/cuda_launcher.h"

namespace tf_bn_ops {
namespace cuda {

TFBN_INSTANTIATE_CUDA(BatchNormBackwardElemtFormula)
TFBN_INSTANTIATE_CUDA(BatchNormBackwardElemtFromXFormula)
TFBN_INSTANTIATE_CUDA(BatchNormBackwardElemtFromYFormula)
TFBN_INSTANTIATE_CUDA(BatchNormBackwardElemtAddFormula)

}  // namespace cuda
}  // namespace tf_bn_ops
