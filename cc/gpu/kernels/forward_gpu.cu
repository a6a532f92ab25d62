// The CUDA kernels of batch normalization.

#include "cc/core/formulas/all_formulas.h"
#include "cc/gpu/gpu_launcher.h"

TFBN_FOR_EACH_FORWARD(TFBN_INSTANTIATE_GPU, )
