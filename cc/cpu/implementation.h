// The implementations of the CPU backend, in one ordered list from the fastest
// to the reference, and the choice among them.

#ifndef TF_BN_OPS_CC_CPU_IMPLEMENTATION_H_
#define TF_BN_OPS_CC_CPU_IMPLEMENTATION_H_

#include <string>
#include <vector>

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_grad.h"
#include "cc/cpu/isa/isa_kernels.h"

namespace tf_bn_ops {

struct Implementation {
  const char* name;
  bool (*supported)();  // On this processor.
  // nullptr: the naive reference of cc/core/reference.h.
  const KernelTable<BatchNormGradFormula>* first_order;
  const KernelTable<BatchNormGradGradFormula>* second_order;
};

// All that this library was built with.
const std::vector<Implementation>& Implementations();

// The implementation called `name`; nullptr, with one sentence in `error`, if
// there is none or this processor lacks its instructions.
const Implementation* FindImplementation(const std::string& name,
                                         std::string* error);

// The environment variable that forces one.
constexpr char kIsaVariable[] = "TF_BN_OPS_CPU_ISA";

// The one to use: what kIsaVariable names when it is set (read once per
// process), otherwise the first supported one. nullptr, with one sentence in
// `error`, if the variable names none.
const Implementation* SelectedImplementation(std::string* error);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_IMPLEMENTATION_H_
