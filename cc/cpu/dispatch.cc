// Lists the CPU implementations and selects one by what the processor has, or
// by environment.

#include "cc/cpu/dispatch.h"

#include <cstdlib>
#include <utility>

#include "cc/cpu/processor_features.h"

// TF_BN_OPS_ISA_LIST comes from the build: X(name, condition) for each line of
// isa/isa_builds.txt that fits the machine, in that order.
#ifndef TF_BN_OPS_ISA_LIST
#error "TF_BN_OPS_ISA_LIST is set by the build from cc/cpu/isa/isa_builds.txt"
#endif

namespace tf_bn_ops {

// Defined by the kernels' translation units, see TFBN_DEFINE_KERNELS.
#define TFBN_DECLARE_KERNELS(isa, F, name) \
  const Kernels* KernelTable_##isa(const F*);
#define X(isa, condition) TFBN_FOR_EACH_FORMULA(TFBN_DECLARE_KERNELS, isa)
TF_BN_OPS_ISA_LIST
#undef X

namespace {

bool SupportsReference() { return true; }

std::string Names() {
  std::string names;
  for (const Implementation& implementation : Implementations()) {
    if (!names.empty()) names += ", ";
    names += implementation.name;
  }
  return names;
}

}  // namespace

const std::vector<Implementation>& Implementations() {
  static const auto* const kImplementations = new std::vector<Implementation>{
#define TFBN_KERNELS_OF(isa, F, name) \
  KernelTable_##isa(static_cast<const F*>(nullptr)),
#define X(isa, condition)                       \
  {#isa,                                        \
   [] { return static_cast<bool>(condition); }, \
   {TFBN_FOR_EACH_FORMULA(TFBN_KERNELS_OF, isa)}},
      TF_BN_OPS_ISA_LIST
#undef X
      {"reference", SupportsReference, {}},
  };
  return *kImplementations;
}

const Implementation* FindImplementation(const std::string& name,
                                         std::string* error) {
  for (const Implementation& implementation : Implementations()) {
    if (name != implementation.name) continue;
    if (implementation.supported()) return &implementation;
    *error =
        "this processor lacks the instructions of the CPU implementation \"" +
        name + "\"";
    return nullptr;
  }
  *error = "there is no CPU implementation \"" + name + "\"; this build has " +
           Names();
  return nullptr;
}

const Implementation* SelectedImplementation(std::string* error) {
  // Read once per process, so that no step mixes implementations.
  static const auto* const kSelected = [] {
    auto* selected =
        new std::pair<const Implementation*, std::string>(nullptr, "");
    const char* forced = std::getenv(kIsaVariable);
    if (forced != nullptr && *forced != '\0') {
      selected->first = FindImplementation(forced, &selected->second);
      if (selected->first == nullptr) {
        selected->second = "The environment variable " +
                           std::string(kIsaVariable) +
                           " is invalid: " + selected->second + ".";
      }
      return selected;
    }
    for (const Implementation& implementation : Implementations()) {
      if (!implementation.supported()) continue;
      selected->first = &implementation;
      break;
    }
    return selected;
  }();
  *error = kSelected->second;
  return kSelected->first;
}

}  // namespace tf_bn_ops
