// The list of CPU implementations and the choice among them.

#include "cc/cpu/implementation.h"

#include <cstdlib>
#include <utility>

// TF_BN_OPS_ISA_LIST comes from the build: X(name, condition) for each line of
// isa/isa_builds.txt that fits the machine, in that order.
#ifndef TF_BN_OPS_ISA_LIST
#error "TF_BN_OPS_ISA_LIST is set by the build from cc/cpu/isa/isa_builds.txt"
#endif

namespace tf_bn_ops {

#define X(name, condition)                                         \
  const KernelTable<BatchNormGradFormula>& KernelTable_##name(     \
      const BatchNormGradFormula*);                                \
  const KernelTable<BatchNormGradGradFormula>& KernelTable_##name( \
      const BatchNormGradGradFormula*);
TF_BN_OPS_ISA_LIST
#undef X

namespace {

// In the conditions of TF_BN_OPS_ISA_LIST.
#define HAS(feature) __builtin_cpu_supports(#feature)

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
#define X(name, condition)                                                 \
  {#name, [] { return static_cast<bool>(condition); },                     \
   &KernelTable_##name(static_cast<const BatchNormGradFormula*>(nullptr)), \
   &KernelTable_##name(                                                    \
       static_cast<const BatchNormGradGradFormula*>(nullptr))},
      TF_BN_OPS_ISA_LIST
#undef X
      {"reference", SupportsReference, nullptr, nullptr},
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
  // Read once: a choice that changed between two calls could give a step mixed
  // results.
  static const auto* const kSelected = [] {
    auto* selected =
        new std::pair<const Implementation*, std::string>(nullptr, "");
    const char* forced = std::getenv(kIsaVariable);
    if (forced != nullptr && *forced != '\0') {
      selected->first = FindImplementation(forced, &selected->second);
      if (selected->first == nullptr) {
        selected->second = "The environment variable " +
                           std::string(kIsaVariable) +
                           " cannot be followed: " + selected->second + ".";
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
