// The table of kernels of a formula: its passes (pass.h), its pipeline
// (pipeline.h), and its coefficients by channel.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/core/formulas/formula.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/pass.h"
#include "cc/cpu/isa/pipeline.h"
#include "cc/cpu/isa/vec.h"

namespace tf_bn_ops {
namespace {

// Writes the coefficients of channel `c` from `begin` on, before `end`.
template <typename F, typename C>
TFBN_INLINE void StoreCoefficients(const C (&k)[F::kNumCoefficients], int begin,
                                   int end, int64_t c, int64_t channels,
                                   void* coefficients) {
  const int64_t stride = CoefficientStride(channels);
  C* const out = static_cast<C*>(coefficients) + c;
  // A NaN that is given may have any payload, see NarrowBfloat16 (vec.h).
  for (int i = begin; i < end; ++i) {
    out[i * stride] = k[i] == k[i] ? k[i] : static_cast<C>(kNaN);
  }
}

// Kernels::mask_coefficients; C is the type that F is applied in.
template <typename F, typename C>
void ComputeMaskCoefficients(const Call& args, int64_t c0, int64_t c1,
                             void* coefficients) {
  if constexpr (kHasMask<F>) {
    for (int64_t c = c0; c < c1; ++c) {
      C k[F::kNumCoefficients];
      F::FinishMask(args, c, k);
      StoreCoefficients<F>(k, F::kFirstMaskCoefficient, F::kNumCoefficients, c,
                           args.view.channels, coefficients);
    }
  }
}

// Kernels::finish. T is the type of elements where a center is one, or else the
// type that F is applied in.
template <typename F, typename T>
void FinishChannels(const Call& call, int64_t c0, int64_t c1,
                    const ChannelSums& sums, void* coefficients,
                    bool stores_sums) {
  constexpr int64_t kAtOnce = 64;
  // A copy, which no store of an output can change: what is the same for all
  // channels is loaded, and computed, once.
  const Call args = call;
  const CenterArray centers = F::CentersOf(args);
  const bool has_rows = HasRowsOfElements(centers);
  double median[kAtOnce];
  for (int64_t c = c0; c < c1; ++c) {
    const int64_t i = (c - c0) % kAtOnce;
    if constexpr (kCentersAreElements<F>) {
      if (has_rows && i == 0) {
        LoadMedians<T>(centers, c, std::min(kAtOnce, c1 - c), median);
      }
    }
    const double center = has_rows ? median[i] : CenterAt(centers, c);
    double of_channel[F::kNumSums] = {};
    if (args.is_training) {
      LoadChannelSums<F::kNumSums>(sums, c, of_channel);
    } else if (stores_sums) {
      LoadChannelSums<F::kNumFrozenSums>(sums, c, of_channel);
    }
    // Stored last, since what both need is computed once while nothing is.
    typename Compute<T>::Scalar k[F::kNumCoefficients] = {};
    if (coefficients != nullptr) F::Finish(args, c, center, of_channel, k);
    if (stores_sums) F::StoreSums(args, c, center, of_channel);
    if (coefficients != nullptr) {
      StoreCoefficients<F>(k, args.is_training ? 0 : F::kFirstFrozenCoefficient,
                           F::kFirstMaskCoefficient, c, args.view.channels,
                           coefficients);
    }
  }
}

// The pass of a kind.
template <typename F, typename T, PassKind kKind>
constexpr Kernels::Pass PassOfKind() {
  if constexpr (kKind == PassKind::kFrozen) {
    return RunPass<PassOf<F, T, false, F::kNumFrozenSums, true>>;
  } else if constexpr (kIsFrozenOnly<F>) {
    return nullptr;
  } else if constexpr (kKind == PassKind::kReduce) {
    return RunPass<ReduceOf<F, T>>;
  } else if constexpr (kKind == PassKind::kApply) {
    return RunPass<ApplyOf<F, T>>;
  } else if constexpr (kHasEarlyOutput<F>) {
    using First = typename F::FirstPass;
    static_assert(
        int{First::kNumFrozenSums} == int{F::kNumSums} &&
        int{First::kFirstFrozenCoefficient} == int{F::kFirstMaskCoefficient} &&
        int{First::kNumCoefficients} == int{F::kNumCoefficients} &&
        int{F::SecondPass::kNumCoefficients} == int{F::kFirstMaskCoefficient});
    using P = PassOf<First, T, false, First::kNumFrozenSums, true>;
    // Where non-temporal stores go row by row, and sums and results each take a
    // loop of their own, they cost more than the read for ownership of temporal
    // ones (16-bit types with AVX2: 2 to 15%).
    if constexpr (kRowByRow<T, kVectorsOf<P>, StorePolicy::kNonTemporal>) {
      return [](const Call& args, const Partition& partition, const Tile& tile,
                const void* by_channel, StorePolicy, const ChannelSums& out) {
        RunPass<P>(args, partition, tile, by_channel, StorePolicy::kTemporal,
                   out);
      };
    } else {
      return RunPass<P>;
    }
  } else {
    return nullptr;
  }
}

template <typename F, typename T>
constexpr Kernels KernelsOf() {
  if constexpr (kBfloat16Alone && !std::is_same_v<T, Bfloat16>) {
    return {};
  } else {
    using Finisher = typename F::Finisher;
    using Center = std::conditional_t<kCentersAreElements<F>, T, ComputeOf<T>>;
    Kernels kernels = {ComputeMaskCoefficients<F, ComputeOf<T>>,
                       FinishChannels<Finisher, Center>,
                       {PassOfKind<F, T, PassKind::kReduce>(),
                        PassOfKind<F, T, PassKind::kReduceStoring>(),
                        PassOfKind<F, T, PassKind::kApply>(),
                        PassOfKind<F, T, PassKind::kFrozen>()},
                       nullptr};
    if constexpr (!kIsFrozenOnly<F>) kernels.pipeline = RunPipeline<F, T>;
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
