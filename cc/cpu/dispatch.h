// Dispatch: the implementations of the CPU backend, one for each ISA build, in
// one list from the fastest on, and the choice among them.

#pragma once

#include <string>

#include "cc/core/formulas/all_formulas.h"
#include "cc/core/host_device.h"
#include "cc/cpu/kernels.h"

namespace tf_bn_ops {

// One of the list Implementations().
struct Implementation {
  const char* name;
  bool (*supported)();  // By this processor.
  // By FormulaIndex and DType.
  const Kernels* kernels[kNumFormulas];

  const Kernels& KernelsOf(FormulaIndex formula, DType dtype) const {
    const Kernels& own =
        kernels[static_cast<int>(formula)][static_cast<int>(dtype)];
    // A build for bfloat16 leaves other types to the next one, whose
    // instructions it has, too.
    return own.is_defined ? own : this[1].KernelsOf(formula, dtype);
  }
};

// All that this library was built with. Takes no memory: the C ABI asks for it
// where nothing may be thrown.
struct ImplementationList {
  const Implementation* begin() const { return first; }
  const Implementation* end() const { return last; }

  const Implementation *first, *last;
};
ImplementationList Implementations();

// The implementation called `name`; nullptr, with one sentence in `error`, if
// there is none or this processor does not support it.
const Implementation* FindImplementation(const std::string& name,
                                         std::string* error);

// The environment variable that forces one.
constexpr char kIsaVariable[] = "TF_BN_OPS_CPU_ISA";

// The implementation to use: the one that kIsaVariable names when it is set
// (read once per process), otherwise the first supported one. nullptr, with one
// sentence in `error`, if the variable names none.
const Implementation* SelectedImplementation(std::string* error)
    TFBN_SHARED("selected_implementation");

}  // namespace tf_bn_ops
