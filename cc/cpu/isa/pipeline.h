// Both passes at once, for channel groups in kRuns: the results of one group
// while the next one is reduced. The kernel Pipeline.
//
// One pass after the other, memory is written in one of them and read in the
// other, and half of its bandwidth is idle at any time; and the rows of a group
// lie a power of two apart as often as not, so they share few sets of L2 and
// evict each other between the passes. Here a few runs are written, then as
// many are read; and what is read is copied to a contiguous scratch, to the
// very place that the results are computed from, so that L2 holds one group
// without conflicts (docs/adr/0028-pipelined-channel-groups.md).
//
// No bit depends on it: columns are summed in the order of reduce.h.

#ifndef TF_BN_OPS_CC_CPU_ISA_PIPELINE_H_
#define TF_BN_OPS_CC_CPU_ISA_PIPELINE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/formulas/formula.h"
#include "cc/core/partition.h"
#include "cc/cpu/isa/apply.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/panel.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/reduce.h"
#include "cc/cpu/isa/vec.h"

namespace tf_bn_ops {
namespace {

// Bytes, of all inputs, of the runs that are taken at once, results first, then
// sums. With AVX2 half as many took 1.03 to 1.08 times as long in the forward
// pass of float32, twice as many 1.08 in the gradient from memory; with AVX-512
// twice as many took up to 1.08.
constexpr int64_t kStageBytes = 1024;

// The runs of an outer index: of the current group, and of the next one.
template <typename F, typename T>
struct StageRow {
  // Column 0 of the outputs, and of the inputs, where they are read.
  TensorPointers<F, T> current;
  // Column 0 in the tensors, and in the scratch, if there is one.
  int64_t next_element;
  T* copy[F::kInputs];
  PrefetchOffsets prefetch;
};

// The prefetch distance of a pipeline: with 16 KiB the prototype took 10 to 20%
// longer where rows are short ([128, 256, 16, 16] in float32).
constexpr int64_t kPipelineBytes = 4096;

// The largest power of two that is at most `n`: as many vectors divide a run.
constexpr int PowerOfTwo(int n) { return n < 2 ? 1 : 2 * PowerOfTwo(n / 2); }

// A stage over one block. The base reduces the next group's tile.
template <typename F, typename T>
class StageRunner : private TileReducer<F, T, true, kRunColumns> {
  using Base = TileReducer<F, T, true, kRunColumns>;
  using C = typename Compute<T>::Scalar;

 public:
  StageRunner(const typename F::Args& args, const Partition& partition,
              const PipelineStage& stage, const void* by_channel,
              StorePolicy policy, const ChannelSums& out)
      : Base(args, partition, stage.next, by_channel, StorePolicy::kNone, out),
        stage_(stage),
        policy_(policy),
        length_(stage.next.block.i1 - stage.next.block.i0),
        prefetch_(args.view, stage.next),
        apply_coefficients_(args.view, by_channel) {}

  // Channel by channel.
  void Run() {
    const Block& block = stage_.next.block;
    const int64_t current = stage_.current.c1 - stage_.current.c0;
    const int64_t next = stage_.next.c1 - stage_.next.c0;
    for (int64_t j = 0; j < std::max(current, next); ++j) {
      const int64_t channel = stage_.next.c0 + j;
      if (j < current) {
        apply_columns_ = apply_coefficients_.OfRun(stage_.current.c0 + j);
      }
      if (j < next) this->BeginChannel(channel);
      for (int64_t o = block.o0; o < block.o1; ++o) {
        TakeRow(RowAt(o, j), j < current ? length_ : 0, j < next ? length_ : 0,
                channel);
      }
      if (j < next) this->EndChannel(channel);
    }
  }

 private:
  using Base::tensors_;
  using Base::view_;

  bool Packed() const { return stage_.scratch != nullptr; }

  // Outer index `o` of channel j of both groups.
  StageRow<F, T> RowAt(int64_t o, int64_t j) const {
    const auto element_of = [&](int64_t channels, int64_t c) {
      return (o * channels + c) * view_.inner + stage_.next.block.i0;
    };
    StageRow<F, T> row = {};
    const int64_t element = element_of(view_.channels, stage_.current.c0 + j);
    for (int i = 0; i < F::kInputs; ++i) {
      if (Packed()) {
        row.copy[i] = static_cast<T*>(stage_.scratch) +
                      i * stage_.scratch_stride +
                      element_of(stage_.scratch_channels, j);
      }
      row.current.in[i] = Packed() ? row.copy[i] : tensors_.in[i] + element;
    }
    for (int i = 0; i < F::kOutputs; ++i) {
      row.current.out[i] = tensors_.out[i] + element;
      row.current.in_place[i] = tensors_.in_place[i];
    }
    row.next_element = element_of(view_.channels, stage_.next.c0 + j);
    row.prefetch = prefetch_.Of(stage_.next.c0 + j, o);
    return row;
  }

  // Results of the first `length` columns, sums of `next_length`: all or none.
  void TakeRow(const StageRow<F, T>& row, int64_t length, int64_t next_length,
               int64_t channel) {
    // Whole runs of two-level sums.
    constexpr int64_t kRunBytes =
        F::kInputs * kRunColumns * static_cast<int64_t>(sizeof(T));
    constexpr int64_t kRuns =
        kIsNarrow<T> ? kTwoLevelRun : (kStageBytes + kRunBytes - 1) / kRunBytes;
    // Results are ahead of the copies, which overwrite what they are computed
    // from, by the elements that lead to a full cache line.
    const int64_t lead = ElementsToFullLine<F>(row.current.out, 0);
    const StorePolicy policy = lead < 0 ? StorePolicy::kTemporal : policy_;
    int64_t apply = policy == StorePolicy::kNonTemporal ? std::min(lead, length)
                                                        : int64_t{0};
    int64_t column = 0;
    ApplyColumns(row, 0, apply, StorePolicy::kTemporal);
    for (;;) {
      // Where a two-level sum ends depends on the sums alone: results that are
      // ahead by an alignment's lead, and so run out first, must not cut it.
      const int64_t runs = std::min((next_length - column) / kRunColumns,
                                    std::min(kRuns, this->ChainLeft()));
      if (runs <= 0 || runs > (length - apply) / kRunColumns) break;
      TakeRuns(row, runs, apply, column, policy);
      apply += runs * kRunColumns;
      column += runs * kRunColumns;
      this->CountRuns(channel, runs);
    }
    ApplyColumns(row, apply, length, policy);
    ReduceColumns(row, column, next_length, channel);
  }

  // Results from column `apply` on, then sums, and copies, from `column` on.
  TFBN_INLINE void TakeRuns(const StageRow<F, T>& row, int64_t runs,
                            int64_t apply, int64_t column, StorePolicy policy) {
    const int64_t ahead = column < row.prefetch.far_row * kRunColumns
                              ? row.prefetch.near
                              : row.prefetch.far;
    const int64_t apply_ahead = Packed() ? 0 : ahead;
    if (policy == StorePolicy::kNonTemporal) {
      ApplyWholeRuns<StorePolicy::kNonTemporal>(row, runs, apply, apply_ahead);
    } else {
      ApplyWholeRuns<StorePolicy::kTemporal>(row, runs, apply, apply_ahead);
    }
    Step step{row.next_element + column, runs, kRunColumns, ahead, 0, 0};
    constexpr int kReduce = PowerOfTwo(kReduceVectors<F, T>);
    for (; step.column < kRunColumns; step.column += kReduce * kLanesOf<T>) {
      ReduceStep<F, StorePolicy::kNone, kReduce, false>(
          tensors_, step, this->columns_, this->sums_);
    }
    // By a constant number of bytes, which is not a call of memcpy.
    for (int64_t r = 0; r < runs; ++r, column += kRunColumns) {
      Copy(row, column, kRunColumns);
    }
  }

  // The results of `runs` runs from column `apply` on. All columns have the
  // same coefficients, so a row of a step may be any part of a run. Of float32
  // a stage has few runs, and one step in the order of addresses loads the
  // coefficients once; with two outputs it took 1.14 times as long.
  template <StorePolicy kPolicy>
  TFBN_INLINE void ApplyWholeRuns(const StageRow<F, T>& row, int64_t runs,
                                  int64_t apply, int64_t prefetch_offset) {
    constexpr int kVectors = PowerOfTwo(kApplyVectors<F, T>);
    constexpr int64_t kColumns = kVectors * kLanesOf<T>;
    constexpr bool kContiguous = !kIsNarrow<T> && F::kOutputs == 1;
    constexpr int64_t kParts = kRunColumns / kColumns;  // Of a run.
    const int64_t rows = kContiguous ? runs * kParts : runs;
    const int64_t most = kContiguous                       ? rows
                         : kRowByRow<T, kVectors, kPolicy> ? 1
                                                           : kMaxRowsPerStep;
    const int64_t stride = kContiguous ? kColumns : kRunColumns;
    for (int64_t r = 0; r < rows; r += most) {
      Step step{apply + r * stride,
                std::min(rows - r, most),
                stride,
                prefetch_offset,
                0,
                0};
      for (; step.column < stride; step.column += kColumns) {
        ApplyStep<F, true, kPolicy, kVectors, false,
                  kGroupOf<T, kVectors, false>>(row.current, step,
                                                apply_columns_);
      }
    }
  }

  // Results of the columns from `begin` to `end`.
  void ApplyColumns(const StageRow<F, T>& row, int64_t begin, int64_t end,
                    StorePolicy policy) {
    Panel panel{begin, (end - begin) / kRunColumns, kRunColumns, kRunColumns};
    ApplyPanel<F, true>(row.current, panel, policy, apply_columns_);
    panel.first_element += panel.rows * kRunColumns;
    panel.rows = 1;
    panel.columns = (end - begin) % kRunColumns;
    ApplyPanel<F, true>(row.current, panel, policy, apply_columns_);
  }

  // Sums, and copies, of the columns from `begin` to `end`.
  void ReduceColumns(const StageRow<F, T>& row, int64_t begin, int64_t end,
                     int64_t channel) {
    if (begin == end) return;
    PrefetchOffsets prefetch = row.prefetch;
    prefetch.far_row -= begin / kRunColumns;
    this->ReduceRow(channel, row.next_element + begin, end - begin, prefetch);
    Copy(row, begin, end - begin);
  }

  // Copies what is in L1 since it was reduced.
  TFBN_INLINE void Copy(const StageRow<F, T>& row, int64_t column,
                        int64_t columns) {
    if (!Packed()) return;
    for (int i = 0; i < F::kInputs; ++i) {
      std::memcpy(row.copy[i] + column,
                  tensors_.in[i] + row.next_element + column,
                  columns * sizeof(T));
    }
  }

  const PipelineStage& stage_;
  const StorePolicy policy_;
  const int64_t length_;  // Columns of a row.
  const RunPrefetch<T, kPipelineBytes> prefetch_;
  TileCoefficients<F, T, 0, kRunColumns> apply_coefficients_;
  ColumnCoefficients<C> apply_columns_ = {};
};

// Kernels::pipeline.
template <typename F, typename T>
void Pipeline(const typename F::Args& args, const Partition& partition,
              const PipelineStage& stage, const void* by_channel,
              StorePolicy policy, const ChannelSums& out) {
  if constexpr (!kIsFrozenOnly<F>) {
    StageRunner<F, T>(args, partition, stage, by_channel, policy, out).Run();
    if (policy == StorePolicy::kNonTemporal) NonTemporalFence();
  }
}

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_PIPELINE_H_
