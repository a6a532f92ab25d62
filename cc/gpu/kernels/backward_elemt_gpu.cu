// The CUDA kernels of the second pass of the gradient by itself.

#include "cc/core/formulas/all_formulas.h"
#include "cc/gpu/gpu_launcher.h"

TFBN_FOR_EACH_BACKWARD_ELEMT(TFBN_INSTANTIATE_GPU, )
