// Which tensors of an op are which of the first-order formula's: for the Specs
// of ops that compute it.

#ifndef TF_BN_OPS_CC_OPS_FIRST_ORDER_BINDINGS_H_
#define TF_BN_OPS_CC_OPS_FIRST_ORDER_BINDINGS_H_

#include "cc/core/formulas/gradient.h"

namespace tf_bn_ops {

template <typename Spec>
struct FirstOrderBindings {
  static constexpr FormulaKind kFormula = FormulaKind::kGradient;
  static constexpr int kOutputs = 3;

  // `input(i)`: the value of input i. XLA's arguments have the same members as
  // Args.
  template <typename Value, typename FormulaArgs>
  static void BindInputs(const Value& input, FormulaArgs* args) {
    args->y_backprop = input(Spec::kYBackprop);
    args->x = input(Spec::kX);
    args->scale = input(Spec::kScale);
    args->mean = input(Spec::kMean);
    args->variance = input(Spec::kVariance);
  }

  // `output(i, j, reusable)`: the memory of output i, which has the shape of
  // input j and may take the buffer of one of the inputs `reusable`.
  template <typename Allocate>
  static void BindOutputs(const Allocate& output, Call* args) {
    args->x_backprop = output(0, Spec::kX, {Spec::kYBackprop, Spec::kX});
    args->scale_backprop = output(1, Spec::kScale, {});
    args->offset_backprop = output(2, Spec::kScale, {});
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_FIRST_ORDER_BINDINGS_H_
