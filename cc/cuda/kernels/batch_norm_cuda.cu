// The CUDA kernels of batch normalization itself.

#include "cc/core/formulas/forward.h"
#include "cc/cuda/cuda_launcher.h"

namespace tf_bn_ops {
namespace cuda {

TFBN_INSTANTIATE_CUDA(BatchNormFormula)
TFBN_INSTANTIATE_CUDA(BatchNormAddFormula)
TFBN_INSTANTIATE_CUDA(BatchNormSmoothFormula)

}  // namespace cuda
}  // namespace tf_bn_ops
