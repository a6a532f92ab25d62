// Dispatch: the implementations of the CPU backend, one for each ISA build, in
// one list from the fastest to the naive reference, and the choice among them.

#ifndef TF_BN_OPS_CC_CPU_DISPATCH_H_
#define TF_BN_OPS_CC_CPU_DISPATCH_H_

#include <string>
#include <tuple>
#include <vector>

#include "cc/core/formulas/all_formulas.h"
#include "cc/cpu/isa/isa_kernels.h"

namespace tf_bn_ops {

// A pointer to the KernelTable of each formula.
#define TFBN_TUPLE_OF(unused, F, name) std::tuple<const KernelTable<F>*>(),
using KernelTables = decltype(std::tuple_cat(
    TFBN_FOR_EACH_FORMULA(TFBN_TUPLE_OF, ) std::tuple<>()));
#undef TFBN_TUPLE_OF

struct Implementation {
  const char* name;
  bool (*supported)();   // By this processor.
  KernelTables kernels;  // All nullptr: the naive reference of cc/core.

  template <typename F>
  const KernelTable<F>* KernelsOf() const {
    return std::get<const KernelTable<F>*>(kernels);
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
