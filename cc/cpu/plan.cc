// Decides how a call is carried out. Everything here is a function of the
// request.

#include "cc/cpu/plan.h"

#include <algorithm>
#include <numeric>

#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

class Planner {
 public:
  Planner(const PlanRequest& request, Plan* plan)
      : plan_(*plan),
        request_(request),
        view_(request.view),
        elements_(NumElements(request.view)),
        element_bytes_(static_cast<int64_t>(SizeOf(request.dtype))),
        threads_(elements_ < kSerialElements ? 1 : request.threads) {}

  void Choose() {
    plan_.partition = MakePartition(view_);
    if (elements_ == 0) {
      plan_.schedule_why = plan_.threads_why = {Reason::kNoElements};
      return;
    }
    ExplainPartition();
    CutIntoTiles();
    ChooseSchedule();
    CutIntoTasks();
    ChooseThreads();
    ChooseStores();
    ChooseEarlyOutput();
    ChooseLoops();
    ChoosePrefetch();
  }

 private:
  void ExplainPartition() {
    const Partition& p = plan_.partition;
    if (p.kind == Partition::kSegments) {
      plan_.partition_why =
          view_.inner > kMaxRowColumns
              ? Why{Reason::kLongInner, view_.inner, kMaxRowColumns}
              : Why{Reason::kFewOuter, view_.outer};
    } else if (p.fold > 1) {
      plan_.partition_why = {Reason::kFoldedRows, p.fold};
    } else {
      plan_.partition_why = {Reason::kFullRows, view_.channels * view_.inner};
    }
  }

  // As many channels as a tile may have, or fewer so that there are two tiles
  // for each thread.
  void CutIntoTiles() {
    const int64_t blocks = NumBlocks(plan_.partition);
    const int64_t fair = CeilDiv(view_.channels, CeilDiv(2 * threads_, blocks));
    if (plan_.partition.kind == Partition::kSegments) {
      CutSegments(fair);
    } else if (plan_.partition.fold > 1) {
      plan_.tile_channels = view_.channels;
      plan_.tile_why = {Reason::kFoldedRows, plan_.partition.fold};
    } else {
      CutRows(fair);
    }
    if (plan_.tile_channels >= view_.channels &&
        plan_.tile_why.reason != Reason::kFoldedRows) {
      plan_.tile_channels = view_.channels;
      plan_.tile_why = {Reason::kAllChannels, view_.channels};
    }
    plan_.tiles_per_block = CeilDiv(view_.channels, plan_.tile_channels);
    plan_.tiles = blocks * plan_.tiles_per_block;
  }

  // Any number of channels is allowed; short ones are put together, lest tasks
  // become tiny.
  void CutSegments(int64_t fair) {
    const int64_t per_channel = ElementsPerChannel(view_);
    const int64_t most = kSerialElements / per_channel;
    plan_.tile_channels = std::max<int64_t>(1, std::min(most, fair));
    plan_.tile_why = most <= 1 ? Why{Reason::kOneChannel, per_channel}
                     : fair < most
                         ? Why{Reason::kFairShare, fair, threads_}
                         : Why{Reason::kTaskElements, most, kSerialElements};
  }

  // The most columns of a tile. Two kinds of rows are not cut to what L1 holds:
  // channels-last ones, which stream from memory whole (in tiles of 384 columns
  // the second-order gradient of [5000, 1024, 1] took 1.2 to 1.4 times as
  // long), and those that would then have partial vectors (with AVX2 up to 1.3
  // times).
  Why MaxColumns() const {
    const int64_t l1_columns = request_.is_training
                                   ? request_.formula.training_l1_columns
                                   : request_.formula.frozen_l1_columns;
    if (l1_columns >= kMaxRowColumns) return {Reason::kSumsFitL1, l1_columns};
    if (view_.inner == 1) return {Reason::kStreamedRows, kMaxRowColumns};
    const int64_t full_vectors = std::lcm(view_.inner, kMaxLanes);
    return full_vectors > l1_columns
               ? Why{Reason::kFullVectors, kMaxRowColumns}
               : Why{Reason::kSumsFitL1,
                     l1_columns / full_vectors * full_vectors};
  }

  void CutRows(int64_t fair) {
    const int64_t columns = ColumnsPerChannel();
    const auto [max_reason, max_columns, unused] = MaxColumns();
    const int64_t max_channels = max_columns / columns;
    const int64_t fill_rows = CeilDiv(kMinRowBytes, columns * element_bytes_);
    const int64_t wanted = std::max(fair, fill_rows);
    plan_.tile_channels =
        std::max<int64_t>(1, AlignChannels(std::min(max_channels, wanted)));
    plan_.tile_why =
        max_channels <= wanted
            ? Why{max_reason, plan_.tile_channels * columns, max_columns}
        : fair >= fill_rows
            ? Why{Reason::kFairShare, fair, threads_}
            : Why{Reason::kMinRowBytes,
                  plan_.tile_channels * columns * element_bytes_, kMinRowBytes};
  }

  void ChooseSchedule() {
    if (request_.has_totals) {
      plan_.schedule = Schedule::kElementsAlone;
      plan_.schedule_why = {Reason::kSumsGiven};
      return;
    }
    if (!request_.is_training) {
      plan_.schedule = Schedule::kFrozenOnePass;
      plan_.schedule_why = {Reason::kFrozen};
      return;
    }
    if (request_.formula.outputs == 0) {
      plan_.schedule = Schedule::kReduceOnly;
      plan_.schedule_why = {Reason::kSumsWanted};
      return;
    }
    ChooseGroup();
    plan_.schedule = plan_.group_channels > 0 ? Schedule::kChannelGroups
                                              : Schedule::kTwoPasses;
    if (plan_.group_channels == 0) return;
    plan_.groups = CeilDiv(view_.channels, plan_.group_channels);
    ChoosePipeline();
  }

  // Pays where memory is waited for, and the running sums stay in registers:
  // the sums of whole rows, and the coefficients of both groups, leave L1 no
  // room (26 to 47% longer with rows of 980 and 1024 columns). A scratch has
  // the widest group that fits, unless its rows would be too short.
  void ChoosePipeline() {
    const int64_t bytes = TensorBytes();
    const int64_t l2s = request_.caches.l2_bytes * threads_;
    Why& why = plan_.pipeline_why;
    if (request_.kernels->pipeline == nullptr) {
      why = {Reason::kNoPipelineKernel};
      return;
    }
    if (bytes <= l2s) {
      why = {Reason::kFitsL2s, bytes, l2s};
      return;
    }
    if (plan_.groups == 1) {
      why = {Reason::kOneGroup};
      return;
    }
    if (plan_.partition.kind == Partition::kRows) {
      why = {Reason::kSumsExceedRegisters};
      return;
    }
    const double l2 = static_cast<double>(request_.caches.l2_bytes);
    const int64_t channel_bytes = InputBytes(ElementsPerChannel(view_));
    const auto most_in_llc = static_cast<int64_t>(kChannelPartOfL2InLlc * l2);
    if (elements_ * element_bytes_ <= request_.caches.llc_bytes &&
        channel_bytes > most_in_llc) {
      why = {Reason::kLargeChannelInLlc, channel_bytes, most_in_llc};
      return;
    }
    const auto limit = static_cast<int64_t>(kScratchPartOfL2 * l2);
    const int64_t fit = limit / channel_bytes;
    if (fit < plan_.group_channels &&
        fit * view_.inner * element_bytes_ >= kMinRowBytes) {
      plan_.group_channels = fit;
      plan_.group_why = {Reason::kScratchBudget, fit, limit};
      plan_.groups = CeilDiv(view_.channels, fit);
    }
    const int64_t found = plan_.group_channels * channel_bytes;
    plan_.pipeline = found <= limit ? Pipeline::kPacked : Pipeline::kDirect;
    why = {found <= limit ? Reason::kPackedGroup : Reason::kGroupExceedsL2,
           found, limit};
    if (plan_.pipeline == Pipeline::kDirect) return;
    const int64_t line = kCacheLineBytes / element_bytes_;
    plan_.scratch_stride =
        CeilDiv(plan_.group_channels * ElementsPerChannel(view_), line) * line +
        kScratchPadding;
    plan_.scratch_bytes = InputBytes(plan_.scratch_stride);
  }

  // Channels of a group whose inputs stay in cache between the two passes, so
  // that one task computes both and memory is read once; 0 where there is no
  // such group, or too few of them to keep all threads busy.
  void ChooseGroup() {
    Why& why = plan_.schedule_why;
    if (view_.inner == 1 && view_.outer > kMostWideRows) {
      // Reading a part of every row is slower than reading all rows twice.
      why = {Reason::kChannelsLast};
      return;
    }
    // Half of a thread's share of the cache: others use it too.
    const int64_t budget = std::max(request_.caches.l2_bytes,
                                    request_.caches.llc_bytes / threads_) /
                           2;
    const int64_t channel_bytes = InputBytes(ElementsPerChannel(view_));
    const int64_t fit_cache = budget / channel_bytes;
    const int64_t fit = std::min(plan_.tile_channels, fit_cache);
    const int64_t fair = threads_ == 1 && fit >= view_.channels
                             ? view_.channels
                             : view_.channels / (2 * threads_);
    const int64_t group =
        fair == view_.channels ? fair : AlignChannels(std::min(fit, fair));
    const int64_t row_bytes = group * ColumnsPerChannel() * element_bytes_;
    if (fit == 0) {
      why = {Reason::kChannelExceedsCache, channel_bytes, budget};
    } else if (group == 0) {
      why = {Reason::kTooFewChannels, view_.channels, 2 * threads_};
    } else if (plan_.partition.fold > 1 && group < view_.channels) {
      why = {Reason::kFoldedRows, plan_.partition.fold};
    } else if (group < view_.channels && row_bytes < kMinRowBytes) {
      why = {Reason::kShortRows, row_bytes, kMinRowBytes};
    } else {
      why = {Reason::kGroupFitsCache, group * channel_bytes, budget};
      plan_.group_channels = group;
      plan_.group_why = group == view_.channels
                            ? Why{Reason::kAllChannels, group}
                        : fair <= fit ? Why{Reason::kFairShare, fair, threads_}
                        : fit_cache < plan_.tile_channels
                            ? Why{Reason::kCacheBudget, fit_cache, budget}
                            : Why{Reason::kTileWidth, plan_.tile_channels};
    }
  }

  void CutIntoTasks() {
    const bool groups = plan_.schedule == Schedule::kChannelGroups;
    const int64_t n = groups ? plan_.groups : plan_.tiles;
    const int64_t elements =
        groups ? plan_.group_channels * ElementsPerChannel(view_)
               : std::max<int64_t>(1, elements_ / plan_.tiles);
    const bool pipelined = plan_.pipeline != Pipeline::kNone;
    if (threads_ == 1 && !pipelined) {
      plan_.num_tasks = 1;
      plan_.tasks_why = {Reason::kOneThread};
      return;
    }
    const int64_t least =
        pipelined ? n : std::max<int64_t>(1, kMinTaskElements / elements);
    std::vector<int64_t>& bounds = plan_.task_bounds;
    bounds.push_back(0);
    const int64_t shares = std::min(threads_, n);
    plan_.share_bounds.reserve(shares + 1);
    plan_.share_bounds.push_back(0);
    for (int64_t s = 1; s <= shares; ++s) {
      const int64_t end = n / shares * s + std::min(s, n % shares);
      while (bounds.back() < end) {
        const int64_t rest = end - bounds.back();
        const int64_t size = std::max(least, rest / kGuidedDivisor);
        bounds.push_back(bounds.back() + std::min(rest, size));
      }
      plan_.share_bounds.push_back(static_cast<int64_t>(bounds.size()) - 1);
    }
    plan_.num_tasks = plan_.share_bounds.back();
    plan_.tasks_why =
        pipelined ? Why{Reason::kOneTaskEach, plan_.num_tasks}
                  : Why{Reason::kGuided, plan_.num_tasks, kMinTaskElements};
  }

  void ChooseThreads() {
    // Between the passes, coefficients are computed by one task for each tile
    // of a block.
    const int64_t tasks =
        plan_.schedule == Schedule::kChannelGroups
            ? plan_.num_tasks
            : std::max(plan_.num_tasks, plan_.tiles_per_block);
    plan_.threads = static_cast<int>(std::min<int64_t>(threads_, tasks));
    plan_.threads_why =
        request_.threads == 1 ? Why{Reason::kOneOffered}
        : elements_ < kSerialElements
            ? Why{Reason::kBelowSerialThreshold, elements_, kSerialElements}
        : plan_.threads == request_.threads ? Why{Reason::kAllOffered}
        : plan_.tiles == 1                  ? Why{Reason::kOneBlock, elements_}
                           : Why{Reason::kFewTasks, tasks, request_.threads};
  }

  // Temporal stores pay where results stay in an L2 until they are read. Beyond
  // that a temporal store costs a read for ownership (writing memory that is in
  // no cache: 9 GB/s with one thread, 18 with two; non-temporal 22 and 44, on a
  // virtual machine with 2 MiB of L2 per core), and evicts the inputs that the
  // second pass finds in L2. BN + ReLU, forward and gradient, of 2 to 8 MiB
  // gained 6 to 10%, repeated calls on one tensor included. In place, the lines
  // of an output are in cache already: its stores are temporal whatever the
  // policy of the others (StoreResults). With one of two outputs in place,
  // the gradient behind add + ReLU of [50176, 512, 1] in float32 takes 0.86 ns
  // per element on two threads; 1.04 if both are stored temporally, 0.89 if
  // neither.
  void ChooseStores() {
    const int64_t bytes = TensorBytes();
    if (request_.formula.outputs == 0) {
      plan_.store_policy = StorePolicy::kNone;
      return;
    }
    const CacheSizes& caches = request_.caches;
    const int64_t l2s = caches.l2_bytes * plan_.threads;
    const bool many_threads = l2s > caches.llc_bytes;
    const int64_t limit = many_threads ? caches.llc_bytes : l2s;
    if (bytes <= limit) {
      plan_.store_why = {many_threads ? Reason::kFitsLlc : Reason::kFitsL2s,
                         bytes, limit};
    } else if (request_.in_place) {
      plan_.store_why = {Reason::kInPlace};
    } else if (request_.page_offset_alias && HasFewRowsPerStep()) {
      plan_.store_why = {Reason::kPageOffsetAlias, 0, kAliasBytes};
    } else {
      plan_.store_policy = StorePolicy::kNonTemporal;
      plan_.store_why = {
          many_threads ? Reason::kExceedsLlc : Reason::kExceedsL2s, bytes,
          limit};
    }
  }

  // Whether the next load of a row follows its last store closely. Not of
  // 16-bit types and in kSegments, where a step stores more before it loads
  // again.
  bool HasFewRowsPerStep() const {
    return plan_.partition.kind == Partition::kRows &&
           !IsNarrow(request_.dtype) &&
           plan_.tile_channels * ColumnsPerChannel() * element_bytes_ >=
               kAliasedRowBytes;
  }

  // Pays in two passes over memory (28 bytes per element of float32 instead of
  // 32 behind add + ReLU), and in cache, where the second pass has no mask to
  // compute. Where it reads a channel group from cache and results go past the
  // caches, an output apart would be fetched from memory: 1.13 and 1.17 times
  // as long ([16, 1024, 196] and [16, 512, 784] in float32, two threads). A
  // product in the buffer of the only result costs a store and a load beside
  // it: in LLC, evaluating a derivative with exp twice takes 1.3 to 1.5 times
  // as long as storing the product with AVX-512, 1.5 to 1.7 times with AVX2, a
  // cheap one 0.7 to 0.85 times ([25088, 96, 1], [1568, 480, 1], [8, 64, 784]
  // in float32, one thread, Intel Xeon).
  void ChooseEarlyOutput() {
    const bool groups = plan_.schedule == Schedule::kChannelGroups;
    if (!request_.formula.has_early_output ||
        !(groups || plan_.schedule == Schedule::kTwoPasses)) {
      return;
    }
    Reason& reason = plan_.early_output_why.reason;
    if (request_.early_buffer == EarlyBuffer::kOverwrites) {
      reason = Reason::kOverwritesInput;
    } else if (request_.formula.is_smooth && IsNarrow(request_.dtype)) {
      reason = Reason::kRoundedOutput;
    } else if (IsProduct() && !request_.costly_slope) {
      reason = Reason::kCheapSlope;
    } else if (IsProduct() && TensorBytes() > request_.caches.llc_bytes) {
      plan_.early_output_why = {Reason::kProductExceedsLlc, TensorBytes(),
                                request_.caches.llc_bytes};
    } else if (groups && !IsProduct() &&
               request_.early_buffer == EarlyBuffer::kOwn &&
               plan_.store_policy == StorePolicy::kNonTemporal) {
      reason = Reason::kGroupInCache;
    } else {
      plan_.early_output = true;
      reason = Reason::kSecondPassReadsIt;
    }
  }

  // Whether an early output has the buffer of the only result, as a product.
  bool IsProduct() const { return request_.formula.outputs == 1; }

  // How the loops of both passes go through the rows of a tile. The rows of
  // kSegments lie side by side.
  void ChooseLoops() {
    const bool is_rows = plan_.partition.kind == Partition::kRows;
    const int64_t row_bytes =
        (is_rows ? view_.channels * ColumnsPerChannel() : kSegmentColumns) *
        element_bytes_;
    CheckFullLines(row_bytes);
    const bool one_pass = plan_.schedule == Schedule::kFrozenOnePass;
    LoopPlan& first = plan_.loops[0];
    if (one_pass) first.stores = plan_.store_policy;
    if (plan_.early_output) first.stores = ChooseEarlyStores();
    const bool sums = one_pass ? request_.formula.sums_frozen
                               : plan_.schedule != Schedule::kElementsAlone;
    if (sums) ChooseSumRows(row_bytes);
    if (sums && first.stores != StorePolicy::kNone) ChooseTwoLoops(row_bytes);
    const bool in_place =
        plan_.early_output && (IsProduct() || request_.second_in_place);
    plan_.loops[1].stores = one_pass   ? StorePolicy::kNone
                            : in_place ? StorePolicy::kTemporal
                                       : plan_.store_policy;
    for (LoopPlan& loop : plan_.loops) {
      const bool with_sums = loop.sum_rows > 0 && !loop.two_loops;
      if (loop.stores == StorePolicy::kNone || with_sums) continue;
      ChooseStoreRows(row_bytes, &loop);
      ChoosePacks(&loop);
    }
  }

  // Non-temporal stores need full cache lines, which begin at the same columns
  // in all rows and outputs that a pass stores.
  void CheckFullLines(int64_t row_bytes) {
    if (plan_.store_policy != StorePolicy::kNonTemporal) return;
    if (!Vectors().has_non_temporal_stores) {
      plan_.store_why = {Reason::kNoNonTemporalStores};
    } else if (row_bytes % kCacheLineBytes != 0 && TileRows() > 1) {
      plan_.store_why = {Reason::kRowsApart, row_bytes, kCacheLineBytes};
    } else if (request_.outputs_apart && !plan_.early_output) {
      plan_.store_why = {Reason::kOutputsApart};
    } else {
      return;
    }
    plan_.store_policy = StorePolicy::kTemporal;
  }

  // Of the first pass. Where non-temporal stores go row by row, and sums and
  // results each take a loop of their own, they cost more than the read for
  // ownership of temporal ones (16-bit types: 2 to 15%).
  StorePolicy ChooseEarlyStores() {
    Why& why = plan_.early_store_why;
    why = plan_.store_why;
    if (plan_.store_policy == StorePolicy::kTemporal) return plan_.store_policy;
    if (IsProduct() || request_.early_buffer == EarlyBuffer::kInPlace) {
      why = {Reason::kInPlace};
    } else if (!Vectors().sums_fill_lines) {
      why = {Reason::kPartsOfLines};
    } else {
      return plan_.store_policy;
    }
    return StorePolicy::kTemporal;
  }

  // As many as lie in kStripBytes. Two-level sums have whole chains.
  void ChooseSumRows(int64_t row_bytes) {
    plan_.sum_rows_why = IsNarrow(request_.dtype)
                             ? Why{Reason::kWholeChains, kTwoLevelChain}
                             : RowsInStrip(row_bytes, kMaxRowsPerStrip);
    plan_.loops[0].sum_rows = static_cast<int>(plan_.sum_rows_why.found);
  }
  static Why RowsInStrip(int64_t row_bytes, int64_t most) {
    // 32 bits: a division of 64 takes twice as long.
    const int64_t fit = static_cast<uint32_t>(kStripBytes) /
                        static_cast<uint32_t>(std::min(row_bytes, kStripBytes));
    return {Reason::kRowsInStrip, std::clamp<int64_t>(fit, 2, most),
            kStripBytes};
  }

  // Non-temporal stores of parts of a cache line go row by row, so that the
  // line is complete soon: several rows and outputs have more lines begun than
  // there are write-combining buffers (one row each is 3 times as fast in the
  // second order of half).
  void ChooseStoreRows(int64_t row_bytes, LoopPlan* loop) {
    const bool past = loop->stores == StorePolicy::kNonTemporal;
    const bool few = past && !IsNarrow(request_.dtype);
    Why& why = plan_.store_rows_why;
    if (past && !Vectors().stores_fill_lines) {
      why = {Reason::kPartsOfLines, 1};
    } else if (past && HasAliasedRows(row_bytes)) {
      why = {Reason::kAliasedRows, 1, row_bytes};
    } else {
      why = RowsInStrip(row_bytes, few ? kMaxStoringRows : kMaxRowsPerStrip);
    }
    loop->store_rows = static_cast<int>(why.found);
  }

  // Whether rows are stored one by one because of where they lie. Not where a
  // vector is a cache line: with AVX-512 strips of several rows are 1.1 to 1.7
  // times as fast ([6272, 1024, 1] in float32, ADR 14).
  bool HasAliasedRows(int64_t row_bytes) const {
    return !Vectors().is_cache_line &&
           ShareAPageOffset(row_bytes, IsNarrow(request_.dtype));
  }

  void ChoosePacks(LoopPlan* loop) {
    if (!Vectors().has_packs) return;
    const int64_t rows = std::min<int64_t>(loop->store_rows, TileRows());
    loop->packs = rows >= kLeastPackedRows;
    plan_.packs_why = {loop->packs ? Reason::kPackedRows : Reason::kFewRows,
                       rows, kLeastPackedRows};
  }

  // Where strips that sum and store would go row by row, or to rows that are
  // far apart or alias. (With rows of 2 KiB one loop is 1.5 times as fast in
  // half; [32, 64, 784], whose rows lie 98 KiB apart, up to 2.7 times as slow;
  // with AVX-512 1.2 to 1.5 times as fast.) A mask would be computed twice:
  // 1.25 times as slow.
  void ChooseTwoLoops(int64_t row_bytes) {
    Why& why = plan_.two_loops_why;
    if (plan_.loops[0].stores != StorePolicy::kNonTemporal) {
      why = {Reason::kRowsReadOnce};
    } else if (!Vectors().sums_fill_lines) {
      why = {Reason::kPartsOfLines, 1};
    } else if (IsNarrow(request_.dtype) && !Vectors().is_cache_line &&
               row_bytes >= kPageBytes) {
      why = {Reason::kFarRows, row_bytes, kPageBytes};
    } else if (!IsNarrow(request_.dtype) && !request_.formula.has_mask &&
               HasAliasedRows(row_bytes)) {
      why = {Reason::kAliasedRows, 1, row_bytes};
    } else {
      why = {Reason::kRowsReadOnce};
    }
    plan_.loops[0].two_loops = why.reason != Reason::kRowsReadOnce;
  }

  const VectorTraits& Vectors() const { return request_.kernels->vectors; }

  void ChoosePrefetch() {
    const int64_t l2 = request_.caches.l2_bytes;
    if (plan_.pipeline != Pipeline::kNone) {
      plan_.prefetch[0] = PrefetchKind::kFixedDistance;
      plan_.prefetch_why[0].reason = Reason::kPipelined;
      plan_.prefetch[1] = plan_.pipeline == Pipeline::kPacked
                              ? PrefetchKind::kNone
                              : PrefetchKind::kFixedDistance;
      plan_.prefetch_why[1] = plan_.pipeline_why;
      return;
    }
    if (plan_.schedule == Schedule::kChannelGroups) {
      const int64_t bytes =
          InputBytes(plan_.group_channels * ElementsPerChannel(view_));
      PrefetchNext(plan_.groups, bytes);
      const bool resident = bytes <= l2;
      plan_.prefetches_for_second_pass =
          request_.formula.reduce_inputs < request_.formula.inputs;
      plan_.prefetch[1] =
          resident ? PrefetchKind::kNone : PrefetchKind::kFixedDistance;
      plan_.prefetch_why[1] = {!resident ? Reason::kExceedsL2
                               : plan_.prefetches_for_second_pass
                                   ? Reason::kPrefetchedByFirst
                                   : Reason::kL2Resident,
                               bytes, l2};
      return;
    }
    PrefetchNext(plan_.tiles_per_block, TileBytes());
    if (plan_.schedule == Schedule::kTwoPasses) {
      plan_.prefetch[1] = plan_.prefetch[0];
      plan_.prefetch_why[1] = plan_.prefetch_why[0];
    }
  }

  // The first pass, where `count` tiles or groups of `bytes` input bytes lie
  // side by side. The next one has other pieces of the same scattered rows and
  // is prefetched whole, so that memory is busy while this one is computed;
  // larger ones would evict each other.
  void PrefetchNext(int64_t count, int64_t bytes) {
    const int64_t most = request_.caches.l2_bytes / kPrefetchedTilesInL2;
    const bool next = count > 1 && bytes <= most;
    plan_.prefetch[0] =
        next ? PrefetchKind::kNextTile : PrefetchKind::kFixedDistance;
    plan_.prefetch_why[0] =
        count == 1
            ? Why{Reason::kWholeRows}
            : Why{next ? Reason::kSmallTile : Reason::kLargeTile, bytes, most};
  }

  // Rows of the largest tile; in kSegments of a channel of it at one outer
  // index.
  int64_t TileRows() const {
    const Partition& p = plan_.partition;
    return p.kind == Partition::kRows
               ? CeilDiv(CeilDiv(view_.outer, p.fold), p.outer_blocks)
               : CeilDiv(CeilDiv(view_.inner, kSegmentColumns), p.inner_blocks);
  }

  // Input bytes of the largest tile.
  int64_t TileBytes() const {
    const Partition& p = plan_.partition;
    const int64_t outer = std::min(
        view_.outer,
        CeilDiv(CeilDiv(view_.outer, p.fold), p.outer_blocks) * p.fold);
    const int64_t inner = std::min(
        view_.inner,
        CeilDiv(CeilDiv(view_.inner, kSegmentColumns), p.inner_blocks) *
            kSegmentColumns);
    return InputBytes(outer * plan_.tile_channels * inner);
  }

  int64_t TensorBytes() const {
    return (request_.formula.inputs + request_.formula.outputs) * elements_ *
           element_bytes_;
  }

  int64_t InputBytes(int64_t elements) const {
    return request_.formula.inputs * elements * element_bytes_;
  }

  // At most `channels`, so that, where possible, the rows of all tiles start at
  // a cache line when the tensor does: non-temporal stores need full lines. Or
  // else at a full vector.
  int64_t AlignChannels(int64_t channels) const {
    const int64_t columns = ColumnsPerChannel();
    for (const int64_t elements :
         {kCacheLineBytes / element_bytes_, kMaxLanes}) {
      const int64_t alignment = std::lcm(columns, elements) / columns;
      const int64_t aligned = channels / alignment * alignment;
      if (aligned * columns * element_bytes_ >= kMinRowBytes) return aligned;
    }
    return channels;
  }

  // Columns of a row that belong to one channel.
  int64_t ColumnsPerChannel() const {
    return plan_.partition.kind == Partition::kRows
               ? plan_.partition.fold * view_.inner
               : view_.inner;
  }

  Plan& plan_;  // In its place: a copy would be a percent of a small call.
  const PlanRequest& request_;
  const View& view_;
  const int64_t elements_, element_bytes_;
  const int64_t threads_;  // Offered, or 1 below the serial threshold.
};

}  // namespace

Plan MakePlan(const PlanRequest& request) {
  Plan plan;
  Planner(request, &plan).Choose();
  return plan;
}

}  // namespace tf_bn_ops
