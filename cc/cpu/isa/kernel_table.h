// The table of kernels of a formula: its passes (pass.h) and its pipeline
// (pipeline.h).

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/core/formulas/all_formulas.h"
#include "cc/cpu/isa/pass.h"
#include "cc/cpu/isa/pipeline.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/kernels.h"

namespace tf_bn_ops {
namespace {

// Whether an op makes calls that have the pass.
template <typename F, typename T>
constexpr bool HasPass(PassKind kind) {
  const bool trains = IsCalled<F, T>(CallPart::kWhole, true);
  switch (kind) {
    case PassKind::kReduce:
      return trains || IsCalled<F, T>(CallPart::kSums, true);
    case PassKind::kReduceStoring:
      // What it stores is what the second pass computes from, unrounded.
      return kHasEarlyOutput<F> && trains && !(F::kIsSmooth && kIsNarrow<T>);
    case PassKind::kApply:
      return trains || IsCalled<F, T>(CallPart::kElements, true);
    case PassKind::kFrozen:
      return IsCalled<F, T>(CallPart::kWhole, false);
  }
  return false;
}

// Whether there is a pipeline (pipeline.h). It gains 1.1 to 1.2 times and is a
// fifth of a formula's kernels, so it is for what most networks train with:
// where the rows of NCHW are long, a layer behind which there is at most ReLU.
template <typename F, typename T>
constexpr bool kHasPipeline = !kIsSmallBuild && !std::is_same_v<T, double> &&
                              (std::is_same_v<F, BatchNormFormula> ||
                               std::is_same_v<F, BatchNormGradFormula> ||
                               std::is_same_v<F, BatchNormGradExFormula>);

// The pass of a kind.
template <typename F, typename T, PassKind kKind>
constexpr Kernels::PassFunction PassOfKind() {
  if constexpr (!HasPass<F, T>(kKind)) {
    return nullptr;
  } else if constexpr (kKind == PassKind::kFrozen) {
    return Pass<PassOf<F, T, false, F::kNumFrozenSums, true>>::Run;
  } else if constexpr (kKind == PassKind::kReduce) {
    return Pass<ReduceOf<F, T>>::Run;
  } else if constexpr (kKind == PassKind::kApply) {
    return Pass<ApplyOf<F, T>>::Run;
  } else {
    using First = typename F::FirstPass;
    static_assert(
        int{First::kNumFrozenSums} == int{F::kNumSums} &&
        int{First::kFirstFrozenCoefficient} == int{F::kFirstMaskCoefficient} &&
        int{First::kNumCoefficients} == int{F::kNumCoefficients} &&
        int{F::SecondPass::kNumCoefficients} == int{F::kFirstMaskCoefficient});
    return Pass<PassOf<First, T, false, First::kNumFrozenSums, true>>::Run;
  }
}

template <typename F, typename T>
constexpr VectorTraits VectorTraitsOf() {
  constexpr int kSums = ReduceVectors<F, T>(), kStores = ApplyVectors<F, T>();
  return {!kIsSmallBuild, kVectorIsLine, kSums % kLineVectors<T> == 0,
          kStores % kLineVectors<T> == 0, kMostPacked<T, kStores> > 1};
}

template <typename F, typename T>
constexpr Kernels KernelsOf() {
  if constexpr (kBfloat16Alone && !std::is_same_v<T, Bfloat16>) {
    return {};
  } else {
    Kernels kernels = {true,
                       VectorTraitsOf<F, T>(),
                       {PassOfKind<F, T, PassKind::kReduce>(),
                        PassOfKind<F, T, PassKind::kReduceStoring>(),
                        PassOfKind<F, T, PassKind::kApply>(),
                        PassOfKind<F, T, PassKind::kFrozen>()},
                       nullptr};
    if constexpr (kHasPipeline<F, T>) kernels.pipeline = RunPipeline<F, T>;
    return kernels;
  }
}

}  // namespace
}  // namespace tf_bn_ops

#define TFBN_KERNELS_OF_DTYPE(unused, name, text, storage, ...) \
  KernelsOf<Formula, storage>(),
#define TFBN_DEFINE_KERNELS(unused, F, name)                            \
  namespace tf_bn_ops {                                                 \
  const Kernels* TFBN_KERNEL_TABLE(TF_BN_OPS_ISA)(const F*);            \
  const Kernels* TFBN_KERNEL_TABLE(TF_BN_OPS_ISA)(const F*) {           \
    using Formula = F;                                                  \
    static constexpr Kernels kKernels[] = {                             \
        TFBN_FOR_EACH_DTYPE(TFBN_KERNELS_OF_DTYPE, )};                  \
    static_assert(sizeof(kKernels) == kNumDTypes * sizeof(kKernels[0]), \
                  "an element type without kernels");                   \
    return kKernels;                                                    \
  }                                                                     \
  }
