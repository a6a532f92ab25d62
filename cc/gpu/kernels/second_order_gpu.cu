// The CUDA kernels of the second-order gradient.

#include "cc/core/formulas/all_formulas.h"
#include "cc/gpu/gpu_launcher.h"

TFBN_FOR_EACH_SECOND_ORDER(TFBN_INSTANTIATE_GPU, )
