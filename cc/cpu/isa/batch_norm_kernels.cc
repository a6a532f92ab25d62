// The CPU kernels of batch normalization, compiled once for every line of
// isa_builds.txt.

#include "cc/core/formulas/forward.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_DEFINE_KERNELS(BatchNormFormula)
TFBN_DEFINE_KERNELS(BatchNormAddFormula)
TFBN_DEFINE_KERNELS(BatchNormSmoothFormula)
