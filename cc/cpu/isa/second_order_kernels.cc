// The CPU kernels of the second-order gradient, compiled once for every line of
// isa_builds.txt.

#include "cc/core/formulas/all_formulas.h"
#include "cc/cpu/isa/kernel_table.h"

TFBN_FOR_EACH_SECOND_ORDER(TFBN_DEFINE_KERNELS, )
