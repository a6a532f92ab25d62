// The CPU kernels of the first-order gradient, compiled once for every line of
// isa_builds.txt.

#include "cc/core/formulas/all_formulas.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_FOR_EACH_GRADIENT(TFBN_DEFINE_KERNELS, )
