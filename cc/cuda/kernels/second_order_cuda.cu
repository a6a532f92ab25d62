// The CUDA kernels of the second-order gradient.

#include "cc/core/formulas/all_formulas.h"
#include "cc/cuda/cuda_launcher.h"

namespace tf_bn_ops {
namespace cuda {

TFBN_FOR_EACH_SECOND_ORDER(TFBN_INSTANTIATE_CUDA, )

}  // namespace cuda
}  // namespace tf_bn_ops
