// The CPU kernels of the first-order gradient, compiled once for every line of
// isa_builds.txt.

#include "cc/core/formulas/gradient.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_DEFINE_KERNELS(BatchNormGradFormula)
