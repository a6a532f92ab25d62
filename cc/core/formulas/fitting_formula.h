// Which formula computes a call of a gradient behind an activation: for the
// drivers of all backends.

#ifndef TF_BN_OPS_CC_CORE_FORMULAS_FITTING_FORMULA_H_
#define TF_BN_OPS_CC_CORE_FORMULAS_FITTING_FORMULA_H_

#include <cstddef>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/formulas/forward.h"
#include "cc/core/formulas/gradient.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// Names a formula to a generic lambda.
template <typename F>
struct FormulaTag {
  using Formula = F;
};

// The formula without an activation of a gradient that may have one.
template <typename F>
using WithoutActivation =
    std::conditional_t<kIsFrozenOnly<F>, BatchNormBackwardElemtFormula,
                       BatchNormGradFormula>;

template <typename F>
constexpr bool kMayHaveActivation =
    kHasMask<F> ||
    (kIsFrozenOnly<F> && !std::is_same_v<F, WithoutActivation<F>>);
static_assert(!kMayHaveActivation<BatchNormFormula> &&
                  !kMayHaveActivation<BatchNormAddFormula>,
              "a forward call is no gradient, whichever compiler reads this");

// Whether the workspace of a call of F holds one of G, which computes it in the
// place of F: the caller sizes it for F.
template <typename F, typename G>
constexpr bool kWorkspaceSuffices =
    int{G::kNumSums} <= int{F::kNumSums} &&
    int{G::kNumCoefficients} <= int{F::kNumCoefficients};

// A call without an activation: the plain gradient; side_input_backprop is
// y_backprop.
template <typename F, typename Run, typename Copy>
int RunWithoutActivation(const typename F::Args& args, const Run& run,
                         const Copy& copy) {
  const size_t bytes = NumElements(args.view) * SizeOf(args.dtype);
  const bool copies = bytes > 0 && args.side_input_backprop != nullptr &&
                      args.side_input_backprop != args.y_backprop;
  // Last, since side_input_backprop may be the buffer of x, unless x_backprop
  // is that of y_backprop.
  const bool copies_first = args.x_backprop == args.y_backprop;
  static_assert(kWorkspaceSuffices<F, WithoutActivation<F>>);
  int error = 0;
  if (copies && copies_first) {
    error = copy(args.side_input_backprop, args.y_backprop, bytes);
  }
  if (error == 0) error = run(FormulaTag<WithoutActivation<F>>(), args);
  if (error == 0 && copies && !copies_first) {
    error = copy(args.side_input_backprop, args.y_backprop, bytes);
  }
  return error;
}

// Calls run(FormulaTag<G>(), args) with the formula G that fits these arguments
// of F: without an activation the plain gradient, without the forward's
// coefficients that with the mask from y, else F. copy(to, from, bytes) copies
// a tensor. Both return 0, or an error, which ends the call and is returned.
template <typename F, typename Run, typename Copy>
int RunFittingFormula(const typename F::Args& args, const Run& run,
                      const Copy& copy) {
  if constexpr (kMayHaveActivation<F>) {
    if (args.activation == Activation::kIdentity) {
      return RunWithoutActivation<F>(args, run, copy);
    }
  }
  if constexpr (std::is_same_v<F, BatchNormGradExFormula>) {
    if (args.y != nullptr &&
        (args.forward_coefficients == nullptr || args.offset == nullptr)) {
      static_assert(kWorkspaceSuffices<F, BatchNormGradExFromYFormula>);
      return run(FormulaTag<BatchNormGradExFromYFormula>(), args);
    }
  }
  return run(FormulaTag<F>(), args);
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_FORMULAS_FITTING_FORMULA_H_
