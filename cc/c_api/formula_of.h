// Which formula computes a call of the C ABI: for its functions on every
// backend.

#ifndef TF_BN_OPS_CC_C_API_FORMULA_OF_H_
#define TF_BN_OPS_CC_C_API_FORMULA_OF_H_

#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/formulas/all_formulas.h"
#include "cc/core/formulas/fitting_formula.h"
#include "cc/core/view.h"

namespace tf_bn_ops {
namespace c_api {

// RunFormulaOf(args, run) returns run(FormulaTag<F>()) with the formula F of
// these arguments, which may be NULL.
template <typename Run>
int RunFormulaOf(const tfbn_batch_norm_args* args, const Run& run) {
  if (args != nullptr && args->side_input != nullptr) {
    return run(FormulaTag<BatchNormAddFormula>());
  }
  return run(FormulaTag<BatchNormFormula>());
}

template <typename Run>
int RunFormulaOf(const tfbn_batch_norm_grad_args*, const Run& run) {
  return run(FormulaTag<BatchNormGradFormula>());
}

template <typename Run>
int RunFormulaOf(const tfbn_batch_norm_grad_ex_args* args, const Run& run) {
  if (args != nullptr && args->side_input_backprop != nullptr) {
    return run(FormulaTag<BatchNormGradExAddFormula>());
  }
  return run(FormulaTag<BatchNormGradExFormula>());
}

template <typename Run>
int RunFormulaOf(const tfbn_batch_norm_grad_grad_args*, const Run& run) {
  return run(FormulaTag<BatchNormGradGradFormula>());
}

// Without outputs of view shape. Beside what the formula computes, the count
// follows from the view.
template <typename Run>
int RunFormulaOf(const tfbn_batch_norm_stats_args* args, const Run& run) {
  const int failed = run(FormulaTag<BatchNormFormula>());
  if (failed == 0) {
    const View view{args->outer, args->channels, args->inner};
    *args->count = NumElements(view) == 0
                       ? 0
                       : static_cast<double>(ElementsPerChannel(view));
  }
  return failed;
}

template <typename Run>
int RunFormulaOf(const tfbn_batch_norm_elemt_args* args, const Run& run) {
  if (args != nullptr && args->side_input != nullptr) {
    return run(FormulaTag<BatchNormAddFormula>());
  }
  return run(FormulaTag<BatchNormFormula>());
}

template <typename Run>
int RunFormulaOf(const tfbn_batch_norm_backward_reduce_args* args,
                 const Run& run) {
  if (args != nullptr && args->y != nullptr) {
    return run(FormulaTag<BatchNormGradExFromYFormula>());
  }
  return run(FormulaTag<BatchNormGradExFormula>());
}

template <typename Run>
int RunFormulaOf(const tfbn_batch_norm_backward_elemt_args* args,
                 const Run& run) {
  if (args != nullptr && args->side_input_backprop != nullptr) {
    return run(FormulaTag<BatchNormBackwardElemtAddFormula>());
  }
  if (args != nullptr && args->y != nullptr) {
    return run(FormulaTag<BatchNormBackwardElemtFromYFormula>());
  }
  return run(FormulaTag<BatchNormBackwardElemtFromXFormula>());
}

// X(name) for each call over a view: its arguments are tfbn_##name##_args, its
// functions tfbn_cpu_##name and, on other backends, the same.
#define TFBN_FOR_EACH_C_CALL(X) \
  X(batch_norm)                 \
  X(batch_norm_grad)            \
  X(batch_norm_grad_ex)         \
  X(batch_norm_grad_grad)       \
  X(batch_norm_stats)           \
  X(batch_norm_elemt)           \
  X(batch_norm_backward_reduce) \
  X(batch_norm_backward_elemt)

}  // namespace c_api
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_C_API_FORMULA_OF_H_
