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

#ifndef TF_BN_OPS_CC_CPU_ISA_PIPELINE_H_
#define TF_BN_OPS_CC_CPU_ISA_PIPELINE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/core/formulas/formula.h"
#include "cc/core/partition.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/panel.h"
#include "cc/cpu/isa/pass.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

// The segments of an outer index: of the current group, and of the next one.
template <typename F, typename T>
struct StageRow {
  // Column 0 of the outputs, and of the inputs, where they are read.
  TensorPointers<F, T> current;
  // Column 0 in the tensors, and in the scratch, if there is one.
  int64_t next_element;
  T* copy[F::kInputs];
  PrefetchOffsets prefetch;
};

// The largest power of two that is at most `n`: as many vectors divide a
// segment.
constexpr int PowerOfTwo(int n) { return n < 2 ? 1 : 2 * PowerOfTwo(n / 2); }

// A stage over one block. The base sums the next group's tile.
template <typename F, typename T>
class StageRunner : private Pass<PassOf<F, T, true, F::kNumSums, false>> {
  using Reduce = PassOf<F, T, true, F::kNumSums, false>;
  using Apply = PassOf<F, T, true, 0, true>;
  using Base = Pass<Reduce>;
  using C = typename Compute<T>::Scalar;

 public:
  StageRunner(const Call& args, const Partition& partition,
              const PipelineStage& stage, const void* by_channel,
              StorePolicy policy, const ChannelSums& out)
      : Base(args, partition, stage.next, by_channel, StorePolicy::kNone, out),
        stage_(stage),
        policy_(policy),
        length_(stage.next.block.i1 - stage.next.block.i0),
        prefetch_(args.view, stage.next) {}

  // Channel by channel.
  void Run() {
    const Block& block = stage_.next.block;
    const int64_t current = stage_.current.c1 - stage_.current.c0;
    const int64_t next = stage_.next.c1 - stage_.next.c0;
    for (int64_t j = 0; j < std::max(current, next); ++j) {
      const int64_t channel = stage_.next.c0 + j;
      if (j < current) {
        SetCoefficients(stage_.current.c0 + j);
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
  using Base::by_channel_;
  using Base::by_channel_stride_;
  using Base::tensors_;
  using Base::view_;

  void SetCoefficients(int64_t c) {
    for (int k = 0; k < F::kNumCoefficients; ++k) {
      SpreadChannels(by_channel_ + k * by_channel_stride_ + c, 1,
                     kSegmentColumns, apply_by_column_ + k * kStride);
    }
  }

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
    // Whole chains of two-level sums.
    constexpr int64_t kSegmentBytes =
        F::kInputs * kSegmentColumns * static_cast<int64_t>(sizeof(T));
    constexpr int64_t kSegments =
        kIsNarrow<T>
            ? kTwoLevelRun
            : (kPipelineStageBytes + kSegmentBytes - 1) / kSegmentBytes;
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
      const int64_t segments =
          std::min((next_length - column) / kSegmentColumns,
                   std::min(kSegments, this->ChainLeft()));
      if (segments <= 0 || segments > (length - apply) / kSegmentColumns) break;
      TakeSegmentsOfBoth(row, segments, apply, column, policy);
      apply += segments * kSegmentColumns;
      column += segments * kSegmentColumns;
      this->CountSegments(channel, segments);
    }
    ApplyColumns(row, apply, length, policy);
    ReduceColumns(row, column, next_length, channel);
  }

  // Results from column `apply` on, then sums, and copies, from `column` on.
  TFBN_INLINE void TakeSegmentsOfBoth(const StageRow<F, T>& row,
                                      int64_t segments, int64_t apply,
                                      int64_t column, StorePolicy policy) {
    const int64_t ahead = column < row.prefetch.far_row * kSegmentColumns
                              ? row.prefetch.near
                              : row.prefetch.far;
    const int64_t apply_ahead = Packed() ? 0 : ahead;
    if (policy == StorePolicy::kNonTemporal) {
      ApplySegments<StorePolicy::kNonTemporal>(row, segments, apply,
                                               apply_ahead);
    } else {
      ApplySegments<StorePolicy::kTemporal>(row, segments, apply, apply_ahead);
    }
    constexpr int kVectors = PowerOfTwo(kVectorsOf<Reduce>);
    Strip strip{
        row.next_element + column, segments, kSegmentColumns, ahead, 0, 0};
    for (; strip.column < kSegmentColumns;
         strip.column += kVectors * kLanesOf<T>) {
      TakeStrip<Reduce, StorePolicy::kNone, kVectors, false,
                kPackOf<Reduce, StorePolicy::kNone, kVectors, false>>(
          tensors_, strip, this->coefficients_, this->sums_);
    }
    // By a constant number of bytes, which is not a call of memcpy.
    for (int64_t r = 0; r < segments; ++r, column += kSegmentColumns) {
      Copy(row, column, kSegmentColumns);
    }
  }

  // The results of `segments` segments from column `apply` on. All columns have
  // the same coefficients, so a row of a strip may be any part of a segment. Of
  // float32 a stage has few segments, and one strip in the order of addresses
  // loads the coefficients once; with two outputs it took 1.14 times as long.
  template <StorePolicy kPolicy>
  TFBN_INLINE void ApplySegments(const StageRow<F, T>& row, int64_t segments,
                                 int64_t apply, int64_t prefetch_offset) {
    constexpr int kVectors = PowerOfTwo(kVectorsOf<Apply>);
    constexpr int64_t kColumns = kVectors * kLanesOf<T>;
    constexpr bool kContiguous = !kIsNarrow<T> && F::kOutputs == 1;
    constexpr int64_t kParts = kSegmentColumns / kColumns;  // Of a segment.
    const int64_t rows = kContiguous ? segments * kParts : segments;
    const int64_t most = kContiguous                       ? rows
                         : kRowByRow<T, kVectors, kPolicy> ? 1
                                                           : kMaxRowsPerStrip;
    const int64_t stride = kContiguous ? kColumns : kSegmentColumns;
    ColumnSums<T, 0> none;
    for (int64_t r = 0; r < rows; r += most) {
      Strip strip{apply + r * stride,
                  std::min(rows - r, most),
                  stride,
                  prefetch_offset,
                  0,
                  0};
      for (; strip.column < stride; strip.column += kColumns) {
        TakeStrip<Apply, kPolicy, kVectors, false,
                  kPackOf<Apply, kPolicy, kVectors, false>>(row.current, strip,
                                                            apply_, none);
      }
    }
  }

  // Results of the columns from `begin` to `end`.
  void ApplyColumns(const StageRow<F, T>& row, int64_t begin, int64_t end,
                    StorePolicy policy) {
    Panel panel{begin, (end - begin) / kSegmentColumns, kSegmentColumns,
                kSegmentColumns};
    ApplyPanel(row, panel, policy);
    panel.first_element += panel.rows * kSegmentColumns;
    panel.rows = 1;
    panel.columns = (end - begin) % kSegmentColumns;
    ApplyPanel(row, panel, policy);
  }

  void ApplyPanel(const StageRow<F, T>& row, const Panel& panel,
                  StorePolicy policy) {
    ColumnSums<T, 0> none;
    ForEachStorePart(row.current, panel, policy,
                     [&](auto constant, const Panel& part) {
                       TakeStrips<Apply, decltype(constant)::value>(
                           row.current, part, apply_, none);
                     });
  }

  // Sums, and copies, of the columns from `begin` to `end`.
  void ReduceColumns(const StageRow<F, T>& row, int64_t begin, int64_t end,
                     int64_t channel) {
    if (begin == end) return;
    PrefetchOffsets prefetch = row.prefetch;
    prefetch.far_row -= begin / kSegmentColumns;
    this->TakeLine(channel, row.next_element + begin, end - begin, prefetch);
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
  const SegmentPrefetch<T, kPipelinePrefetchBytes> prefetch_;
  // Of the current group.
  static constexpr int64_t kStride = kSegmentColumns + kColumnPadding;
  alignas(kCacheLineBytes) C apply_by_column_[F::kNumCoefficients * kStride];
  const ColumnCoefficients<C> apply_ = {apply_by_column_, kStride};
};

// Kernels::pipeline.
template <typename F, typename T>
void RunPipeline(const Call& args, const Partition& partition,
                 const PipelineStage& stage, const void* by_channel,
                 StorePolicy policy, const ChannelSums& out) {
  StageRunner<F, T>(args, partition, stage, by_channel, policy, out).Run();
  if (policy == StorePolicy::kNonTemporal) NonTemporalFence();
}

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_PIPELINE_H_
