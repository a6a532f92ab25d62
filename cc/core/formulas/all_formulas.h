// The list of all formulas. A new formula is a file in this folder, a line here
// and a .cc file in cc/cpu/isa.

#ifndef TF_BN_OPS_CC_CORE_FORMULAS_ALL_FORMULAS_H_
#define TF_BN_OPS_CC_CORE_FORMULAS_ALL_FORMULAS_H_

#include "cc/core/formulas/batch_norm.h"
#include "cc/core/formulas/batch_norm_backward_elemt.h"
#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_ex.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"

// X(context, type, name)
#define TFBN_FOR_EACH_FORMULA(X, context)                                \
  X(context, BatchNormFormula, "batch_norm")                             \
  X(context, BatchNormAddFormula, "batch_norm_add")                      \
  X(context, BatchNormGradFormula, "batch_norm_grad")                    \
  X(context, BatchNormGradExFormula, "batch_norm_grad_ex")               \
  X(context, BatchNormGradExFromYFormula, "batch_norm_grad_ex_from_y")   \
  X(context, BatchNormGradExAddFormula, "batch_norm_grad_ex_add")        \
  X(context, BatchNormBackwardElemtFormula, "batch_norm_backward_elemt") \
  X(context, BatchNormBackwardElemtFromXFormula,                         \
    "batch_norm_backward_elemt_from_x")                                  \
  X(context, BatchNormBackwardElemtFromYFormula,                         \
    "batch_norm_backward_elemt_from_y")                                  \
  X(context, BatchNormBackwardElemtAddFormula,                           \
    "batch_norm_backward_elemt_add")                                     \
  X(context, BatchNormGradGradFormula, "batch_norm_grad_grad")

#endif  // TF_BN_OPS_CC_CORE_FORMULAS_ALL_FORMULAS_H_
