// Dispatch: the implementations of the CPU backend, one for each ISA build, in
// one list from the fastest to the naive reference, and the choice among them.

#ifndef TF_BN_OPS_CC_CPU_DISPATCH_H_
#define TF_BN_OPS_CC_CPU_DISPATCH_H_

#include <string>
#include <tuple>
#include <vector>

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"
#include "cc/cpu/isa/kernels.h"

namespace tf_bn_ops {

// All formulas of the CPU backend: X(context, type, name).
#define TFBN_FOR_EACH_FORMULA(X, context)             \
  X(context, BatchNormGradFormula, "batch_norm_grad") \
  X(context, BatchNormGradGradFormula, "batch_norm_grad_grad")

struct Implementation {
  const char* name;
  bool (*supported)();  // By this processor.
  // By formula; nullptr: the naive reference of cc/core/reference.h.
  std::tuple<const Kernels<BatchNormGradFormula>*,
             const Kernels<BatchNormGradGradFormula>*>
      kernels;

  template <typename F>
  const Kernels<F>* KernelsOf() const {
    return std::get<const Kernels<F>*>(kernels);
  }
  bool IsReference() const { return std::get<0>(kernels) == nullptr; }
};

// All that this library was built with.
const std::vector<Implementation>& Implementations();

// The implementation called `name`; nullptr, with one sentence in `error`, if
// there is none or this processor does not support it.
const Implementation* FindImplementation(const std::string& name,
                                         std::string* error);

// The environment variable that forces one.
constexpr char kIsaVariable[] = "TF_BN_OPS_CPU_ISA";

// The implementation to use: the one that kIsaVariable names when it is set
// (read once per process), otherwise the first supported one. nullptr, with one
// sentence in `error`, if the variable names none.
const Implementation* SelectedImplementation(std::string* error);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_DISPATCH_H_
