// The CPU kernels of the first-order gradient, compiled once for every line of
// isa_builds.txt.

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_DEFINE_KERNELS(BatchNormGradFormula)
