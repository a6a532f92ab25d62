// Lists the CPU implementations and selects one by CPUID or environment.

#include "cc/cpu/dispatch.h"

#include <cstdlib>
#include <utility>

// TF_BN_OPS_ISA_LIST comes from the build: X(name) for each line of
// isa/isa_builds.txt that fits the machine, in that order.
#ifndef TF_BN_OPS_ISA_LIST
#error "TF_BN_OPS_ISA_LIST is set by the build from cc/cpu/isa/isa_builds.txt"
#endif

namespace tf_bn_ops {

// Defined by the kernels' translation units, see TFBN_DEFINE_KERNELS.
#define TFBN_DECLARE_KERNELS(isa, Formula, name) \
  const Kernels<Formula>& Kernels_##isa(const Formula*);
#define X(isa) TFBN_FOR_EACH_FORMULA(TFBN_DECLARE_KERNELS, isa)
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
#define TFBN_KERNELS_OF(isa, Formula, name) \
  &Kernels_##isa(static_cast<const Formula*>(nullptr)),
#define X(isa)           \
  {#isa, Supports_##isa, \
   std::tuple{TFBN_FOR_EACH_FORMULA(TFBN_KERNELS_OF, isa)}},
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
