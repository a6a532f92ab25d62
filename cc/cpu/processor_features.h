// HAS(feature): whether this processor, and its operating system, have the
// instructions that a line of isa/isa_builds.txt names.

#ifndef TF_BN_OPS_CC_CPU_PROCESSOR_FEATURES_H_
#define TF_BN_OPS_CC_CPU_PROCESSOR_FEATURES_H_

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace tf_bn_ops {

#if defined(__aarch64__)

// What Linux tells every process in its auxiliary vector; reading the registers
// themselves would trap.
struct ProcessorFeature {
  const char* name;     // As in the line Features of /proc/cpuinfo.
  unsigned long entry;  // AT_HWCAP or AT_HWCAP2.
  int bit;              // Part of the kernel's ABI.
};
constexpr ProcessorFeature kProcessorFeatures[] = {
    {"asimd", AT_HWCAP, 1},     {"asimdhp", AT_HWCAP, 10},
    {"asimdrdm", AT_HWCAP, 12}, {"asimddp", AT_HWCAP, 20},
    {"sve", AT_HWCAP, 22},      {"asimdfhm", AT_HWCAP, 23},
    {"sve2", AT_HWCAP2, 1},     {"svei8mm", AT_HWCAP2, 9},
    {"svebf16", AT_HWCAP2, 12}, {"i8mm", AT_HWCAP2, 13},
    {"bf16", AT_HWCAP2, 14},    {"sme", AT_HWCAP2, 23},
};
constexpr int kNumProcessorFeatures =
    sizeof(kProcessorFeatures) / sizeof(kProcessorFeatures[0]);

constexpr int ProcessorFeatureIndex(const char* name) {
  for (int i = 0; i < kNumProcessorFeatures; ++i) {
    const char* a = kProcessorFeatures[i].name;
    const char* b = name;
    while (*a != '\0' && *a == *b) ++a, ++b;
    if (*a == *b) return i;
  }
  return kNumProcessorFeatures;
}

template <int kIndex>
bool HasProcessorFeature() {
  static_assert(kIndex < kNumProcessorFeatures,
                "isa_builds.txt names a feature without a row in "
                "kProcessorFeatures");
  const ProcessorFeature& feature = kProcessorFeatures[kIndex];
  return (getauxval(feature.entry) >> feature.bit & 1) != 0;
}

#define HAS(feature)                                                   \
  ::tf_bn_ops::HasProcessorFeature<::tf_bn_ops::ProcessorFeatureIndex( \
      #feature)>()

#else

#define HAS(feature) __builtin_cpu_supports(#feature)

#endif

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_PROCESSOR_FEATURES_H_
