// The CPU kernels of the second-order gradient, compiled once for every line of
// isa_builds.txt.

#include "cc/core/formulas/second_order.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_DEFINE_KERNELS(BatchNormGradGradFormula)
