// The second pass: results of view shape from the inputs and the coefficients.
// Store policies, coefficients by column, elements, and the kernel Apply.

#ifndef TF_BN_OPS_CC_CPU_ISA_APPLY_H_
#define TF_BN_OPS_CC_CPU_ISA_APPLY_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/core/formulas/formula.h"
#include "cc/core/partition.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/panel.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/vec.h"

namespace tf_bn_ops {
namespace {

// ---- Store policy -----------------------------------------------------------

// Elements of a cache line.
template <typename T>
constexpr int64_t kLineElements =
    kCacheLineBytes / static_cast<int64_t>(sizeof(T));

// Elements from `element` of the outputs to the first that begins a cache line;
// -1 if the outputs are aligned differently.
template <typename F, typename T>
int64_t ElementsToFullLine(T* const (&out)[F::kOutputs], int64_t element) {
  const auto offset = [&](const T* p) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p + element) %
                                kCacheLineBytes / sizeof(T));
  };
  for (const T* p : out) {
    if (offset(p) != offset(out[0])) return -1;
  }
  return (kLineElements<T> - offset(out[0])) % kLineElements<T>;
}

// Fewest full cache lines of a row that has columns left or right of them for
// non-temporal stores. With one to three, as where arrays are aligned to 16
// bytes (malloc's promise) and rows have 64 columns, calls took 2.5 to 2.9
// times as long in half as with temporal stores, and 1.2 to 1.4 times in
// float32; with 15, temporal stores took 1.4 times as long.
constexpr int64_t kLeastFullLines = 4;

// Calls pass(policy, panel) for all of a panel, with the policy as a constant.
// Non-temporal stores need full cache lines: the columns left and right of them
// are a part each, with temporal stores. Where rows or outputs are aligned
// differently, or have few full lines beside other columns, all stores are
// temporal.
template <typename F, typename T, typename Pass>
void ForEachStorePart(const TensorPointers<F, T>& tensors, const Panel& panel,
                      StorePolicy policy, const Pass& pass) {
  constexpr std::integral_constant<StorePolicy, StorePolicy::kTemporal>
      kTemporal{};
  constexpr std::integral_constant<StorePolicy, StorePolicy::kNonTemporal>
      kNonTemporal{};
  constexpr int64_t kLine = kLineElements<T>;
  if (panel.rows == 0 || panel.columns == 0) return;
  if (policy != StorePolicy::kNonTemporal) return pass(kTemporal, panel);
  const int64_t lead = ElementsToFullLine<F>(tensors.out, panel.first_element);
  const bool alike = panel.rows == 1 || panel.row_stride % kLine == 0;
  const bool whole = lead == 0 && panel.columns % kLine == 0;
  if (lead < 0 || !alike ||
      (!whole && panel.columns - lead < kLeastFullLines * kLine)) {
    return pass(kTemporal, panel);
  }
  const int64_t end = panel.columns - (panel.columns - lead) % kLine;
  const auto columns = [](Panel part, int64_t first, int64_t last) {
    part.first_column = first;
    part.columns = last;
    return part;
  };
  // A few rows at a time, so that all columns of a row are read from memory
  // together.
  const int64_t at_once = whole ? panel.rows : kMaxRowsPerStep;
  for (Panel left = panel; left.rows > 0; left.SkipRows(at_once)) {
    const Panel rows = left.FirstRows(at_once);
    if (lead > 0) pass(kTemporal, columns(rows, 0, lead));
    pass(kNonTemporal, columns(rows, lead, end));
    if (end < panel.columns) {
      pass(kTemporal, columns(rows, end, panel.columns));
    }
  }
}

// ---- Coefficients -----------------------------------------------------------

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

// Kernels::mask_coefficients.
template <typename F, typename T>
void ComputeMaskCoefficients(const typename F::Args& args, int64_t c0,
                             int64_t c1, void* coefficients) {
  if constexpr (kHasMask<F>) {
    for (int64_t c = c0; c < c1; ++c) {
      typename Compute<T>::Scalar k[F::kNumCoefficients];
      F::FinishMask(args, c, k);
      StoreCoefficients<F>(k, F::kFirstMaskCoefficient, F::kNumCoefficients, c,
                           args.view.channels, coefficients);
    }
  }
}

// Kernels::coefficients.
template <typename F, typename T>
void ComputeCoefficients(const typename F::Args& args, int64_t c0, int64_t c1,
                         const ChannelSums& sums, void* coefficients) {
  const CenterArray centers = F::CentersOf(args);
  for (int64_t c = c0; c < c1; ++c) {
    double of_channel[F::kNumSums] = {};
    if (args.is_training) LoadSums<F::kNumSums>(sums, c, of_channel);
    typename Compute<T>::Scalar k[F::kNumCoefficients];
    F::Finish(args, c, CenterAt(centers, c), of_channel, k);
    StoreCoefficients<F>(k, args.is_training ? 0 : F::kFirstFrozenCoefficient,
                         F::kFirstMaskCoefficient, c, args.view.channels,
                         coefficients);
  }
}

// Coefficient i of column c is first[i * stride + c].
template <typename C>
struct ColumnCoefficients {
  const C* first;
  int64_t stride;
};

// The first coefficient that Apply uses.
template <typename F, bool kTraining>
constexpr int kFirstApplied = kTraining ? 0 : int{F::kFirstFrozenCoefficient};

// Loads the coefficients from kFirst on of kVectors vectors of columns from
// `column` on.
template <typename F, int kVectors, int kFirst, typename C, typename V>
TFBN_INLINE void LoadCoefficients(const ColumnCoefficients<C>& coefficients,
                                  int64_t column,
                                  V (&k)[kVectors][F::kNumCoefficients]) {
  for (int i = kFirst; i < F::kNumCoefficients; ++i) {
    for (int u = 0; u < kVectors; ++u) {
      k[u][i] = Load(coefficients.first + i * coefficients.stride + column +
                     u * kLanesOf<C>);
    }
  }
}

// The coefficients from kFirst on of a tile's columns, of at most kColumns:
// those of the channels where each has one column, else copies with one value
// per column.
template <typename F, typename T, int kFirst, int64_t kColumns>
class TileCoefficients {
 public:
  using C = typename Compute<T>::Scalar;

  TileCoefficients(const View& view, const void* coefficients)
      : by_channel_(static_cast<const C*>(coefficients)),
        stride_(CoefficientStride(view.channels)) {}

  ColumnCoefficients<C> OfRows(const View& view, const Partition& partition,
                               const Tile& tile) {
    if (partition.fold == 1 && view.inner == 1) {
      return {by_channel_ + tile.c0, stride_};
    }
    const int64_t channels = tile.c1 - tile.c0;
    const int64_t outer_columns = channels * view.inner;
    for (int k = kFirst; k < F::kNumCoefficients; ++k) {
      C* const columns = by_column_ + k * kStride;
      SpreadChannels(by_channel_ + k * stride_ + tile.c0, channels, view.inner,
                     columns);
      RepeatColumns(outer_columns, partition.fold * outer_columns, columns);
    }
    return {by_column_, kStride};
  }

  ColumnCoefficients<C> OfRun(int64_t c) {
    for (int k = kFirst; k < F::kNumCoefficients; ++k) {
      SpreadChannels(by_channel_ + k * stride_ + c, 1, kRunColumns,
                     by_column_ + k * kStride);
    }
    return {by_column_, kStride};
  }

 private:
  static constexpr int64_t kStride = kColumns + kColumnPadding;

  const C* const by_channel_;
  const int64_t stride_;
  alignas(kCacheLineBytes) C by_column_[F::kNumCoefficients * kStride];
};

// ---- Elements ---------------------------------------------------------------

// Of the kVectors vectors of a step, how many are computed before they are
// stored, one output after the other. Where two outputs have the same page
// offset, and vectors of them are stored in turn, non-temporal stores of lines
// that are not complete wait for each other: a line of each in turn took 0.35
// to 0.65 times as long ([32, 256, 3136], two outputs, AMD EPYC), and as long
// as before where the offsets differ.
template <typename F, typename T, StorePolicy kPolicy, int kVectors>
constexpr int kStoredTogether =
    kPolicy == StorePolicy::kNonTemporal && F::kOutputs > 1 &&
            kVectors % kLineVectors<T> == 0
        ? kLineVectors<T>
        : 1;

// Loads the group of vectors that begins at `element` of each input; kPartial:
// the first `lanes` of one.
template <typename F, bool kPartial, int kGroup, typename T, typename V>
TFBN_INLINE void LoadInputs(const TensorPointers<F, T>& tensors,
                            int64_t element, int lanes,
                            V (&in)[kGroup][F::kInputs]) {
  for (int i = 0; i < F::kInputs; ++i) {
    const T* const from = tensors.in[i] + element;
    V group[kGroup];
    if constexpr (kPartial) {
      group[0] = LoadPartial(from, lanes);
    } else {
      VectorGroup<T, kGroup>::Load(from, group);
    }
    for (int g = 0; g < kGroup; ++g) in[g][i] = group[g];
  }
}

// Computes the results of the group of vectors that begins at `element`, as
// they are stored; kPartial: of its first `lanes`.
template <typename F, bool kPartial, bool kTraining, int kGroup, typename T,
          typename V>
TFBN_INLINE void ComputeGroup(
    const TensorPointers<F, T>& tensors, int64_t element, int lanes,
    const V (*k)[F::kNumCoefficients],
    typename VectorGroup<T, kGroup>::Stored (&results)[F::kOutputs]) {
  V in[kGroup][F::kInputs], out[kGroup][F::kOutputs];
  LoadInputs<F, kPartial>(tensors, element, lanes, in);
  for (int g = 0; g < kGroup; ++g) {
    F::template Element<kTraining>(in[g], k[g], out[g]);
  }
  for (int i = 0; i < F::kOutputs; ++i) {
    V group[kGroup];
    for (int g = 0; g < kGroup; ++g) group[g] = out[g][i];
    results[i] = i == kPassedOnOutput<F>
                     ? VectorGroup<T, kGroup>::EncodePassedOn(group)
                     : VectorGroup<T, kGroup>::Encode(group);
  }
}

// Stores what `result` has of output i. An output in place is stored
// temporally; if it is the only one, that is the policy (plan.cc).
template <typename F, bool kPartial, StorePolicy kPolicy, typename T,
          typename Stored>
TFBN_INLINE void StoreResult(const TensorPointers<F, T>& tensors, int i,
                             int64_t element, int lanes, Stored result) {
  T* const to = tensors.out[i] + element;
  if (kPartial) {
    StorePartialBits(to, result, lanes);
  } else if (kPolicy == StorePolicy::kNonTemporal &&
             (F::kOutputs == 1 || !tensors.in_place[i])) {
    StoreNonTemporalBits(to, result);
  } else {
    StoreBits(to, result);
  }
}

// Computes and stores the results of a group of vectors.
template <typename F, bool kPartial, bool kTraining, StorePolicy kPolicy,
          int kGroup, typename T, typename V>
TFBN_INLINE void ComputeResults(const TensorPointers<F, T>& tensors,
                                int64_t element, int lanes,
                                const V (*k)[F::kNumCoefficients]) {
  typename VectorGroup<T, kGroup>::Stored results[F::kOutputs];
  ComputeGroup<F, kPartial, kTraining, kGroup>(tensors, element, lanes, k,
                                               results);
  for (int i = 0; i < F::kOutputs; ++i) {
    StoreResult<F, kPartial, kPolicy>(tensors, i, element, lanes, results[i]);
  }
}

// The results of the vectors of a row of a step, from `element` on, in groups
// of kGroup, in whose order the coefficients are.
template <typename F, bool kTraining, StorePolicy kPolicy, int kVectors,
          bool kPartial, int kGroup, typename T, typename V>
TFBN_INLINE void ComputeRow(const TensorPointers<F, T>& tensors,
                            const Step& step, int64_t element,
                            const V (&k)[kVectors][F::kNumCoefficients]) {
  constexpr int kStored = kStoredTogether<F, T, kPolicy, kVectors>;
  constexpr int kGroups = kStored < kGroup ? 1 : kStored / kGroup;
  constexpr int kElements = kGroup * kLanesOf<T>;  // Of a group.
  for (int first = 0; first < kVectors; first += kGroups * kGroup) {
    const int64_t begin = element + first * kLanesOf<T>;
    typename VectorGroup<T, kGroup>::Stored results[kGroups][F::kOutputs];
    for (int g = 0; g < kGroups; ++g) {
      ComputeGroup<F, kPartial, kTraining, kGroup>(
          tensors, begin + g * kElements, step.partial_lanes,
          k + first + g * kGroup, results[g]);
    }
    for (int i = 0; i < F::kOutputs; ++i) {
      for (int g = 0; g < kGroups; ++g) {
        StoreResult<F, kPartial, kPolicy>(tensors, i, begin + g * kElements,
                                          step.partial_lanes, results[g][i]);
      }
    }
  }
}

// The tensors of a step: a copy, which no store can change, so that pointers
// stay in registers. No copy where a vector is a cache line: with one, the
// gradient of [100352, 64, 1] in float32 took 1.07 times as long, and the
// frozen forward of [32, 256, 3136] 1.12 times (AMD EPYC, AVX-512).
template <typename F, typename T>
using StepTensors =
    std::conditional_t<kVectorIsLine, const TensorPointers<F, T>&,
                       const TensorPointers<F, T>>;

template <typename F, bool kTraining, StorePolicy kPolicy, int kVectors,
          bool kPartial, int kGroup, typename T>
TFBN_INLINE void ApplyStep(
    const TensorPointers<F, T>& given, const Step& step,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  StepTensors<F, T> tensors = given;
  VectorOf<T> k[kVectors][F::kNumCoefficients];
  constexpr int kFirst = kFirstApplied<F, kTraining>;
  LoadCoefficients<F, kVectors, kFirst>(coefficients, step.column, k);
  Reorder<LaneOrder::kGroups, T, kGroup, kFirst>(k);
  for (int64_t r = 0; r < step.rows; ++r) {
    const int64_t element =
        step.first_element + r * step.row_stride + step.column;
    PrefetchRow<kVectors>(tensors, step, element);
    ComputeRow<F, kTraining, kPolicy, kVectors, kPartial, kGroup>(tensors, step,
                                                                  element, k);
  }
}

// Vectors of a step: coefficients leave a quarter of the registers to
// everything else, but whole cache lines, unless one takes more than four
// vectors; coefficients that registers do not hold are on the stack. (16-bit
// types with AVX2: four vectors, several rows at a time, took 0.67 to 0.9 times
// as long as two vectors row by row.)
template <typename F, typename T>
constexpr int ApplyVectors() {
  constexpr int kFit = VectorsPerStep(F::kNumCoefficients, kRegisters * 3 / 4);
  constexpr int kLine = kLineVectors<T>;
  if (kLine > 4) return kFit;
  return kFit < kLine ? kLine : kFit / kLine * kLine;
}
template <typename F, typename T>
constexpr int kApplyVectors = ApplyVectors<F, T>();

// Whether steps of kVectors vectors take one row each. Non-temporal stores of
// parts of cache lines go row by row, so that a line is complete soon: several
// rows and outputs have more lines begun than there are write-combining buffers
// (the second order of half took 3 times as long).
template <typename T, int kVectors, StorePolicy kPolicy>
constexpr bool kRowByRow = kPolicy == StorePolicy::kNonTemporal &&
                           kVectors * kLanesOf<T> % kLineElements<T> != 0;

// Whether each row of a panel is a step of its own because of where it lies.
// Not where a vector is a cache line: with AVX-512 one row at a time took 1.1
// to 1.7 times as long in most placements, and as long in the worst one
// ([6272, 1024, 1] in float32, AMD EPYC).
template <typename T, StorePolicy kPolicy>
TFBN_INLINE bool HasAliasedRows(const Panel& panel) {
  constexpr int64_t kBytes = sizeof(T);
  return kPolicy == StorePolicy::kNonTemporal && !kVectorIsLine &&
         ShareAPageOffset(panel.row_stride * kBytes, kIsNarrow<T>);
}

// The most rows of steps of the second pass that store float32 or float64
// non-temporally. Eight took 1.0 to 1.1 times as long with AVX-512, with AVX2
// 1.0 to 1.3 times on one AMD EPYC (512 KiB of L2 a core) and 0.96 to 1.08 on a
// later one; with two or one, one gained more and the other lost up to 1.8
// times. Not in one loop with sums, which steps load and store: 1.04 to 1.19
// times as long with four.
constexpr int kMaxStoringRows = 4;

// Those of steps of kVectors vectors that store by kPolicy.
template <typename T, int kVectors, StorePolicy kPolicy>
TFBN_INLINE StepRows StoringStepRows(const Panel& panel) {
  if (kRowByRow<T, kVectors, kPolicy> || HasAliasedRows<T, kPolicy>(panel)) {
    return {/*least=*/1, /*most=*/1};
  }
  if (kPolicy == StorePolicy::kNonTemporal && !kIsNarrow<T>) {
    return {/*least=*/2, /*most=*/kMaxStoringRows};
  }
  return {/*least=*/2};
}

// The steps of a panel, with vectors in groups of at most kMaxGroup.
template <typename F, bool kTraining, StorePolicy kPolicy, int kMaxGroup,
          typename T>
void ApplyStepsInGroups(
    const TensorPointers<F, T>& tensors, const Panel& panel,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  constexpr int kVectors = kApplyVectors<F, T>;
  const auto take = [&](auto vectors, auto partial,
                        const Step& step) __attribute__((always_inline)) {
    constexpr int kStep = decltype(vectors)::value;
    constexpr bool kPartial = decltype(partial)::value;
    constexpr int kGroup = std::min(kMaxGroup, kGroupOf<T, kStep, kPartial>);
    ApplyStep<F, kTraining, kPolicy, kStep, kPartial, kGroup>(tensors, step,
                                                              coefficients);
  };
  ForEachStep<T, kVectors>(panel, StoringStepRows<T, kVectors, kPolicy>(panel),
                           take);
}

// Fewest rows of steps that take groups of vectors: bringing coefficients to
// their order has to pay. With one row ([128, 1024, 16] in bfloat16, rows a
// multiple of 4 KiB apart, AMD EPYC) groups took 1.2 times as long, with four
// ([3136, 1024, 1]) 0.9 times.
constexpr int64_t kLeastGroupedRows = 4;

template <typename F, bool kTraining, StorePolicy kPolicy, typename T>
void ApplySteps(
    const TensorPointers<F, T>& tensors, const Panel& panel,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  constexpr int kVectors = kApplyVectors<F, T>;
  constexpr int kGroup = kGroupOf<T, kVectors, false>;
  if constexpr (kGroup > 1) {
    const int64_t rows = RowsPerStep<T, kVectors>(
        panel, StoringStepRows<T, kVectors, kPolicy>(panel));
    if (std::min(rows, panel.rows) < kLeastGroupedRows) {
      return ApplyStepsInGroups<F, kTraining, kPolicy, 1>(tensors, panel,
                                                          coefficients);
    }
  }
  ApplyStepsInGroups<F, kTraining, kPolicy, kGroup>(tensors, panel,
                                                    coefficients);
}

// ---- Tiles ------------------------------------------------------------------

template <typename F, bool kTraining, typename T>
void ApplyPanel(
    const TensorPointers<F, T>& tensors, const Panel& panel, StorePolicy policy,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  ForEachStorePart(tensors, panel, policy,
                   [&](auto part_policy, const Panel& part) {
                     ApplySteps<F, kTraining, decltype(part_policy)::value>(
                         tensors, part, coefficients);
                   });
}

template <typename F, typename T, bool kTraining>
void ApplyRows(const typename F::Args& args, const Partition& partition,
               const Tile& tile, const void* by_channel, StorePolicy policy) {
  const TensorPointers<F, T> tensors = PointersOf<F, T>(args);
  const RowPanels panels = RowPanelsOf<T>(args.view, partition, tile);
  TileCoefficients<F, T, kFirstApplied<F, kTraining>, kMaxRowColumns>
      coefficients(args.view, by_channel);
  const auto columns = coefficients.OfRows(args.view, partition, tile);
  ApplyPanel<F, kTraining>(tensors, panels.full, policy, columns);
  ApplyPanel<F, kTraining>(tensors, panels.remainder, policy, columns);
}

// The runs of channel `c` at outer index `o`. A short first row aligns all
// others for non-temporal stores.
template <typename F, bool kTraining, typename T>
void ApplyRuns(
    const TensorPointers<F, T>& tensors, const View& view, const Block& block,
    int64_t c, int64_t o, const PrefetchOffsets& prefetch, StorePolicy policy,
    const ColumnCoefficients<typename Compute<T>::Scalar>& coefficients) {
  int64_t first = (o * view.channels + c) * view.inner + block.i0;
  int64_t length = block.i1 - block.i0;
  const int64_t lead = policy == StorePolicy::kNonTemporal
                           ? ElementsToFullLine<F>(tensors.out, first)
                           : 0;
  if (lead > 0) {
    const int64_t head = lead < length ? lead : length;
    ApplyPanel<F, kTraining>(tensors, Panel{first, 1, kRunColumns, head},
                             StorePolicy::kTemporal, coefficients);
    first += head;
    length -= head;
  }
  const int64_t runs = length / kRunColumns;
  ApplyPanel<F, kTraining>(
      tensors, Panel{first, runs, kRunColumns, kRunColumns, prefetch}, policy,
      coefficients);
  ApplyPanel<F, kTraining>(
      tensors,
      Panel{first + runs * kRunColumns, 1, kRunColumns, length % kRunColumns},
      policy, coefficients);
}

// The results of view shape in a tile, from the coefficients alone.
template <typename F, typename T, bool kTraining>
void ApplyTile(const typename F::Args& args, const Partition& partition,
               const Tile& tile, const void* by_channel, StorePolicy policy) {
  if (partition.kind == Partition::kRows) {
    ApplyRows<F, T, kTraining>(args, partition, tile, by_channel, policy);
  } else {
    const TensorPointers<F, T> tensors = PointersOf<F, T>(args);
    const RunPrefetch<T> prefetch(args.view, tile);
    TileCoefficients<F, T, kFirstApplied<F, kTraining>, kRunColumns>
        coefficients(args.view, by_channel);
    for (int64_t c = tile.c0; c < tile.c1; ++c) {
      const auto columns = coefficients.OfRun(c);
      for (int64_t o = tile.block.o0; o < tile.block.o1; ++o) {
        ApplyRuns<F, kTraining>(tensors, args.view, tile.block, c, o,
                                prefetch.Of(c, o), policy, columns);
      }
    }
  }
  if (policy == StorePolicy::kNonTemporal) NonTemporalFence();
}

// Kernels::apply.
template <typename F, typename T>
void Apply(const typename F::Args& args, const Partition& partition,
           const Tile& tile, const void* by_channel, StorePolicy policy) {
  if constexpr (!kIsFrozenOnly<F>) {
    ApplyTile<F, T, true>(args, partition, tile, by_channel, policy);
  }
}

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_APPLY_H_
