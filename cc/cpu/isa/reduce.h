// The first pass: sums over a tile by column-wise accumulation, and, frozen,
// the results of view shape on the way. The kernels Reduce and Frozen.
//
// All builds are bitwise identical: each column of a row has running sums of
// its own, so that the order of additions does not depend on the width of a
// vector; and no multiplication is fused with an addition. Running sums are in
// double. Those of narrow elements are two-level sums (two_level_sum.h): a run
// has the rows of a panel from a multiple of kTwoLevelRun up to the next one.

#ifndef TF_BN_OPS_CC_CPU_ISA_REDUCE_H_
#define TF_BN_OPS_CC_CPU_ISA_REDUCE_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/partition.h"
#include "cc/core/two_level_sum.h"
#include "cc/cpu/isa/apply.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/panel.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/vec.h"

namespace tf_bn_ops {
namespace {

// ---- Running sums -----------------------------------------------------------

// The center and the running sums of each column of a row of at most kColumns.
template <typename Term, int kSums, int64_t kColumns>
struct ColumnSums {
  static constexpr int64_t kStride = kColumns + kColumnPadding;
  alignas(kCacheLineBytes) Term center[kStride];
  alignas(kCacheLineBytes) double sum[kSums][kStride];

  void Clear(int64_t columns) {
    for (int k = 0; k < kSums; ++k) {
      for (int64_t c = 0; c < columns; ++c) sum[k][c] = 0;
    }
  }
};

// Adds up `n` neighbouring columns in eight interleaved chains: short chains
// for speed, a fixed number of them so that all builds are bitwise identical.
double AddColumns(const double* column, int64_t n) {
  static_assert(kColumnChains == 8);
  double chain[kColumnChains] = {};
  const int64_t whole = n / kColumnChains * kColumnChains;
  for (int64_t i = 0; i < whole; i += kColumnChains) {
    for (int j = 0; j < kColumnChains; ++j) chain[j] += column[i + j];
  }
  for (int64_t i = whole; i < n; ++i) chain[i - whole] += column[i];
  return ((chain[0] + chain[1]) + (chain[2] + chain[3])) +
         ((chain[4] + chain[5]) + (chain[6] + chain[7]));
}

// Adds the columns from `first` on of `channels` channels, each `per_channel`
// neighbours, to the sums of the channels from c0 on.
template <typename Term, int kSums, int64_t kColumns>
void FlushColumns(const ColumnSums<Term, kSums, kColumns>& sums, int64_t first,
                  int64_t channels, int64_t per_channel, int64_t c0,
                  const ChannelSums& out) {
  for (int k = 0; k < kSums; ++k) {
    const double* const columns = sums.sum[k] + first;
    double* const total = SumsOf(out, k) + c0;
    if (per_channel == 1) {  // The same, in a loop that vectorizes.
      for (int64_t c = 0; c < channels; ++c) total[c] += columns[c];
      continue;
    }
    for (int64_t c = 0; c < channels; ++c) {
      total[c] += AddColumns(columns + c * per_channel, per_channel);
    }
  }
}

// ---- Steps ------------------------------------------------------------------

// Adds the terms of a vector of elements, widened to kParts vectors of double.
template <typename F, int kSums, typename Wide>
TFBN_INLINE void AccumulateWide(const Wide (&wide)[F::kInputs],
                                const double* center, VD (*sum)[kSums]) {
  for (int p = 0; p < Wide::kParts; ++p) {
    VD in[F::kInputs];
    for (int i = 0; i < F::kInputs; ++i) in[i] = wide[i].part[p];
    F::Accumulate(in, Load(center + p * kDoubleLanes), sum[p]);
  }
}

// The first coefficient that the first pass uses.
template <typename F, bool kTraining>
constexpr int kFirstReduced =
    kTraining ? int{F::kFirstMaskCoefficient} : int{F::kFirstFrozenCoefficient};

// Loads a group of vectors of each input and applies the mask, if there is
// one; kPartial: the first `lanes` of one.
template <typename F, bool kPartial, int kGroup, typename T, typename V>
TFBN_INLINE void LoadMaskedInputs(const TensorPointers<F, T>& tensors,
                                  int64_t element, int lanes,
                                  const V (*k)[F::kNumCoefficients],
                                  V (&in)[kGroup][F::kInputs]) {
  LoadInputs<F, kPartial>(tensors, element, lanes, in);
  if constexpr (kHasMask<F>) {
    for (int g = 0; g < kGroup; ++g) F::Mask(in[g], k[g]);
  }
}

// One vector as doubles. A mask is applied before they are widened.
template <typename F, bool kPartial, typename T, typename V, typename Wide>
TFBN_INLINE void LoadWideInputs(const TensorPointers<F, T>& tensors,
                                int64_t element, int lanes,
                                const V (&k)[F::kNumCoefficients],
                                Wide (&wide)[F::kInputs]) {
  if constexpr (kHasMask<F>) {
    V in[1][F::kInputs];
    LoadMaskedInputs<F, kPartial>(tensors, element, lanes, &k, in);
    for (int i = 0; i < F::kInputs; ++i) wide[i] = Widen(in[0][i]);
  } else {
    for (int i = 0; i < F::kInputs; ++i) {
      const T* const from = tensors.in[i] + element;
      wide[i] = kPartial ? Widen(LoadPartial(from, lanes)) : LoadWide(from);
    }
  }
}

// Stores the running sums of a step; those of columns behind a partial vector's
// stay what they are.
template <bool kPartial, typename Term, int kSums, int64_t kColumns,
          int kWideVectors>
TFBN_INLINE void StoreStepSums(const VD (&sum)[kWideVectors][kSums],
                               const Step& step,
                               ColumnSums<Term, kSums, kColumns>& sums) {
  for (int v = 0; v < kWideVectors; ++v) {
    const int64_t column = step.column + v * kDoubleLanes;
    const int left = step.partial_lanes - v * kDoubleLanes;
    const int lanes = left < 0 ? 0 : left < kDoubleLanes ? left : kDoubleLanes;
    for (int k = 0; k < kSums; ++k) {
      if (kPartial) {
        StorePartial(sums.sum[k] + column, sum[v][k], lanes);
      } else {
        Store(sums.sum[k] + column, sum[v][k]);
      }
    }
  }
}

// Loads the running sums of a step.
template <typename Term, int kSums, int64_t kColumns, int kWideVectors>
TFBN_INLINE void LoadStepSums(const ColumnSums<Term, kSums, kColumns>& sums,
                              const Step& step,
                              VD (&sum)[kWideVectors][kSums]) {
  for (int v = 0; v < kWideVectors; ++v) {
    for (int k = 0; k < kSums; ++k) {
      sum[v][k] = Load(sums.sum[k] + step.column + v * kDoubleLanes);
    }
  }
}

// Loads the coefficients that a step reads, in the order of groups of kGroup:
// those of the mask, and, unless the policy is kNone, of frozen results.
template <typename F, StorePolicy kPolicy, typename T, int kGroup, int kVectors,
          typename C, typename V>
TFBN_INLINE void LoadStepCoefficients(const ColumnCoefficients<C>& coefficients,
                                      const Step& step,
                                      V (&k)[kVectors][F::kNumCoefficients]) {
  if constexpr (kPolicy != StorePolicy::kNone || kHasMask<F>) {
    constexpr int kFirst = kFirstReduced<F, (kPolicy == StorePolicy::kNone)>;
    LoadCoefficients<F, kVectors, kFirst>(coefficients, step.column, k);
    Reorder<LaneOrder::kGroups, T, kGroup, kFirst>(k);
  }
}

// Accumulates a step, and computes its frozen results unless the policy is
// kNone.
template <typename F, StorePolicy kPolicy, int kVectors, bool kPartial,
          typename T, int kSums, int64_t kColumns>
TFBN_INLINE void ReduceStep(
    const TensorPointers<F, T>& given, const Step& step,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients,
    ColumnSums<double, kSums, kColumns>& sums) {
  StepTensors<F, T> tensors = given;
  using Wide = decltype(LoadWide(tensors.in[0]));
  VD sum[kVectors * Wide::kParts][kSums];
  LoadStepSums(sums, step, sum);
  VectorOf<T> k[kVectors][F::kNumCoefficients];
  LoadStepCoefficients<F, kPolicy, T, /*kGroup=*/1>(coefficients, step, k);
  constexpr bool kByRow = kStoredTogether<F, T, kPolicy, kVectors> > 1;
  for (int64_t r = 0; r < step.rows; ++r) {
    const int64_t element =
        step.first_element + r * step.row_stride + step.column;
    PrefetchRow<kVectors>(tensors, step, element);
    for (int u = 0; u < kVectors; ++u) {
      const int64_t first = element + u * kLanesOf<T>;
      Wide wide[F::kInputs];
      LoadWideInputs<F, kPartial>(tensors, first, step.partial_lanes, k[u],
                                  wide);
      AccumulateWide<F>(wide, sums.center + step.column + u * kLanesOf<T>,
                        sum + u * Wide::kParts);
      if constexpr (kPolicy != StorePolicy::kNone && !kByRow) {
        ComputeResults<F, kPartial, false, kPolicy, 1>(
            tensors, first, step.partial_lanes, k + u);
      }
    }
    if constexpr (kPolicy != StorePolicy::kNone && kByRow) {
      ComputeRow<F, false, kPolicy, kVectors, kPartial, 1>(tensors, step,
                                                           element, k);
    }
  }
  StoreStepSums<kPartial>(sum, step, sums);
}

// ---- Two-level sums ---------------------------------------------------------

// Whether all lanes are finite.
template <int kVectors, int kSums>
TFBN_INLINE bool AllFinite(const VF (&run)[kVectors][kSums]) {
  VU not_zero = {};
  for (int u = 0; u < kVectors; ++u) {
    for (int k = 0; k < kSums; ++k) not_zero |= (VU)(run[u][k] - run[u][k]);
  }
  uint64_t parts[kVectorBytes / sizeof(uint64_t)], any = 0;
  StoreBits(parts, not_zero);
  for (const uint64_t part : parts) any |= part;
  return any == 0;
}

// Adds up a run of one vector of columns, from step.column on, again, in
// double. The sums of columns that are finite in float stay those: which ones
// share a vector with one that is not depends on the ISA.
template <typename F, bool kPartial, typename T, int kSums>
__attribute__((noinline)) void RepeatRun(
    const TensorPointers<F, T>& tensors, const Step& step,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients,
    const float* center, WideF (&run)[kSums]) {
  const WideF wide_center = Widen(Load(center + step.column));
  VectorOf<T> k[1][F::kNumCoefficients];
  LoadStepCoefficients<F, StorePolicy::kNone, T, /*kGroup=*/1>(coefficients,
                                                               step, k);
  WideF sum[kSums] = {};
  int64_t element = step.first_element + step.column;
  for (int64_t r = 0; r < step.rows; ++r, element += step.row_stride) {
    WideF wide[F::kInputs];
    LoadWideInputs<F, kPartial>(tensors, element, step.partial_lanes, k[0],
                                wide);
    for (int p = 0; p < WideF::kParts; ++p) {
      VD in[F::kInputs], part[kSums];
      for (int i = 0; i < F::kInputs; ++i) in[i] = wide[i].part[p];
      for (int s = 0; s < kSums; ++s) part[s] = sum[s].part[p];
      F::Accumulate(in, wide_center.part[p], part);
      for (int s = 0; s < kSums; ++s) sum[s].part[p] = part[s];
    }
  }
  for (int s = 0; s < kSums; ++s) {
    for (int p = 0; p < WideF::kParts; ++p) {
      const VD of_run = run[s].part[p];
      run[s].part[p] = of_run - of_run == 0 ? of_run : sum[s].part[p];
    }
  }
}

// Whether a run's results are stored with its sums: what a run that is repeated
// reads may lie in the buffer of a result.
template <typename T, StorePolicy kPolicy>
constexpr bool kStoresMeanwhile =
    kPolicy != StorePolicy::kNone && !kRunMayOverflow<T>;

// The frozen results of a run.
template <typename F, StorePolicy kPolicy, int kVectors, bool kPartial,
          int kGroup, typename T>
TFBN_INLINE void ComputeRun(
    const TensorPointers<F, T>& tensors, const Step& step,
    const VectorOf<T> (&k)[kVectors][F::kNumCoefficients]) {
  int64_t element = step.first_element + step.column;
  for (int64_t r = 0; r < step.rows; ++r, element += step.row_stride) {
    ComputeRow<F, false, kPolicy, kVectors, kPartial, kGroup>(tensors, step,
                                                              element, k);
  }
}

// Adds a run, of which `step` has the rows, to the running sums of its columns.
template <typename F, StorePolicy kPolicy, int kVectors, bool kPartial,
          int kGroup, typename T, int kSums, int64_t kColumns>
TFBN_INLINE void ReduceRun(
    const TensorPointers<F, T>& tensors, const Step& step,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients,
    const VectorOf<T> (&k)[kVectors][F::kNumCoefficients],
    ColumnSums<float, kSums, kColumns>& sums) {
  constexpr int kLanes = kLanesOf<T>;
  constexpr bool kByRow = kStoredTogether<F, T, kPolicy, kVectors> > 1;
  VF center[kVectors][1], run[kVectors][kSums] = {};
  for (int u = 0; u < kVectors; ++u) {
    center[u][0] = Load(sums.center + step.column + u * kLanes);
  }
  Reorder<LaneOrder::kGroups, T, kGroup, 0>(center);
  int64_t element = step.first_element + step.column;
  for (int64_t r = 0; r < step.rows; ++r, element += step.row_stride) {
    PrefetchRow<kVectors>(tensors, step, element);
    for (int u = 0; u < kVectors; u += kGroup) {
      VF in[kGroup][F::kInputs];
      const int64_t first = element + u * kLanes;
      LoadMaskedInputs<F, kPartial>(tensors, first, step.partial_lanes, k + u,
                                    in);
      for (int g = 0; g < kGroup; ++g) {
        F::Accumulate(in[g], center[u + g][0], run[u + g]);
      }
      if constexpr (kStoresMeanwhile<T, kPolicy> && !kByRow) {
        ComputeResults<F, kPartial, false, kPolicy, kGroup>(
            tensors, first, step.partial_lanes, k + u);
      }
    }
    if constexpr (kStoresMeanwhile<T, kPolicy> && kByRow) {
      ComputeRow<F, false, kPolicy, kVectors, kPartial, kGroup>(tensors, step,
                                                                element, k);
    }
  }
  Reorder<LaneOrder::kColumns, T, kGroup, 0>(run);
  VD sum[kVectors * WideF::kParts][kSums];
  LoadStepSums(sums, step, sum);
  const bool repeat = kRunMayOverflow<T> && !AllFinite(run);
  for (int u = 0; u < kVectors; ++u) {
    WideF wide[kSums];
    for (int s = 0; s < kSums; ++s) wide[s] = Widen(run[u][s]);
    if (repeat) {
      Step vector = step;
      vector.column += u * kLanes;
      RepeatRun<F, kPartial>(tensors, vector, coefficients, sums.center, wide);
    }
    for (int s = 0; s < kSums; ++s) {
      for (int p = 0; p < WideF::kParts; ++p) {
        sum[u * WideF::kParts + p][s] += wide[s].part[p];
      }
    }
  }
  StoreStepSums<kPartial>(sum, step, sums);
  if constexpr (kPolicy != StorePolicy::kNone &&
                !kStoresMeanwhile<T, kPolicy>) {
    ComputeRun<F, kPolicy, kVectors, kPartial, kGroup>(tensors, step, k);
  }
}

// The same by two-level sums. A step has whole runs, but for the last one of a
// panel.
template <typename F, StorePolicy kPolicy, int kVectors, bool kPartial,
          typename T, int kSums, int64_t kColumns>
TFBN_INLINE void ReduceStep(
    const TensorPointers<F, T>& given, const Step& step,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients,
    ColumnSums<float, kSums, kColumns>& sums) {
  // Vectors one by one where the coefficients of a mask alone are needed:
  // bringing them to the order of groups takes what groups save (0.98 to 1.02
  // times as long in bfloat16, AMD EPYC; without a mask 0.91 to 1.0).
  constexpr int kGroup = kPolicy == StorePolicy::kNone && kHasMask<F>
                             ? 1
                             : kGroupOf<T, kVectors, kPartial>;
  StepTensors<F, T> tensors = given;
  VectorOf<T> k[kVectors][F::kNumCoefficients];
  LoadStepCoefficients<F, kPolicy, T, kGroup>(coefficients, step, k);
  Step run = step;
  for (int64_t left = step.rows; left > 0; left -= kTwoLevelRun) {
    run.rows = left < kTwoLevelRun ? left : kTwoLevelRun;
    ReduceRun<F, kPolicy, kVectors, kPartial, kGroup>(tensors, run,
                                                      coefficients, k, sums);
    run.first_element += kTwoLevelRun * step.row_stride;
  }
}

// ---- Panels -----------------------------------------------------------------

// Running sums in double take two vectors for one of float, those of a run one;
// they leave half of the registers to everything else. A cache line where they
// allow it.
template <typename F, typename T>
constexpr int ReduceVectors() {
  constexpr int kValues = (kIsNarrow<T> ? 1 : 2) * F::kNumSums;
  constexpr int kMost = kRegisters / 2;
  constexpr bool kLineFits = kValues * kLineVectors<T> <= kMost;
  return std::max(VectorsPerStep(kValues, kMost),
                  kLineFits ? kLineVectors<T> : 1);
}
template <typename F, typename T>
constexpr int kReduceVectors = ReduceVectors<F, T>();

template <typename F, StorePolicy kPolicy, typename T, int kSums,
          int64_t kColumns>
void ReduceSteps(
    const TensorPointers<F, T>& tensors, const Panel& panel,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients,
    ColumnSums<TermOf<T>, kSums, kColumns>& sums) {
  constexpr int kVectors = kReduceVectors<F, T>;
  const auto take = [&](auto vectors, auto partial,
                        const Step& step) __attribute__((always_inline)) {
    ReduceStep<F, kPolicy, decltype(vectors)::value, decltype(partial)::value>(
        tensors, step, coefficients, sums);
  };
  const StepRows rows =
      kIsNarrow<T> ? StepRows{kTwoLevelRun, kMaxRowsPerStep, kTwoLevelRun}
                   : StepRows{/*least=*/2};
  ForEachStep<T, kVectors>(panel, rows, take);
}

// ---- Tiles ------------------------------------------------------------------

// The sums over a tile whose rows have at most kColumns columns; frozen, its
// results, too.
template <typename F, typename T, bool kTraining, int64_t kColumns>
class TileReducer {
 public:
  TileReducer(const typename F::Args& args, const Partition& partition,
              const Tile& tile, const void* by_channel, StorePolicy policy,
              const ChannelSums& out)
      : view_(args.view),
        partition_(partition),
        tile_(tile),
        policy_(policy),
        out_(out),
        dtype_(args.dtype),
        tensors_(PointersOf<F, T>(args)),
        centers_(F::CentersOf(args)),
        coefficients_(args.view, by_channel) {
    for (int k = 0; k < kSums; ++k) {
      for (int64_t c = tile.c0; c < tile.c1; ++c) SumsOf(out, k)[c] = 0;
    }
  }

  // The tile of kRows.
  void ReduceRows() {
    const RowPanels panels = RowPanelsOf<T>(view_, partition_, tile_);
    BeginRows();
    for (Panel left = panels.full;; left.SkipRows(kChainRows)) {
      const bool last = left.rows <= kChainRows;
      sums_.Clear(left.columns);
      ReducePanel(left.FirstRows(kChainRows));
      if (last) ReducePanel(panels.remainder);
      FlushRow();
      if (last) return;
    }
  }

  // The tile of kRuns.
  void ReduceRuns() {
    const int64_t length = tile_.block.i1 - tile_.block.i0;
    const RunPrefetch<T> prefetch(view_, tile_);
    for (int64_t c = tile_.c0; c < tile_.c1; ++c) {
      BeginChannel(c);
      for (int64_t o = tile_.block.o0; o < tile_.block.o1; ++o) {
        ReduceRow(c, (o * view_.channels + c) * view_.inner + tile_.block.i0,
                  length, prefetch.Of(c, o));
      }
      EndChannel(c);
    }
  }

 protected:
  static constexpr int kSums = kTraining ? F::kNumSums : F::kNumFrozenSums;
  static constexpr bool kUsesCoefficients = !kTraining || kHasMask<F>;
  using Term = TermOf<T>;

  int64_t OuterColumns() const { return (tile_.c1 - tile_.c0) * view_.inner; }

  void ReducePanel(const Panel& panel) {
    if constexpr (kTraining) {
      if (panel.columns == 0) return;
      ReduceSteps<F, StorePolicy::kNone>(tensors_, panel, columns_, sums_);
    } else {
      ForEachStorePart(tensors_, panel, policy_,
                       [&](auto policy, const Panel& part) {
                         ReducePart<decltype(policy)::value>(part);
                       });
    }
  }

  // Whether sums and results of a panel are computed in one loop. Not where
  // its steps would store to rows that are far apart, or alias. (With rows of 2
  // KiB half took 0.65 times as long as in two loops, [32, 64, 784], whose rows
  // lie 98 KiB apart, up to 2.7 times; with AVX-512 only 0.65 to 0.85 times.) A
  // mask would be computed twice: 1.25 times as long.
  template <StorePolicy kPolicy>
  static bool TakesOneLoop(const Panel& panel) {
    constexpr int64_t kBytes = sizeof(T);
    if (kPolicy != StorePolicy::kNonTemporal || kVectorIsLine) return true;
    return kIsNarrow<T> ? panel.row_stride * kBytes < kPageBytes
                        : kHasMask<F> || !HasAliasedRows<T, kPolicy>(panel);
  }

  // The sums and the frozen results of a panel.
  template <StorePolicy kPolicy>
  void ReducePart(Panel part) {
    if constexpr (!kRowByRow<T, kReduceVectors<F, T>, kPolicy>) {
      if (TakesOneLoop<kPolicy>(part)) {
        return ReduceSteps<F, kPolicy>(tensors_, part, columns_, sums_);
      }
    }
    // A few rows at a time: their sums, then their results from L1.
    for (; part.rows > 0; part.SkipRows(kTwoLevelRun)) {
      Panel rows = part.FirstRows(kTwoLevelRun);
      ReduceSteps<F, StorePolicy::kNone>(tensors_, rows, columns_, sums_);
      rows.prefetch = {};
      ApplySteps<F, false, kPolicy>(tensors_, rows, columns_);
    }
  }

  void BeginRows() {
    SetRowCenters();
    if constexpr (kUsesCoefficients) {
      columns_ = coefficients_.OfRows(view_, partition_, tile_);
    }
  }

  // The center of channel `c`, as it is subtracted.
  Term CenterOf(int64_t c) const {
    const double center = CenterAt(centers_, c);
    return static_cast<Term>(kIsNarrow<T> ? RunCenter(dtype_, center) : center);
  }

  void SetRowCenters() {
    const int64_t channels = tile_.c1 - tile_.c0;
    if (view_.inner == 1) {
      if constexpr (kIsNarrow<T>) {
        for (int64_t c = 0; c < channels; ++c) {
          sums_.center[c] = CenterOf(tile_.c0 + c);
        }
      } else {
        LoadCenters(centers_, tile_.c0, channels, sums_.center);
      }
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        const Term center = CenterOf(tile_.c0 + c);
        SpreadChannels(&center, 1, view_.inner, sums_.center + c * view_.inner);
      }
    }
    RepeatColumns(OuterColumns(), partition_.fold * OuterColumns(),
                  sums_.center);
  }

  // Adds the running sums to those of the channels, one outer index of the fold
  // after the other.
  void FlushRow() {
    for (int64_t f = 0; f < partition_.fold; ++f) {
      FlushColumns(sums_, f * OuterColumns(), tile_.c1 - tile_.c0, view_.inner,
                   tile_.c0, out_);
    }
  }

  void BeginChannel(int64_t c) {
    const Term center = CenterOf(c);
    SpreadChannels(&center, 1, kRunColumns, sums_.center);
    if constexpr (kUsesCoefficients) columns_ = coefficients_.OfRun(c);
    sums_.Clear(kRunColumns);
    chain_ = 0;
  }
  void EndChannel(int64_t c) {
    FlushColumns(sums_, 0, 1, kRunColumns, c, out_);
  }

  // The runs of channel `c` in `length` elements from `first` on.
  void ReduceRow(int64_t c, int64_t first, int64_t length,
                 const PrefetchOffsets& prefetch) {
    const int64_t runs = length / kRunColumns;
    ReduceFullRuns(c, Panel{first, runs, kRunColumns, kRunColumns, prefetch});
    ReducePanel(Panel{first + runs * kRunColumns, 1, kRunColumns,
                      length % kRunColumns});
  }

  // Full runs of channel `c`, in chains of kChainRows over all outer indices.
  void ReduceFullRuns(int64_t c, Panel left) {
    while (left.rows > 0) {
      const Panel runs = left.FirstRows(ChainLeft());
      ReducePanel(runs);
      left.SkipRows(runs.rows);
      CountRuns(c, runs.rows);
    }
  }

  // Runs up to the end of the chain.
  int64_t ChainLeft() const { return kChainRows - chain_; }

  // Behind `runs` full runs of channel `c`: ends a full chain.
  TFBN_INLINE void CountRuns(int64_t c, int64_t runs) {
    chain_ += runs;
    if (chain_ < kChainRows) return;
    EndChannel(c);
    sums_.Clear(kRunColumns);
    chain_ = 0;
  }

  const View& view_;
  const Partition& partition_;
  const Tile& tile_;
  const StorePolicy policy_;
  const ChannelSums out_;
  const DType dtype_;
  const TensorPointers<F, T> tensors_;
  const CenterArray centers_;
  TileCoefficients<F, T, kFirstReduced<F, kTraining>,
                   kUsesCoefficients ? kColumns : 0>
      coefficients_;
  ColumnCoefficients<typename Compute<T>::Scalar> columns_ = {};
  ColumnSums<Term, kSums, kColumns> sums_;
  int64_t chain_ = 0;  // kRuns: rows in the running sums.
};

template <typename F, typename T, bool kTraining>
void ReduceTile(const typename F::Args& args, const Partition& partition,
                const Tile& tile, const void* by_channel, StorePolicy policy,
                const ChannelSums& out) {
  if (partition.kind == Partition::kRows) {
    TileReducer<F, T, kTraining, kMaxRowColumns>(args, partition, tile,
                                                 by_channel, policy, out)
        .ReduceRows();
  } else {
    TileReducer<F, T, kTraining, kRunColumns>(args, partition, tile, by_channel,
                                              policy, out)
        .ReduceRuns();
  }
  if (policy == StorePolicy::kNonTemporal) NonTemporalFence();
}

// Kernels::reduce.
template <typename F, typename T>
void Reduce(const typename F::Args& args, const Partition& partition,
            const Tile& tile, const void* by_channel, const ChannelSums& out) {
  if constexpr (!kIsFrozenOnly<F>) {
    ReduceTile<F, T, true>(args, partition, tile, by_channel,
                           StorePolicy::kNone, out);
  }
}

// Kernels::frozen.
template <typename F, typename T>
void Frozen(const typename F::Args& args, const Partition& partition,
            const Tile& tile, const void* by_channel, StorePolicy policy,
            const ChannelSums& out) {
  if constexpr (F::kNumFrozenSums == 0) {
    ApplyTile<F, T, false>(args, partition, tile, by_channel, policy);
  } else {
    ReduceTile<F, T, false>(args, partition, tile, by_channel, policy, out);
  }
}

// Kernels::reduce_storing. Where non-temporal stores go row by row, and sums
// and results each take a loop of their own, they cost more than the read for
// ownership of temporal ones (16-bit types, while steps with AVX2 had half a
// cache line: 2 to 15%).
template <typename F, typename T>
void ReduceStoring(const typename F::Args& args, const Partition& partition,
                   const Tile& tile, const void* by_channel, StorePolicy policy,
                   const ChannelSums& out) {
  if constexpr (kHasEarlyOutput<F>) {
    using First = typename F::FirstPass;
    static_assert(
        int{First::kNumFrozenSums} == int{F::kNumSums} &&
        int{First::kFirstFrozenCoefficient} == int{F::kFirstMaskCoefficient} &&
        int{First::kNumCoefficients} == int{F::kNumCoefficients} &&
        int{F::SecondPass::kNumCoefficients} == int{F::kFirstMaskCoefficient});
    constexpr bool kTwoLoops =
        kRowByRow<T, kReduceVectors<First, T>, StorePolicy::kNonTemporal>;
    Frozen<First, T>(args, partition, tile, by_channel,
                     kTwoLoops ? StorePolicy::kTemporal : policy, out);
  }
}

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_REDUCE_H_
