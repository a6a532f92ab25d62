// One pass over a tile: for each row the inputs are loaded, masked, added up by
// column, and the results computed and stored; a pass leaves out the sums or
// the results. All kernels of a formula but the pipeline are this loop:
//
//   Pass::Run       the tile: rows of all channels, or segments of one channel
//   TakeRows        rows, with the sums of their columns (TakeChannels: of a
//                   channel's segments)
//   TakePanel       full cache lines for non-temporal stores, and what is
//                   beside them
//   TakeLoops       one loop, or sums and results in a loop each
//   TakeStrips      strips of a few rows and vectors
//   TakeStrip       the loop
//   StoreResults    the formula's results of a few vectors (strip.h)
//
// What there is to choose is in the plan (LoopPlan of kernels.h).
//
// Column-wise accumulation: each column of a row has sums of its own, so that
// the order of additions does not depend on the width of a vector, and no
// multiplication is fused with an addition. All builds are bitwise identical.
// Sums are kept in double; narrow elements are added up in chains of float32
// first (two_level_sum.h), whose rows begin at a multiple of kTwoLevelChain.
// That halves the instructions of a pass which is compute-bound where float32
// waits for memory (ADR 29).

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/partition.h"
#include "cc/cpu/isa/columns.h"
#include "cc/cpu/isa/panel.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/strip.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/kernels.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

// The tensors of a strip: a copy, which no store can change, so that pointers
// stay in registers. No copy where a vector is a cache line: without one the
// gradient of [100352, 64, 1] in float32 is 1.07 times as fast, and the frozen
// forward of [32, 256, 3136] 1.12 times (AMD EPYC, AVX-512).
template <typename F, typename T>
using StripTensors =
    std::conditional_t<kVectorIsLine, const TensorPointers<F, T>&,
                       const TensorPointers<F, T>>;

// Takes a strip of kVectors vectors, or of one that is partial, in packs.
template <typename P, StorePolicy kPolicy, int kVectors, bool kPartial,
          int kPack, typename F, typename T>
TFBN_INLINE void TakeStrip(
    const TensorPointers<F, T>& given, const Strip& strip,
    const ColumnCoefficients<CoefficientOf<T>>& coefficients,
    ColumnSums<T, P::kNumSums>& columns) {
  constexpr bool kStores = kPolicy != StorePolicy::kNone;
  // A chain that is added up again reads what may lie in the buffer of a
  // result.
  constexpr bool kStoresLast =
      kStores && P::kNumSums > 0 && kIsNarrow<T> && kChainMayOverflow<T>;
  constexpr bool kStoresByRow =
      P::kNumSums == 0 || kStoredTogether<F, T, kPolicy, kVectors> > 1;
  constexpr int64_t kChain = P::kNumSums > 0 && kIsNarrow<T>
                                 ? int64_t{kTwoLevelChain}
                                 : std::numeric_limits<int64_t>::max();
  StripTensors<F, T> tensors = given;
  VectorOf<T> k[kVectors][F::kNumCoefficients];
  LoadCoefficients<P, kPack>(coefficients, strip.column, k);
  Strip chain = strip;
  for (int64_t left = strip.rows; left > 0; left -= chain.rows) {
    chain.rows = std::min(left, kChain);
    StripSums<P, kVectors, kPartial, kPack> sums(columns, strip);
    int64_t element = chain.first_element + strip.column;
    for (int64_t r = 0; r < chain.rows; ++r, element += strip.row_stride) {
      PrefetchRow<kVectors, !kStores>(tensors, strip, element);
      for (int u = 0; u < kVectors; u += kPack) {
        const int64_t first = element + u * kLanesOf<T>;
        sums.Add(tensors, columns, strip, first, u, k + u);
        if constexpr (kStores && !kStoresLast && !kStoresByRow) {
          StoreResults<P, kPolicy, kPack, kPartial, kPack>(
              tensors, first, strip.partial_lanes, k + u);
        }
      }
      if constexpr (kStores && !kStoresLast && kStoresByRow) {
        StoreResults<P, kPolicy, kVectors, kPartial, kPack>(
            tensors, element, strip.partial_lanes, k);
      }
    }
    sums.Finish(tensors, coefficients, chain, columns);
    if constexpr (kStoresLast) {
      element = chain.first_element + strip.column;
      for (int64_t r = 0; r < chain.rows; ++r, element += strip.row_stride) {
        StoreResults<P, kPolicy, kVectors, kPartial, kPack>(
            tensors, element, strip.partial_lanes, k);
      }
    }
    chain.first_element += chain.rows * strip.row_stride;
  }
}

// Cuts a panel into strips, whose sums and coefficients stay in registers, or
// side by side on the stack, for all their rows: that saves up to two thirds of
// the accesses to L1. A strip as wide as the panel has all its rows, for then
// they are read in the order of addresses. Never inlined: within TakePanel GCC
// 12 spills the registers of these loops, and the frozen bfloat16 gradient of
// [100352, 64] behind add and ReLU takes 1.19 times the time that it takes with
// a call (AVX2, one thread).
template <typename P, StorePolicy kPolicy, int kPack, typename F, typename T>
__attribute__((noinline)) void TakeStrips(
    const TensorPointers<F, T>& tensors, const Panel& panel,
    const LoopPlan& plan,
    const ColumnCoefficients<CoefficientOf<T>>& coefficients,
    ColumnSums<T, P::kNumSums>& columns) {
  constexpr int kVectors = kVectorsOf<P>, kLanes = kLanesOf<T>;
  constexpr int64_t kColumns = kVectors * kLanes;
  // Non-temporal stores have whole cache lines (TakePanel).
  constexpr bool kWholeLines = kPolicy == StorePolicy::kNonTemporal;
  // Strips that prefetch within the panel have whole chains in sum, too.
  constexpr int64_t kMultiple =
      P::kNumSums > 0 && kIsNarrow<T> ? kTwoLevelChain : 1;
  const int64_t most = panel.columns == kColumns ? panel.rows
                       : P::kNumSums > 0         ? plan.sum_rows
                                                 : plan.store_rows;
  const int64_t far_row =
      (panel.prefetch.far_row + kMultiple - 1) / kMultiple * kMultiple;
  for (int64_t r = 0, rows = 0; r < panel.rows; r += rows) {
    const bool near = r < far_row;
    const int64_t end = near ? std::min(far_row, panel.rows) : panel.rows;
    rows = std::min(end - r, most);
    Strip strip{panel.first_element + r * panel.row_stride,
                rows,
                panel.row_stride,
                near ? panel.prefetch.near : panel.prefetch.far,
                panel.first_column,
                0};
    // GCC optimizes lambdas before it inlines them: the loop's sums stay in
    // registers (frozen gradient of half: else 2 times as slow with AVX-512).
    const auto take = [&](auto vectors, auto partial,
                          auto pack) __attribute__((always_inline)) {
      TakeStrip<P, kPolicy, decltype(vectors)::value, decltype(partial)::value,
                decltype(pack)::value>(tensors, strip, coefficients, columns);
    };
    constexpr std::integral_constant<int, kVectors> kMany{};
    constexpr std::integral_constant<int, 1> kOne{};
    constexpr std::integral_constant<int, kPack> kPacked{};
    int64_t& c = strip.column;
    for (; c + kColumns <= panel.columns; c += kColumns) {
      take(kMany, std::false_type(), kPacked);
    }
    if constexpr (!kWholeLines || kLineElements<T> % kColumns != 0) {
      for (; c + kLanes <= panel.columns; c += kLanes) {
        take(kOne, std::false_type(), kOne);
      }
    }
    if constexpr (!kWholeLines) {
      strip.partial_lanes = static_cast<int>(panel.columns - c);
      if (strip.partial_lanes == 0) continue;
      take(kOne, std::true_type(), kOne);
    }
  }
}

// ---- Tiles ------------------------------------------------------------------

// A pass over a tile; Run is a Kernels::PassFunction.
template <typename P>
class Pass {
  using F = typename P::Formula;
  using T = typename P::Element;
  using C = CoefficientOf<T>;
  static constexpr int kSums = P::kNumSums;

 public:
  static void Run(const Call& call, const Partition& partition,
                  const Tile& tile, const LoopPlan& plan,
                  const ChannelArrays& channels) {
    Pass pass(call, partition, tile, plan, channels);
    if (partition.kind == Partition::kRows) {
      pass.TakeRows();
    } else {
      pass.TakeChannels();
    }
    if (plan.stores == StorePolicy::kNonTemporal) NonTemporalFence();
  }

 protected:
  Pass(const Call& call, const Partition& partition, const Tile& tile,
       const LoopPlan& plan, const ChannelArrays& channels)
      : view_(call.view),
        partition_(partition),
        tile_(tile),
        plan_(plan),
        out_(channels.sums),
        tensors_(PointersOf<F, T>(call)),
        centers_(channels.centers),
        by_channel_(static_cast<const C*>(channels.coefficients)),
        by_channel_stride_(CoefficientStride(call.view.channels)) {
    tensors_.read_later = static_cast<const T*>(tile.read_later);
    for (int k = 0; k < kSums; ++k) {
      for (int64_t c = tile.c0; c < tile.c1; ++c) SumsOfChannel(out_, k)[c] = 0;
    }
  }

  // ---- kRows

  void TakeRows() {
    const RowPanels panels = RowPanelsOf<T>(view_, partition_, tile_);
    constexpr int64_t kFlushed =
        kSums > 0 ? kChainRows : std::numeric_limits<int64_t>::max();
    const int64_t channels = tile_.c1 - tile_.c0;
    const int64_t outer_columns = channels * view_.inner;
    SetColumns(tile_.c0, channels, view_.inner,
               partition_.fold * outer_columns);
    for (Panel left = panels.full;; left.SkipRows(kFlushed)) {
      const bool last = left.rows <= kFlushed;
      ClearSums(left.columns);
      TakePanel(left.FirstRows(kFlushed), plan_.stores);
      if (last) TakePanel(panels.remainder, plan_.stores);
      // One outer index of the fold after the other.
      for (int64_t f = 0; kSums > 0 && f < partition_.fold; ++f) {
        FlushColumns(f * outer_columns, channels, view_.inner, tile_.c0);
      }
      if (last) return;
    }
  }

  // The centers and coefficients of `channels` channels from c0 on, each with
  // `per_channel` columns, and the same again up to `total` columns.
  void SetColumns(int64_t c0, int64_t channels, int64_t per_channel,
                  int64_t total) {
    const int64_t once = channels * per_channel;
    if constexpr (kSums > 0) {
      SetCenters<T, kCentersAreElements<F>>(centers_ + c0, channels,
                                            per_channel, sums_.center);
      RepeatColumns(once, total, sums_.center);
    }
    if constexpr (P::kReadsCoefficients) {
      if (total == channels) {  // One column each: they are where they are.
        coefficients_ = {by_channel_ + c0, by_channel_stride_};
        return;
      }
      for (int k = P::kFirstCoefficient; k < F::kNumCoefficients; ++k) {
        C* const of = by_column_ + k * kColumnStride;
        SpreadChannels(by_channel_ + k * by_channel_stride_ + c0, channels,
                       per_channel, of);
        RepeatColumns(once, total, of);
      }
    }
  }

  // ---- kSegments

  void TakeChannels() {
    const SegmentPrefetch<T> prefetch(view_, tile_);
    for (int64_t c = tile_.c0; c < tile_.c1; ++c) {
      BeginChannel(c);
      for (int64_t o = tile_.block.o0; o < tile_.block.o1; ++o) {
        TakeLine(c, (o * view_.channels + c) * view_.inner + tile_.block.i0,
                 tile_.block.i1 - tile_.block.i0, prefetch.Of(c, o));
      }
      EndChannel(c);
    }
  }

  void BeginChannel(int64_t c) {
    SetColumns(c, 1, kSegmentColumns, kSegmentColumns);
    ClearSums(kSegmentColumns);
    chain_ = 0;
  }
  void EndChannel(int64_t c) { FlushColumns(0, 1, kSegmentColumns, c); }

  // `length` elements of channel `c` from `first` on, in segments. A pass that
  // stores alone begins with the columns that lead to a full cache line.
  void TakeLine(int64_t c, int64_t first, int64_t length,
                const PrefetchOffsets& prefetch) {
    if constexpr (kSums == 0) {
      const int64_t lead = plan_.stores == StorePolicy::kNonTemporal
                               ? ElementsToFullLine(tensors_.out[0] + first)
                               : 0;
      if (lead > 0) {
        const int64_t head = std::min(lead, length);
        TakePanel(Panel{first, 1, kSegmentColumns, head},
                  StorePolicy::kTemporal);
        first += head;
        length -= head;
      }
    }
    const int64_t segments = length / kSegmentColumns;
    TakeSegments(
        c, Panel{first, segments, kSegmentColumns, kSegmentColumns, prefetch});
    TakePanel(Panel{first + segments * kSegmentColumns, 1, kSegmentColumns,
                    length % kSegmentColumns},
              plan_.stores);
  }

  // Full segments of channel `c`; sums are flushed every kChainRows over all
  // outer indices.
  void TakeSegments(int64_t c, Panel left) {
    if constexpr (kSums == 0) return TakePanel(left, plan_.stores);
    while (left.rows > 0) {
      const Panel segments = left.FirstRows(ChainLeft());
      TakePanel(segments, plan_.stores);
      left.SkipRows(segments.rows);
      CountSegments(c, segments.rows);
    }
  }
  int64_t ChainLeft() const { return kChainRows - chain_; }
  TFBN_INLINE void CountSegments(int64_t c, int64_t segments) {
    chain_ += segments;
    if (chain_ < kChainRows) return;
    EndChannel(c);
    ClearSums(kSegmentColumns);
    chain_ = 0;
  }

  // ---- Panels

  // All of a panel. Non-temporal stores need full cache lines, where all rows
  // and outputs have them (plan.cc): the columns left and right of them get
  // temporal stores, and so do all where there are few full lines beside
  // others.
  __attribute__((noinline)) void TakePanel(const Panel& panel,
                                           StorePolicy policy) {
    if (panel.rows == 0 || panel.columns == 0) return;
    if constexpr (!P::kHasStores) {
      TakeLoops<StorePolicy::kNone>(panel);
    } else if (policy != StorePolicy::kNonTemporal) {
      TakeLoops<StorePolicy::kTemporal>(panel);
    } else {
      constexpr int64_t kLine = kLineElements<T>;
      const int64_t lead =
          ElementsToFullLine(tensors_.out[0] + panel.first_element);
      const int64_t end = panel.columns - (panel.columns - lead) % kLine;
      const bool whole = lead == 0 && end == panel.columns;
      if (!whole && panel.columns - lead < kLeastFullLines * kLine) {
        return TakeLoops<StorePolicy::kTemporal>(panel);
      }
      const auto columns = [](Panel part, int64_t first, int64_t last) {
        part.first_column = first;
        part.columns = last;
        return part;
      };
      // A few rows at a time, so that all columns of a row are read from memory
      // together.
      const int64_t at_once = whole ? panel.rows : kMaxRowsPerStrip;
      for (Panel left = panel; left.rows > 0; left.SkipRows(at_once)) {
        const Panel rows = left.FirstRows(at_once);
        if (lead > 0) {
          TakeLoops<StorePolicy::kTemporal>(columns(rows, 0, lead));
        }
        TakeLoops<kPastCaches>(columns(rows, lead, end));
        if (end < panel.columns) {
          TakeLoops<StorePolicy::kTemporal>(columns(rows, end, panel.columns));
        }
      }
    }
  }

  // One loop, or sums and results in a loop each, a few rows at a time, so that
  // the results are computed from L1. A vector that is a cache line, or a
  // temporal store, leaves nothing to choose.
  template <StorePolicy kPolicy>
  void TakeLoops(Panel panel) {
    constexpr bool kApart = kSums > 0 && kRowByRow<T, kVectorsOf<P>, kPolicy>;
    constexpr bool kMayBeApart =
        kSums > 0 && !kVectorIsLine && kPolicy == StorePolicy::kNonTemporal;
    if constexpr (kApart || kMayBeApart) {
      if (kApart || plan_.two_loops) {
        ColumnSums<T, 0> none;
        for (; panel.rows > 0; panel.SkipRows(kTwoLevelChain)) {
          Panel rows = panel.FirstRows(kTwoLevelChain);
          StripsOf<SumsOf<P>, StorePolicy::kNone>()(tensors_, rows, plan_,
                                                    coefficients_, sums_);
          rows.prefetch = {};
          StripsOf<StoresOf<P>, kPolicy>()(tensors_, rows, plan_, coefficients_,
                                           none);
        }
        return;
      }
    }
    if constexpr (!kApart) {
      StripsOf<P, kPolicy>()(tensors_, panel, plan_, coefficients_, sums_);
    }
  }

  // TakeStrips of a pass, in packs or not.
  template <typename Q, StorePolicy kPolicy>
  TFBN_INLINE auto StripsOf() const {
    constexpr int kPack = kPackOf<Q, kPolicy, kVectorsOf<Q>>;
    constexpr int kLeastPack = Q::kNumSums == 0 ? 1 : kPack;
    return plan_.packs ? TakeStrips<Q, kPolicy, kPack, F, T>
                       : TakeStrips<Q, kPolicy, kLeastPack, F, T>;
  }

  // ---- Sums

  void ClearSums([[maybe_unused]] int64_t columns) {
    if constexpr (kSums > 0) {
      for (double* const sum : sums_.sum) {
        for (int64_t c = 0; c < columns; ++c) sum[c] = 0;
      }
    }
  }

  // Adds the columns from `first` on of `channels` channels, each `per_channel`
  // neighbours, to the sums of the channels from c0 on.
  void FlushColumns(int64_t first, int64_t channels, int64_t per_channel,
                    int64_t c0) {
    if constexpr (kSums > 0) {
      for (int k = 0; k < kSums; ++k) {
        AddToChannels(sums_.sum[k] + first, channels, per_channel,
                      SumsOfChannel(out_, k) + c0);
      }
    }
  }

  const View& view_;
  const Partition& partition_;
  const Tile& tile_;
  const LoopPlan& plan_;
  const ChannelSums out_;
  TensorPointers<F, T> tensors_;  // Of another row in each one of a pipeline.
  const double* const centers_;
  const C* const by_channel_;
  const int64_t by_channel_stride_;
  int64_t chain_ = 0;  // kSegments: rows in the sums.
  ColumnSums<T, kSums> sums_;
  alignas(kCacheLineBytes) C
      by_column_[P::kReadsCoefficients ? F::kNumCoefficients * kColumnStride
                                       : 1];
  ColumnCoefficients<C> coefficients_ = {by_column_, kColumnStride};
};

}  // namespace
}  // namespace tf_bn_ops
