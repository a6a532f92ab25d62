// The list of CPU implementations and the choice among them.

#include "cc/cpu/implementation.h"

#include <cstdlib>
#include <utility>

// TF_BN_OPS_ISA_LIST comes from the build: X(name) for each line of
// isa/isa_builds.txt that fits the machine, in that order.
#ifndef TF_BN_OPS_ISA_LIST
#error "TF_BN_OPS_ISA_LIST is set by the build from cc/cpu/isa/isa_builds.txt"
#endif

namespace tf_bn_ops {

#define X(name)                                            \
  const Kernels<BatchNormGradFormula>& Kernels_##name(     \
      const BatchNormGradFormula*);                        \
  const Kernels<BatchNormGradGradFormula>& Kernels_##name( \
      const BatchNormGradGradFormula*);
TF_BN_OPS_ISA_LIST
#undef X

namespace {

// One function for each name of isa_builds.txt. The operating system's part
// (saving the wide registers) is covered by __builtin_cpu_supports.
#if defined(__x86_64__)
[[maybe_unused]] bool Supports_avx512() {
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
}
[[maybe_unused]] bool Supports_avx512bf16() {
  return Supports_avx512() && __builtin_cpu_supports("avx512bf16");
}
[[maybe_unused]] bool Supports_avx2() {
  // Every processor with AVX2 and FMA converts half precision too (F16C is
  // older than both).
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif
[[maybe_unused]] bool Supports_baseline() { return true; }
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
#define X(name)                                                        \
  {#name, Supports_##name,                                             \
   &Kernels_##name(static_cast<const BatchNormGradFormula*>(nullptr)), \
   &Kernels_##name(static_cast<const BatchNormGradGradFormula*>(nullptr))},
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
