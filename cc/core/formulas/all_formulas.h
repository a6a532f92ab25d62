// The lists of the instances of all formulas, and which one computes a call. A
// new formula has a file here and a line in the list of its kind; the kernels
// of all ISAs and of GPUs, driver and plan follow.

#pragma once

#include <cstddef>

#include "cc/core/call.h"
#include "cc/core/formulas/forward.h"
#include "cc/core/formulas/gradient.h"
#include "cc/core/formulas/second_order.h"

// X(context, type, name), for each kind of formula.
#define TFBN_FOR_EACH_FORWARD(X, context)                 \
  X(context, BatchNormFormula, "batch_norm")              \
  X(context, BatchNormAddFormula, "batch_norm_add")       \
  X(context, BatchNormSmoothFormula, "batch_norm_smooth") \
  X(context, BatchNormSmoothAddFormula, "batch_norm_smooth_add")
#define TFBN_FOR_EACH_GRADIENT(X, context)                             \
  X(context, BatchNormGradFormula, "batch_norm_grad")                  \
  X(context, BatchNormGradExFormula, "batch_norm_grad_ex")             \
  X(context, BatchNormGradExFromYFormula, "batch_norm_grad_ex_from_y") \
  X(context, BatchNormGradExAddFormula, "batch_norm_grad_ex_add")      \
  X(context, BatchNormGradSmoothFormula, "batch_norm_grad_smooth")     \
  X(context, BatchNormGradSmoothAddFormula, "batch_norm_grad_smooth_add")
#define TFBN_FOR_EACH_SECOND_ORDER(X, context) \
  X(context, BatchNormGradGradFormula, "batch_norm_grad_grad")

#define TFBN_FOR_EACH_FORMULA(X, context) \
  TFBN_FOR_EACH_FORWARD(X, context)       \
  TFBN_FOR_EACH_GRADIENT(X, context)      \
  TFBN_FOR_EACH_SECOND_ORDER(X, context)

namespace tf_bn_ops {

// Indices of the formulas, in the order of the list.
enum class FormulaIndex : int {
#define TFBN_INDEX_OF(unused, F, name) k##F,
  TFBN_FOR_EACH_FORMULA(TFBN_INDEX_OF, )
#undef TFBN_INDEX_OF
};
#define TFBN_COUNT(unused, F, name) +1
constexpr int kNumFormulas = TFBN_FOR_EACH_FORMULA(TFBN_COUNT, );
#undef TFBN_COUNT

// Which formula computes a call, by what it has: without an activation the
// plain gradient (side_input_backprop is y_backprop then); the mask from x
// where there is no y, or the coefficients that the forward pass left.
static inline FormulaIndex FormulaOf(const Call& call) {
  const bool masked = call.activation != Activation::kIdentity;
  const bool smooth = IsSmooth(call.activation);
  const bool adds = call.side_input_backprop != nullptr;
  const bool from_x =
      call.y == nullptr ||
      (call.forward_coefficients != nullptr && call.offset != nullptr);
  switch (call.formula) {
    case FormulaKind::kForward:
      if (call.side_input != nullptr) {
        return smooth ? FormulaIndex::kBatchNormSmoothAddFormula
                      : FormulaIndex::kBatchNormAddFormula;
      }
      return smooth ? FormulaIndex::kBatchNormSmoothFormula
                    : FormulaIndex::kBatchNormFormula;
    case FormulaKind::kSecondOrder:
      return FormulaIndex::kBatchNormGradGradFormula;
    case FormulaKind::kGradient:
      break;
  }
  if (smooth) {
    return adds ? FormulaIndex::kBatchNormGradSmoothAddFormula
                : FormulaIndex::kBatchNormGradSmoothFormula;
  }
  return !masked  ? FormulaIndex::kBatchNormGradFormula
         : adds   ? FormulaIndex::kBatchNormGradExAddFormula
         : from_x ? FormulaIndex::kBatchNormGradExFormula
                  : FormulaIndex::kBatchNormGradExFromYFormula;
}

// Calls run(call), which returns 0 or an error, with sums that are given as a
// call in training, whose second pass it is; and beside what no kernel
// computes: local_count, which follows from the view, and side_input_backprop
// without an activation, which is y_backprop: copy(to, from, bytes), last,
// since it may be the buffer of x, unless x_backprop is the buffer of
// y_backprop.
template <typename Run, typename Copy>
int RunWithCopies(const Call& call, const Run& run, const Copy& copy) {
  if (call.local_count != nullptr) {
    *static_cast<double*>(call.local_count) = LocalCountOf(call.view);
  }
  const bool copies = call.activation == Activation::kIdentity &&
                      call.side_input_backprop != nullptr &&
                      call.side_input_backprop != call.y_backprop;
  const size_t bytes = copies ? NumElements(call.view) * SizeOf(call.dtype) : 0;
  const bool copies_first = call.x_backprop == call.y_backprop;
  int error = 0;
  if (bytes > 0 && copies_first) {
    error = copy(call.side_input_backprop, call.y_backprop, bytes);
  }
  Call computed = call;
  if (HasTotals(call)) computed.is_training = 1;
  if (error == 0) error = run(computed);
  if (error == 0 && bytes > 0 && !copies_first) {
    error = copy(call.side_input_backprop, call.y_backprop, bytes);
  }
  return error;
}

}  // namespace tf_bn_ops
