// The CPU kernels of the second pass of the gradient by itself, compiled once
// for every line of isa_builds.txt.

#include "cc/core/formulas/gradient.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_DEFINE_KERNELS(BatchNormBackwardElemtFormula)
TFBN_DEFINE_KERNELS(BatchNormBackwardElemtFromXFormula)
TFBN_DEFINE_KERNELS(BatchNormBackwardElemtFromYFormula)
TFBN_DEFINE_KERNELS(BatchNormBackwardElemtAddFormula)
