// The CUDA kernels of the first-order gradient.

#include "cc/core/formulas/all_formulas.h"
#include "cc/gpu/gpu_launcher.h"

TFBN_FOR_EACH_GRADIENT(TFBN_INSTANTIATE_GPU, )
