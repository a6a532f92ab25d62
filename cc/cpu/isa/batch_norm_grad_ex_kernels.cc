// The CPU kernels of the gradient behind an activation, compiled once for every
// line of isa_builds.txt.

#include "cc/core/formulas/gradient.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_DEFINE_KERNELS(BatchNormGradExFormula)
TFBN_DEFINE_KERNELS(BatchNormGradExFromYFormula)
TFBN_DEFINE_KERNELS(BatchNormGradExAddFormula)
TFBN_DEFINE_KERNELS(BatchNormGradSmoothFormula)
