// The CPU kernels of the second pass of the gradient by itself, compiled once
// for every line of isa_builds.txt.

#include "cc/core/formulas/all_formulas.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_FOR_EACH_BACKWARD_ELEMT(TFBN_DEFINE_KERNELS, )
