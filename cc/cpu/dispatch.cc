// Lists the CPU implementations and selects one by what the processor has, or
// by environment.

#include "cc/cpu/dispatch.h"

#include <cstdlib>
#include <iterator>
#include <utility>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

// TF_BN_OPS_ISA_LIST comes from the build: X(name, condition) for each line of
// isa/isa_builds.txt that fits the machine, in that order.
#ifndef TF_BN_OPS_ISA_LIST
#error "TF_BN_OPS_ISA_LIST is set by the build from cc/cpu/isa/isa_builds.txt"
#endif

// HAS(feature): whether this processor, and its operating system, have the
// instructions that a line of isa/isa_builds.txt names. On aarch64 by what
// Linux tells every process in its auxiliary vector, at the bits of the
// kernel's ABI (reading the registers themselves would trap): a feature without
// a macro does not compile.
#if defined(__aarch64__)
#define HAS(feature) HAS_##feature
#define HAS_asimd ((getauxval(AT_HWCAP) >> 1 & 1) != 0)
#define HAS_bf16 ((getauxval(AT_HWCAP2) >> 14 & 1) != 0)
#else
#define HAS(feature) __builtin_cpu_supports(#feature)
#endif

namespace tf_bn_ops {

// Defined by the kernels' translation units, see TFBN_DEFINE_KERNELS.
#define TFBN_DECLARE_KERNELS(isa, F, name) \
  const Kernels* KernelTable_##isa(const F*);
#define X(isa, condition) TFBN_FOR_EACH_FORMULA(TFBN_DECLARE_KERNELS, isa)
TF_BN_OPS_ISA_LIST
#undef X

namespace {

std::string Names() {
  std::string names;
  for (const Implementation& implementation : Implementations()) {
    if (!names.empty()) names += ", ";
    names += implementation.name;
  }
  return names;
}

}  // namespace

ImplementationList Implementations() {
  static const Implementation kImplementations[] = {
#define TFBN_KERNELS_OF(isa, F, name) \
  KernelTable_##isa(static_cast<const F*>(nullptr)),
#define X(isa, condition)                       \
  {#isa,                                        \
   [] { return static_cast<bool>(condition); }, \
   {TFBN_FOR_EACH_FORMULA(TFBN_KERNELS_OF, isa)}},
      TF_BN_OPS_ISA_LIST
#undef X
  };
  return {std::begin(kImplementations), std::end(kImplementations)};
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
