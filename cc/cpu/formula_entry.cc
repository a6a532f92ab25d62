// Instantiates the formulas for the driver.

#include "cc/cpu/formula_entry.h"

#include <algorithm>

#include "cc/core/formulas/formula.h"
#include "cc/core/two_level_sum.h"

namespace tf_bn_ops {
namespace {

#define TFBN_INDEX_OF(unused, F, name) \
  constexpr FormulaIndex IndexOf(const F*) { return FormulaIndex::k##F; }
TFBN_FOR_EACH_FORMULA(TFBN_INDEX_OF, )

// Adds up channel c in double, around `center`.
template <typename F>
void SumInDouble(const Call& call, int64_t c, double center,
                 double (&sums)[F::kNumSums]) {
  const Tensors tensors = F::TensorsOf(call);
  const View& view = call.view;
  for (double& sum : sums) sum = 0;
  for (int64_t o = 0; o < view.outer; ++o) {
    double of_line[F::kNumSums] = {};
    for (int64_t i = 0; i < view.inner; ++i) {
      double in[F::kInputs] = {};
      for (int k = 0; k < F::kNumReduceInputs; ++k) {
        in[k] = LoadAsDouble(call.dtype, tensors.in[k],
                             (o * view.channels + c) * view.inner + i);
      }
      F::Accumulate(in, center, of_line);
    }
    for (int k = 0; k < F::kNumSums; ++k) sums[k] += of_line[k];
  }
}

// Two-level sums are around a rounded center, or around an element that may be
// too far off.
template <typename F>
void Recenter(const Call& call, int64_t c0, int64_t c1,
              const ChannelSums& total) {
  if constexpr (!kIsFrozenOnly<F>) {
    const int num_sums = call.is_training ? F::kNumSums : F::kNumFrozenSums;
    if (!IsNarrow(call.dtype) || num_sums < F::kNumSums) return;
    const CenterArray centers = F::CentersOf(call);
    const auto count = static_cast<double>(ElementsPerChannel(call.view));
    for (int64_t c = c0; c < c1; ++c) {
      double sums[F::kNumSums];
      LoadChannelSums<F::kNumSums>(total, c, sums);
      if constexpr (kCentersAreElements<F>) {
        // IsFarCenter but for roundings, without a division or the center,
        // which take longer: 0.3 us for 64 channels of half.
        constexpr double kFar = kFarCenter * kFarCenter;
        const double squared = sums[F::kXcSum] * sums[F::kXcSum];
        if (!((kFar + 1.001) * squared > kFar * count * sums[F::kXcXcSum])) {
          continue;
        }
      }
      const double center = CenterAt(centers, c);
      double shift = ChainCenter(call.dtype, center) - center;
      if constexpr (kCentersAreElements<F>) {
        const BatchStatistics of = F::StatisticsOf(call, center, sums);
        if (!IsFarCenter(center, of)) continue;
        SumInDouble<F>(call, c, of.mean, sums);
        shift = of.mean - center;
      }
      // Not where the center is an infinity or NaN, either.
      if (!(shift < 0 || shift > 0)) continue;
      F::Recenter(count, shift, sums);
      for (int k = 0; k < num_sums; ++k) SumsOfChannel(total, k)[c] = sums[k];
    }
  }
}

template <typename F>
void StoreEmpty(const Call& call) {
  for (int64_t c = 0; c < call.view.channels; ++c) F::StoreEmpty(call, c);
}

template <typename F>
FormulaEntry MakeEntry(const char* name) {
  FormulaEntry entry = {
      {name, F::kKind, F::kInputs, F::kOutputs, TileColumns<F>(true),
       TileColumns<F>(false), kHasEarlyOutput<F>},
      F::kNumSums,
      F::kNumFrozenSums,
      F::kNumCoefficients,
      F::TensorsOf,
      Recenter<F>,
      StoreEmpty<F>,
      {}};
  if constexpr (kHasEarlyOutput<F>) {
    using Second = typename F::SecondPass;
    entry.early = {F::FirstPass::TensorsOf,
                   IndexOf(static_cast<const Second*>(nullptr)),
                   F::SecondPassArgs, F::kEarlyInput};
  }
  return entry;
}

const FormulaEntry* Entries() {
#define TFBN_ENTRY_OF(unused, F, name) MakeEntry<F>(name),
  static const FormulaEntry entries[] = {
      TFBN_FOR_EACH_FORMULA(TFBN_ENTRY_OF, )};
  return entries;
}

}  // namespace

const FormulaEntry& EntryOf(FormulaIndex formula) {
  return Entries()[static_cast<int>(formula)];
}

const FormulaEntry* FindFormula(const std::string& name) {
  const FormulaEntry* const end = Entries() + kNumFormulas;
  const FormulaEntry* const found = std::find_if(
      Entries(), end,
      [&](const FormulaEntry& entry) { return name == entry.traits.name; });
  return found == end ? nullptr : found;
}

}  // namespace tf_bn_ops
