// Both passes at once, for channel groups in kSegments: the results of one
// group while the next one is summed.
//
// One pass after the other, memory is written in one of them and read in the
// other, and half of its bandwidth is idle at any time; and the rows of a group
// lie a power of two apart as often as not, so they share few sets of L2 and
// evict each other between the passes. Here a few segments are written, then as
// many are read; and what is read is copied to a contiguous scratch, to the
// very place that the results are computed from, so that L2 holds one group
// without conflicts: 1.1 to 1.2 times as fast in training, float32 (ADR 28).
//
// No bit depends on it: columns are summed in the order of pass.h.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/core/formulas/formula.h"
#include "cc/core/partition.h"
#include "cc/cpu/isa/panel.h"
#include "cc/cpu/isa/pass.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/kernels.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

// The segments of the next group of an outer index: column 0 in the tensors,
// and of its copies in the scratch, if there is one.
template <typename F, typename T>
struct StageRow {
  int64_t element;
  T* copy[F::kInputs];
  PrefetchOffsets prefetch;
};

// The largest power of two that is at most `n`: as many vectors divide a
// segment.
constexpr int PowerOfTwo(int n) { return n < 2 ? 1 : 2 * PowerOfTwo(n / 2); }

// Takes the strips of `columns` columns, whose number is known to the compiler:
// as a panel, strips of a few rows cost 10 to 20% of a call in LLC.
template <typename P, StorePolicy kPolicy, typename F, typename T>
TFBN_INLINE void TakeWholeStrips(
    const TensorPointers<F, T>& tensors, Strip strip, int64_t columns,
    const ColumnCoefficients<CoefficientOf<T>>& coefficients,
    ColumnSums<T, P::kNumSums>& sums) {
  constexpr int kVectors = PowerOfTwo(kVectorsOf<P>);
  for (; strip.column < columns; strip.column += kVectors * kLanesOf<T>) {
    TakeStrip<P, kPolicy, kVectors, false, kPackOf<P, kPolicy, kVectors>>(
        tensors, strip, coefficients, sums);
  }
}

// A stage over one block: a pass over the tile of the current group that
// stores, and one over the tile of the next group that sums.
template <typename F, typename T>
class StageRunner : private Pass<ReduceOf<F, T>>, private Pass<ApplyOf<F, T>> {
  using Reduce = ReduceOf<F, T>;
  using Apply = ApplyOf<F, T>;
  using Sums = Pass<Reduce>;
  using Results = Pass<Apply>;

 public:
  StageRunner(const Call& call, const Partition& partition,
              const PipelineStage& stage, const LoopPlan (&plans)[2],
              const ChannelArrays& channels)
      : Sums(call, partition, stage.next, plans[0], channels),
        Results(call, partition, stage.current, plans[1], channels),
        stage_(stage),
        tensors_(PointersOf<F, T>(call)),
        prefetch_(call.view, stage.next) {}

  // Channel by channel.
  void Run() {
    const Block& block = stage_.next.block;
    const int64_t current = stage_.current.c1 - stage_.current.c0;
    const int64_t next = stage_.next.c1 - stage_.next.c0;
    const int64_t length = block.i1 - block.i0;
    for (int64_t j = 0; j < std::max(current, next); ++j) {
      const int64_t channel = stage_.next.c0 + j;
      if (j < current) Results::BeginChannel(stage_.current.c0 + j);
      if (j < next) Sums::BeginChannel(channel);
      for (int64_t o = block.o0; o < block.o1; ++o) {
        TakeRow(BeginRow(o, j), j < current ? length : 0, j < next ? length : 0,
                channel);
      }
      if (j < next) Sums::EndChannel(channel);
    }
  }

 private:
  bool Packed() const { return stage_.scratch != nullptr; }

  // Outer index `o` of channel j of both groups; the results of the current one
  // are computed from the copies, which the next one replaces.
  StageRow<F, T> BeginRow(int64_t o, int64_t j) {
    const View& view = Sums::view_;
    const auto element_of = [&](int64_t channels, int64_t c) {
      return (o * channels + c) * view.inner + stage_.next.block.i0;
    };
    StageRow<F, T> row = {
        element_of(view.channels, stage_.next.c0 + j), {}, {}};
    const int64_t element = element_of(view.channels, stage_.current.c0 + j);
    for (int i = 0; i < F::kInputs; ++i) {
      if (Packed()) {
        row.copy[i] = static_cast<T*>(stage_.scratch) +
                      i * stage_.scratch_stride +
                      element_of(stage_.scratch_channels, j);
      }
      Results::tensors_.in[i] =
          Packed() ? row.copy[i] : tensors_.in[i] + element;
    }
    for (int i = 0; i < F::kOutputs; ++i) {
      Results::tensors_.out[i] = tensors_.out[i] + element;
    }
    row.prefetch = prefetch_.Of(stage_.next.c0 + j, o);
    return row;
  }

  // Results of the first `length` columns, sums of `next_length`: all or none.
  void TakeRow(const StageRow<F, T>& row, int64_t length, int64_t next_length,
               int64_t channel) {
    // Whole chains of two-level sums.
    constexpr int64_t kSegmentBytes =
        F::kInputs * kSegmentColumns * static_cast<int64_t>(sizeof(T));
    constexpr int64_t kSegments =
        kIsNarrow<T>
            ? kTwoLevelChain
            : (kPipelineStageBytes + kSegmentBytes - 1) / kSegmentBytes;
    // Results are ahead of the copies, which overwrite what they are computed
    // from, by the elements that lead to a full cache line.
    const bool non_temporal =
        Results::plan_.stores == StorePolicy::kNonTemporal;
    const int64_t lead =
        non_temporal ? ElementsToFullLine(Results::tensors_.out[0]) : 0;
    int64_t apply = std::min(lead, length), column = 0;
    if (apply > 0) Results::TakeLine(channel, 0, apply, {});
    for (;;) {
      // Where a two-level sum ends depends on the sums alone: results that are
      // ahead by an alignment's lead, and so run out first, must not cut it.
      const int64_t segments =
          std::min((next_length - column) / kSegmentColumns,
                   std::min(kSegments, Sums::ChainLeft()));
      if (segments <= 0 || segments > (length - apply) / kSegmentColumns) break;
      const int64_t ahead = column < row.prefetch.far_row * kSegmentColumns
                                ? row.prefetch.near
                                : row.prefetch.far;
      if (non_temporal) {
        ApplySegments<StorePolicy::kNonTemporal>(segments, apply, ahead);
      } else {
        ApplySegments<StorePolicy::kTemporal>(segments, apply, ahead);
      }
      TakeWholeStrips<Reduce, StorePolicy::kNone>(
          Sums::tensors_,
          Strip{row.element + column, segments, kSegmentColumns, ahead, 0, 0},
          kSegmentColumns, Sums::coefficients_, Sums::sums_);
      // By a constant number of bytes, which is not a call of memcpy.
      for (int64_t r = 0; r < segments; ++r, column += kSegmentColumns) {
        Copy(row, column, kSegmentColumns);
      }
      apply += segments * kSegmentColumns;
      Sums::CountSegments(channel, segments);
    }
    if (apply < length) Results::TakeLine(channel, apply, length - apply, {});
    if (column == next_length) return;
    PrefetchOffsets prefetch = row.prefetch;
    prefetch.far_row -= column / kSegmentColumns;
    Sums::TakeLine(channel, row.element + column, next_length - column,
                   prefetch);
    Copy(row, column, next_length - column);
  }

  // The results of `segments` segments from column `apply` on. All columns have
  // the same coefficients, so a row of a strip may be any part of a segment. Of
  // float32 a stage has few segments, and one strip in the order of addresses
  // loads the coefficients once (with two outputs strips of whole segments are
  // 1.14 times as fast).
  template <StorePolicy kPolicy>
  TFBN_INLINE void ApplySegments(int64_t segments, int64_t apply,
                                 int64_t ahead) {
    constexpr int kVectors = PowerOfTwo(kVectorsOf<Apply>);
    constexpr int64_t kStrip = kVectors * kLanesOf<T>;
    constexpr bool kContiguous = !kIsNarrow<T> && F::kOutputs == 1;
    constexpr int64_t kColumns = kContiguous ? kStrip : kSegmentColumns;
    const int64_t rows = segments * (kSegmentColumns / kColumns);
    const int64_t at_once =
        !kContiguous && kRowByRow<T, kVectors, kPolicy> ? 1 : rows;
    ColumnSums<T, 0> none;
    for (int64_t r = 0; r < rows; r += at_once) {
      TakeWholeStrips<Apply, kPolicy>(
          Results::tensors_,
          Strip{apply + r * kColumns, at_once, kColumns, Packed() ? 0 : ahead,
                0, 0},
          kColumns, Results::coefficients_, none);
    }
  }

  // Copies what is in L1 since it was reduced.
  TFBN_INLINE void Copy(const StageRow<F, T>& row, int64_t column,
                        int64_t columns) {
    if (!Packed()) return;
    for (int i = 0; i < F::kInputs; ++i) {
      std::memcpy(row.copy[i] + column, tensors_.in[i] + row.element + column,
                  columns * sizeof(T));
    }
  }

  const PipelineStage& stage_;
  const TensorPointers<F, T> tensors_;
  const SegmentPrefetch<T, kPipelinePrefetchBytes> prefetch_;
};

// Kernels::pipeline.
template <typename F, typename T>
void RunPipeline(const Call& call, const Partition& partition,
                 const PipelineStage& stage, const LoopPlan (&plans)[2],
                 const ChannelArrays& channels) {
  StageRunner<F, T>(call, partition, stage, plans, channels).Run();
  if (plans[1].stores == StorePolicy::kNonTemporal) NonTemporalFence();
}

}  // namespace
}  // namespace tf_bn_ops
