// Instantiates the formulas for the driver.

// To GCC a division may trap, so that a loop which selects its result does not
// vectorize: the end of the sums takes 21 ns a channel instead of 8. Nobody
// asks for the exceptions of floating point.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math")
#endif

#include "cc/cpu/formula_entry.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "cc/core/formulas/formula.h"
#include "cc/core/two_level_sum.h"

namespace tf_bn_ops {
namespace {

#define TFBN_INDEX_OF(unused, F, name) \
  constexpr FormulaIndex IndexOf(const F*) { return FormulaIndex::k##F; }
TFBN_FOR_EACH_FORMULA(TFBN_INDEX_OF, )

// Elements in the type that they are computed in, in loops that vectorize.
TFBN_INLINE float Widened(Float16 v) {
  return WidenHalf<float>(uint32_t{v.bits});
}
TFBN_INLINE float Widened(Bfloat16 v) {
  return BitCast<float>(static_cast<uint32_t>(v.bits) << 16);
}
TFBN_INLINE float Widened(float v) { return v; }
TFBN_INLINE double Widened(double v) { return v; }

// Neighbours of which some channels are added up again: row by row, since one
// after the other they would each read a cache line of every row.
template <typename F>
struct Neighbours {
  static constexpr int kMost = 64;
  int64_t first = 0;
  int count = 0;
  bool is_far[kMost] = {};
  double center[kMost] = {};  // That they were measured from,
  double mean[kMost] = {};    // and that they are measured from now.
  double sums[F::kNumSums][kMost] = {};
};

// The terms of an element of type T.
template <typename F, typename T>
TFBN_INLINE void AddElement(const Tensors& tensors, int64_t element,
                            double mean, double (&sums)[F::kNumSums]) {
  double in[F::kInputs] = {};
  for (int k = 0; k < F::kNumReduceInputs; ++k) {
    in[k] = Widened(static_cast<const T*>(tensors.in[k])[element]);
  }
  F::Accumulate(in, mean, sums);
}

// Adds up elements, of type T, in double, around the means.
template <typename F, typename T>
void SumInDouble(const Call& call, const T* /*unused*/, Neighbours<F>* of) {
  const Tensors tensors = F::TensorsOf(call);
  const View& view = call.view;
  const int count = of->count;
  for (int64_t o = 0; o < view.outer; ++o) {
    const int64_t row = (o * view.channels + of->first) * view.inner;
    if (view.inner == 1) {  // Of all of them: that vectorizes.
      for (int n = 0; n < count; ++n) {
        double term[F::kNumSums] = {};
        AddElement<F, T>(tensors, row + n, of->mean[n], term);
        for (int k = 0; k < F::kNumSums; ++k) of->sums[k][n] += term[k];
      }
      continue;
    }
    for (int n = 0; n < count; ++n) {
      if (!of->is_far[n]) continue;
      double of_line[F::kNumSums] = {};
      for (int64_t i = 0; i < view.inner; ++i) {
        AddElement<F, T>(tensors, row + n * view.inner + i, of->mean[n],
                         of_line);
      }
      for (int k = 0; k < F::kNumSums; ++k) of->sums[k][n] += of_line[k];
    }
  }
}

// Adds up far channels again, and stores their sums around their old centers.
template <typename F>
void SumAgain(const Call& call, Neighbours<F>* of, const ChannelSums& total) {
  TFBN_SWITCH_DTYPE(
      call.dtype, if constexpr (kIsNarrow<T>) {
        SumInDouble(call, static_cast<const T*>(nullptr), of);
      });
  const auto count = static_cast<double>(ElementsPerChannel(call.view));
  for (int n = 0; n < of->count; ++n) {
    if (!of->is_far[n]) continue;
    double sums[F::kNumSums];
    for (int k = 0; k < F::kNumSums; ++k) sums[k] = of->sums[k][n];
    const double shift = of->mean[n] - of->center[n];
    // Not where the center is an infinity or NaN, either.
    if (shift < 0 || shift > 0) F::Recenter(count, shift, sums);
    for (int k = 0; k < F::kNumSums; ++k) {
      SumsOfChannel(total, k)[of->first + n] = sums[k];
    }
  }
}

// Of channels that are measured from an element: where that is too far off.
template <typename F>
void RecenterFar(const Call& call, const double* centers, int64_t first,
                 int64_t end, const ChannelSums& total) {
  const auto count = static_cast<double>(ElementsPerChannel(call.view));
  // IsFarCenter but for roundings, without a division or the center, which take
  // longer: 0.3 us for 64 channels of half.
  const auto may_be_far = [&](int64_t c) {
    constexpr double kFar = kFarCenter * kFarCenter;
    const double sum = SumsOfChannel(total, F::kXcSum)[c];
    return (kFar + 1.001) * (sum * sum) >
           kFar * count * SumsOfChannel(total, F::kXcXcSum)[c];
  };
  while (first < end && !may_be_far(first)) ++first;
  if (first == end) return;
  Neighbours<F> of;
  of.first = first;
  for (int64_t c = first; c < end; ++c) {
    if (!may_be_far(c)) continue;
    double sums[F::kNumSums];
    LoadChannelSums<F::kNumSums>(total, c, sums);
    const BatchStatistics statistics = F::StatisticsOf(call, centers[c], sums);
    if (!IsFarCenter(centers[c], statistics)) continue;
    const auto n = static_cast<int>(c - first);
    of.is_far[n] = true;
    of.center[n] = centers[c];
    of.mean[n] = statistics.mean;
    of.count = n + 1;
  }
  if (of.count > 0) SumAgain(call, &of, total);
}

// Two-level sums are around a rounded center, or around an element that may be
// too far off.
template <typename F>
void Recenter(const Call& call, int64_t c0, int64_t c1, const double* centers,
              const ChannelSums& total) {
  const int num_sums = call.is_training ? F::kNumSums : F::kNumFrozenSums;
  if (!IsNarrow(call.dtype) || num_sums < F::kNumSums) return;
  if constexpr (kCentersAreElements<F>) {
    for (int64_t c = c0; c < c1; c += Neighbours<F>::kMost) {
      RecenterFar<F>(call, centers, c, std::min(c + Neighbours<F>::kMost, c1),
                     total);
    }
  } else {
    const auto count = static_cast<double>(ElementsPerChannel(call.view));
    for (int64_t c = c0; c < c1; ++c) {
      const double shift = ChainCenter(call.dtype, centers[c]) - centers[c];
      // Not where the center is an infinity or NaN, either.
      if (!(shift < 0 || shift > 0)) continue;
      double sums[F::kNumSums];
      LoadChannelSums<F::kNumSums>(total, c, sums);
      F::Recenter(count, shift, sums);
      for (int k = 0; k < num_sums; ++k) SumsOfChannel(total, k)[c] = sums[k];
    }
  }
}

// Medians of elements that neighbouring channels have side by side, in the type
// that they are computed in, in a loop that vectorizes.
template <typename T>
void SetMedians(const CenterArray& of, int64_t c0, int64_t c1,
                double* centers) {
  using C = ComputeOf<T>;
  const T* const x[] = {static_cast<const T*>(of.data) + of.elements[0],
                        static_cast<const T*>(of.data) + of.elements[1],
                        static_cast<const T*>(of.data) + of.elements[2]};
  const auto finite = [](T element) {
    const C v = static_cast<C>(Widened(element));
    return v - v == 0 ? v : C{0};
  };
  for (int64_t c = c0; c < c1; ++c) {
    centers[c] = MedianOf(finite(x[0][c]), finite(x[1][c]), finite(x[2][c]));
  }
}

void SetCenters(const CenterArray& of, int64_t c0, int64_t c1,
                double* centers) {
  if (of.is_median && of.stride == 1 && of.data != nullptr) {
    TFBN_SWITCH_DTYPE(of.dtype, SetMedians<T>(of, c0, c1, centers));
  } else {
    LoadCenters(of, c0, c1 - c0, centers + c0);
  }
}

// Stores a coefficient of `n` channels. A NaN that is given may have any
// payload, see NarrowBfloat16 (vec.h).
template <typename C>
void StoreCoefficients(const C* from, int64_t n, C* to) {
  for (int64_t c = 0; c < n; ++c) {
    to[c] = from[c] == from[c] ? from[c] : static_cast<C>(kNaN);
  }
}

// The coefficients of the mask, in the type that F is applied in.
template <typename F, typename C>
void SetMask(const Call& call, int64_t c0, int64_t c1, void* coefficients) {
  const int64_t stride = CoefficientStride(call.view.channels);
  for (int64_t c = c0; c < c1; ++c) {
    C k[F::kNumCoefficients];
    F::FinishMask(call, c, k);
    for (int i = F::kFirstMaskCoefficient; i < F::kNumCoefficients; ++i) {
      StoreCoefficients(k + i, 1,
                        static_cast<C*>(coefficients) + i * stride + c);
    }
  }
}

// Channels whose coefficients and outputs are computed at once: from copies of
// their arrays in double, which no store of an output can change, so that a
// formula vectorizes.
constexpr int kAtOnce = 64;
using CopiesByRole = double[kNumRoles][kAtOnce];

// Whether the array of a role has an element for each channel.
constexpr bool IsByChannel(size_t role) {
  const ArrayKind kind = kRoles[role].kind;
  return kind == ArrayKind::kVector || kind == ArrayKind::kStatistics ||
         kind == ArrayKind::kWide;
}

// A call whose arrays are these copies.
template <size_t... kRole>
TFBN_INLINE Call CallOfCopies(Call call, CopiesByRole& copies,
                              std::index_sequence<kRole...>) {
  (void(ArrayOf(call, static_cast<Role>(kRole)) =
            IsByChannel(kRole) ? copies[kRole] : nullptr),
   ...);
  call.count = nullptr;
  call.view.channels = kAtOnce;
  call.stat_dtype = DType::kFloat64;
  return call;
}

// The inputs of `n` channels from `first` on; those that are not there are
// zero, if `clears`.
void LoadCopies(const Call& call, int64_t first, int64_t n, bool clears,
                CopiesByRole& copies) {
  for (size_t i = 0; i < kNumInputRoles; ++i) {
    if (!IsByChannel(i)) continue;
    const auto role = static_cast<Role>(i);
    if (const void* const from = ArrayOf(call, role)) {
      LoadAsDoubles(DTypeOf(call, role), from, first, n, copies[i]);
    } else if (clears) {
      std::fill_n(copies[i], n, 0.0);
    }
  }
}

// Their outputs. (A constant call's arrays would be, too.)
void StoreCopies(Call* call, int64_t first, int64_t n,
                 const CopiesByRole& copies) {
  for (size_t i = kNumInputRoles; i < kNumRoles; ++i) {
    if (!IsByChannel(i)) continue;
    const auto role = static_cast<Role>(i);
    if (void* const to = ArrayOf(*call, role)) {
      StoreFromDoubles(DTypeOf(*call, role), to, first, n, copies[i]);
    }
  }
}

// What the loop of FinishInMode need not ask.
enum class FinishMode {
  kFrozen,
  kTraining,
  kAveraging,  // Training of the forward formula, whose averages read old ones.
  kTotals,     // HasTotals.
};
template <typename F>
FinishMode FinishModeOf(const Call& call) {
  if (!call.is_training) return FinishMode::kFrozen;
  if (HasTotals(call)) return FinishMode::kTotals;
  return F::kKind == FormulaKind::kForward && call.exponential_avg_factor != 1
             ? FinishMode::kAveraging
             : FinishMode::kTraining;
}

// From sums, if there are any, the other coefficients, unless `coefficients` is
// nullptr, and the outputs of shape [channels] if `stores_sums`.
template <typename F, typename C, FinishMode kMode>
void FinishInMode(const Call& given, int64_t c0, int64_t c1,
                  const double* centers, const ChannelSums& sums,
                  C* coefficients, bool stores_sums) {
  Call call = given;
  constexpr bool kForward = F::kKind == FormulaKind::kForward;
  if (kMode == FinishMode::kTraining && F::kKind != FormulaKind::kGradient) {
    call.mean = call.variance = nullptr;  // They are not to be read.
  }
  const int64_t channels = call.view.channels;
  const int num_sums = sums.first == nullptr          ? 0
                       : kMode == FinishMode::kFrozen ? int{F::kNumFrozenSums}
                                                      : int{F::kNumSums};
  CopiesByRole copies;
  double center[kAtOnce], sum[F::kNumSums][kAtOnce];
  C kept[kNumForwardCoefficients][kAtOnce], k[F::kNumCoefficients][kAtOnce];
  Call of = CallOfCopies(call, copies, std::make_index_sequence<kNumRoles>());
  of.dtype = std::is_same_v<C, double> ? DType::kFloat64 : DType::kFloat32;
  of.is_training = kMode != FinishMode::kFrozen;
  of.forward_coefficients = kept;
  if (kMode == FinishMode::kTotals) {
    of.count = call.count;
  } else {
    of.sum_dy = nullptr;
  }
  if (kMode != FinishMode::kAveraging) of.exponential_avg_factor = 1;
  // Never, which the compiler has to see.
  if (kMode == FinishMode::kAveraging && of.exponential_avg_factor == 1) return;
  for (int64_t first = c0; first < c1; first += kAtOnce) {
    const int64_t n = std::min<int64_t>(c1 - first, kAtOnce);
    LoadCopies(call, first, n, first == c0, copies);
    std::copy_n(centers + first, n, center);
    for (int i = 0; i < F::kNumSums; ++i) {
      if (i < num_sums) {
        std::copy_n(SumsOfChannel(sums, i) + first, n, sum[i]);
      } else {
        std::fill_n(sum[i], n, 0.0);
      }
    }
    C* const rows = static_cast<C*>(call.forward_coefficients);
    for (int row = 0; !kForward && row < kNumForwardCoefficients; ++row) {
      if (rows != nullptr) {
        std::copy_n(rows + row * channels + first, n, kept[row]);
      } else if (first == c0) {  // Of no variance, see IsKept.
        std::fill_n(kept[row], n, static_cast<C>(kNaN));
      }
    }
    for (int64_t c = 0; c < n; ++c) {
      double of_channel[F::kNumSums];
      for (int i = 0; i < F::kNumSums; ++i) of_channel[i] = sum[i][c];
      C of_c[F::kNumCoefficients] = {};
      F::Finish(of, c, center[c], of_channel, of_c);
      F::StoreSums(of, c, center[c], of_channel);
      for (int i = 0; i < F::kNumCoefficients; ++i) k[i][c] = of_c[i];
    }
    if (stores_sums) StoreCopies(&call, first, n, copies);
    if (coefficients == nullptr) continue;
    for (int row = 0; kForward && row < kNumForwardCoefficients; ++row) {
      if (rows != nullptr) {
        std::copy_n(kept[row], n, rows + row * channels + first);
      }
    }
    const int begin = of.is_training ? 0 : F::kFirstFrozenCoefficient;
    for (int i = begin; i < F::kFirstMaskCoefficient; ++i) {
      StoreCoefficients(k[i], n,
                        coefficients + i * CoefficientStride(channels) + first);
    }
  }
}

// The same from the arrays of the call, without copies: they cost 0.3 us of the
// 2.3 us that a call of [2, 4, 8, 8] takes.
constexpr int64_t kFewChannels = 16;
template <typename F, typename C>
void FinishFew(const Call& call, int64_t c0, int64_t c1, const double* centers,
               const ChannelSums& sums, C* coefficients, bool stores_sums) {
  const int num_sums = sums.first == nullptr ? 0
                       : call.is_training    ? int{F::kNumSums}
                                             : int{F::kNumFrozenSums};
  const int64_t stride = CoefficientStride(call.view.channels);
  for (int64_t c = c0; c < c1; ++c) {
    double sum[F::kNumSums] = {};
    for (int i = 0; i < num_sums; ++i) sum[i] = SumsOfChannel(sums, i)[c];
    if (coefficients != nullptr) {
      C k[F::kNumCoefficients] = {};
      F::Finish(call, c, centers[c], sum, k);
      const int begin = call.is_training ? 0 : F::kFirstFrozenCoefficient;
      for (int i = begin; i < F::kFirstMaskCoefficient; ++i) {
        StoreCoefficients(k + i, 1, coefficients + i * stride + c);
      }
    }
    if (stores_sums) F::StoreSums(call, c, centers[c], sum);
  }
}

template <typename F, typename C>
void FinishInType(const Call& call, int64_t c0, int64_t c1,
                  const double* centers, const ChannelSums& sums,
                  void* coefficients, bool stores_sums) {
  if (c1 - c0 <= kFewChannels) {
    return FinishFew<F>(call, c0, c1, centers, sums,
                        static_cast<C*>(coefficients), stores_sums);
  }
  const auto finish = [&](auto mode) {
    FinishInMode<F, C, decltype(mode)::value>(call, c0, c1, centers, sums,
                                              static_cast<C*>(coefficients),
                                              stores_sums);
  };
  using Mode = FinishMode;
  const Mode mode = FinishModeOf<F>(call);
  if (mode == Mode::kFrozen) {
    finish(std::integral_constant<Mode, Mode::kFrozen>());
  } else if (mode == Mode::kTraining) {
    finish(std::integral_constant<Mode, Mode::kTraining>());
  } else if constexpr (F::kKind == FormulaKind::kForward) {
    finish(std::integral_constant<Mode, Mode::kAveraging>());
  } else if constexpr (F::kKind == FormulaKind::kGradient) {
    finish(std::integral_constant<Mode, Mode::kTotals>());
  }
}
template <typename F>
void FinishChannels(const Call& call, int64_t c0, int64_t c1,
                    const double* centers, const ChannelSums& sums,
                    void* coefficients, bool stores_sums) {
  using Finisher = typename F::Finisher;
  const auto finish = call.dtype == DType::kFloat64
                          ? FinishInType<Finisher, double>
                          : FinishInType<Finisher, float>;
  finish(call, c0, c1, centers, sums, coefficients, stores_sums);
}

template <typename F>
void Prepare(const Call& call, int64_t c0, int64_t c1, double* centers,
             void* coefficients) {
  SetCenters(F::CentersOf(call), c0, c1, centers);
  if (!call.is_training || HasTotals(call)) {
    FinishChannels<F>(call, c0, c1, centers, {}, coefficients,
                      /*stores_sums=*/false);
  }
  if constexpr (kHasMask<F>) {
    const auto set_mask =
        call.dtype == DType::kFloat64 ? SetMask<F, double> : SetMask<F, float>;
    set_mask(call, c0, c1, coefficients);
  }
}

template <typename F>
void Finish(const Call& call, int64_t c0, int64_t c1, const double* centers,
            const ChannelSums& total, void* coefficients) {
  Recenter<F>(call, c0, c1, centers, total);
  FinishChannels<F>(call, c0, c1, centers, total, coefficients,
                    /*stores_sums=*/true);
}

template <typename F>
void StoreEmpty(const Call& call) {
  for (int64_t c = 0; c < call.view.channels; ++c) F::StoreEmpty(call, c);
}

template <typename F>
FormulaEntry MakeEntry(const char* name) {
  FormulaEntry entry = {
      {name, F::kKind, F::kInputs, F::kOutputs, TileColumns<F>(true),
       TileColumns<F>(false), kHasEarlyOutput<F>, F::kIsSmooth,
       F::kNumReduceInputs, kHasMask<F>, F::kNumFrozenSums > 0},
      F::kNumSums,
      F::kNumFrozenSums,
      F::kNumCoefficients,
      F::TensorsOf,
      Prepare<F>,
      Finish<F>,
      StoreEmpty<F>,
      {}};
  if constexpr (kHasEarlyOutput<F>) {
    using Second = typename F::SecondPass;
    entry.early = {F::FirstPass::TensorsOf,
                   IndexOf(static_cast<const Second*>(nullptr)),
                   F::SecondPassCall, F::kEarlyInput};
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

int FindFormula(const std::string& name) {
  const FormulaEntry* const all = Entries();
  return static_cast<int>(std::find_if(all, all + kNumFormulas,
                                       [&](const FormulaEntry& entry) {
                                         return name == entry.traits.name;
                                       }) -
                          all);
}

}  // namespace tf_bn_ops
