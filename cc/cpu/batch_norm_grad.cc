// Schedules the tiles of a call over passes and threads.

#include "cc/cpu/batch_norm_grad.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cc/core/partition.h"
#include "cc/core/reference.h"
#include "cc/cpu/cache.h"

namespace tf_bn_ops {
namespace {

// Below this many elements a call runs on the calling thread: waking another
// one costs about as much as the work (10 to 40 microseconds).
constexpr int64_t kSerialElements = int64_t{1} << 15;

// Groups of channels start at a multiple of this many channels where possible,
// so that their rows start at a cache line when the tensor does (16 floats, 32
// halves).
constexpr int64_t kGroupAlignment = 32;

// Narrowest group worth its scattered rows, in bytes of one row: the hardware
// fetches memory in pairs of lines, and a page is opened for every row.
constexpr int64_t kMinGroupRowBytes = 512;

// A task takes this part of a thread's share of what is left: large ones first,
// for what a task begins with nobody asked for, and ever smaller ones, so that
// no thread waits long for the last one of another ...
constexpr int64_t kPartOfShare = 2;
// ... but not below this many elements, about ten microseconds of work.
constexpr int64_t kLeastTaskElements = int64_t{1} << 14;

// The private cache holds this many tiles or groups of channels of which one is
// worked on while another comes in: half of them are the results, and others
// use the cache, too. (In turns of random order groups of up to 256 KiB of 2
// MiB gained up to two percent, and larger ones nothing.)
constexpr int64_t kSmallGroups = 8;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One call of a formula.
template <typename F>
class Call {
 public:
  using Args = typename F::Args;

  Call(const Args& args, const Kernels<F>& kernels, Executor& threads,
       void* workspace)
      : args_(args),
        view_(args.view),
        partition_(MakePartition(args.view)),
        blocks_(NumBlocks(partition_)),
        threads_(NumElements(args.view) < kSerialElements ? no_threads_
                                                          : threads),
        widest_(WidestGroup()),
        groups_(CeilDiv(view_.channels, widest_)),
        kernels_(kernels),
        sums_(static_cast<double*>(workspace)),
        coefficients_(sums_ + F::kNumSums * view_.channels * blocks_) {
    const int64_t bytes =
        NumElements(view_) * static_cast<int64_t>(SizeOf(args.dtype));
    // Stores go around the cache when the tensors do not fit in it anyway,
    // except in place, where the line is in cache already.
    const auto tensors = F::TensorsOf(args);
    bool in_place = false;
    for (const void* out : tensors.out) {
      for (const void* in : tensors.in) in_place = in_place || out == in;
    }
    if (!in_place &&
        (F::kInputs + F::kOutputs) * bytes > LastLevelCacheBytes()) {
      store_policy_ = StorePolicy::kNonTemporal;
    }
  }

  void Run() {
    if (!args_.is_training) {
      // The results do not depend on the sums: one pass makes both.
      kernels_.coefficients(args_, 0, view_.channels, Sums(0), coefficients_);
      RunPhases(threads_, {OfTiles(&Call::Frozen), OfFinish()});
      return;
    }
    const int64_t group = GroupForOnePass();
    if (group > 0) {
      RunPhases(threads_, {OfGroups(group)});
      return;
    }
    // Backwards: what was read last is still in cache.
    RunPhases(threads_, {OfTiles(&Call::Reduce), OfFinish(),
                         OfTiles(&Call::Apply, Direction::kBackwards)});
  }

 private:
  struct TileRange {
    int64_t block, c0, c1;
  };
  enum class Direction { kForwards, kBackwards };

  // Tiles of the widest groups, those of a block next to each other.
  int64_t NumTiles() const { return blocks_ * groups_; }
  TileRange TileAt(int64_t t) const {
    const int64_t c0 = t % groups_ * widest_;
    return {t / groups_, c0, std::min(c0 + widest_, view_.channels)};
  }

  // Calls range(begin, end) for parts of [0, n), `elements` elements each, in
  // tasks of decreasing size.
  template <typename Range>
  Phase OfRanges(int64_t n, int64_t elements, Range range) const {
    const int64_t least = std::max<int64_t>(1, kLeastTaskElements / elements);
    std::vector<int64_t> cuts = {0};
    while (cuts.back() < n) {
      const int64_t left = n - cuts.back();
      const int64_t share = left / (kPartOfShare * threads_.NumThreads());
      cuts.push_back(cuts.back() + std::min(left, std::max(least, share)));
    }
    const auto tasks = static_cast<int64_t>(cuts.size()) - 1;
    return {tasks, [=, cuts = std::move(cuts)](int64_t task) {
              range(cuts[task], cuts[task + 1]);
            }};
  }

  // A pass over all tiles; backwards, the task with the last ones comes first.
  Phase OfTiles(void (Call::*pass)(const Tile&, int64_t block) const,
                Direction direction = Direction::kForwards) const {
    const int64_t tiles = NumTiles();
    return OfRanges(
        tiles, std::max<int64_t>(1, NumElements(view_) / tiles),
        [=](int64_t begin, int64_t end) {
          if (direction == Direction::kBackwards) {
            begin = tiles - std::exchange(end, tiles - begin);
          }
          for (int64_t t = begin; t < end; ++t) {
            const auto [b, c0, c1] = TileAt(t);
            Tile tile{BlockAt(view_, partition_, b), c0, c1};
            // Where rows are pieces that lie far apart, the next tile has
            // other pieces of the same rows.
            if (groups_ > 1 && t + 1 < end &&
                TileBytes(tile) <= PrivateCacheBytes() / kSmallGroups) {
              tile.prefetch_offset = First(t + 1) - First(t);
            }
            (this->*pass)(tile, b);
          }
        });
  }

  // Both passes over a group of channels at a time.
  Phase OfGroups(int64_t group) const {
    const int64_t groups = CeilDiv(view_.channels, group);
    // Small groups are asked for while the one before them is reduced, so that
    // memory is busy all the time. Larger ones would push each other out.
    const int64_t bytes = group * ChannelBytes();
    const bool ask_for_next = bytes <= PrivateCacheBytes() / kSmallGroups;
    const bool stays = bytes <= PrivateCacheBytes();
    return OfRanges(
        groups, group * ElementsPerChannel(view_),
        [=](int64_t begin, int64_t end) {
          for (int64_t g = begin; g < end; ++g) {
            const int64_t c0 = g * group;
            const int64_t c1 = std::min(c0 + group, view_.channels);
            Tile tile{{}, c0, c1};
            if (ask_for_next && g + 1 < end && c1 + group <= view_.channels) {
              tile.prefetch_offset = group * view_.inner;
            }
            for (int64_t b = 0; b < blocks_; ++b) {
              tile.block = BlockAt(view_, partition_, b);
              Reduce(tile, b);
            }
            Finish(c0, c1);
            tile.prefetch_offset = 0;
            tile.l2_resident = stays;
            // Backwards: what was read last is still in the nearest cache.
            for (int64_t b = blocks_ - 1; b >= 0; --b) {
              tile.block = BlockAt(view_, partition_, b);
              Apply(tile, b);
            }
          }
        });
  }

  Phase OfFinish() const {
    return {groups_, [=](int64_t g) {
              const auto [unused, c0, c1] = TileAt(g);
              Finish(c0, c1);
            }};
  }

  // The first element of a tile.
  int64_t First(int64_t t) const {
    const auto [b, c0, unused] = TileAt(t);
    const Block block = BlockAt(view_, partition_, b);
    return (block.o0 * view_.channels + c0) * view_.inner + block.i0;
  }

  // What a pass reads of a tile.
  int64_t TileBytes(const Tile& tile) const {
    return F::kInputs * (tile.block.o1 - tile.block.o0) * (tile.c1 - tile.c0) *
           (tile.block.i1 - tile.block.i0) *
           static_cast<int64_t>(SizeOf(args_.dtype));
  }

  // What both passes read of one channel.
  int64_t ChannelBytes() const {
    return F::kInputs * ElementsPerChannel(view_) *
           static_cast<int64_t>(SizeOf(args_.dtype));
  }

  int64_t ColumnsPerChannel() const {
    return partition_.kind == Partition::kRows ? partition_.fold * view_.inner
                                               : view_.inner;
  }

  // Channels of a tile: as many as it may cover, or fewer if there would not be
  // enough tiles for all threads.
  int64_t WidestGroup() const {
    const int64_t wanted = CeilDiv(2 * threads_.NumThreads(), blocks_);
    const int64_t fair = CeilDiv(view_.channels, wanted);
    if (partition_.kind == Partition::kRuns) {
      // Any number is allowed; whole cache-sized groups of short channels keep
      // tasks from being tiny.
      const int64_t most = kSerialElements / ElementsPerChannel(view_);
      return std::max<int64_t>(1, std::min(most, fair));
    }
    if (partition_.fold > 1) return view_.channels;
    const int64_t row_bytes =
        ColumnsPerChannel() * static_cast<int64_t>(SizeOf(args_.dtype));
    const int64_t group =
        std::min(kMaxRowColumns / ColumnsPerChannel(),
                 std::max(fair, CeilDiv(kMinGroupRowBytes, row_bytes)));
    return group >= kGroupAlignment ? group / kGroupAlignment * kGroupAlignment
                                    : std::max<int64_t>(group, 1);
  }

  // Channels in a group whose tensors stay in cache between the two passes, so
  // that one task can make both and memory is read once; 0 if there is no such
  // group or too few of them to keep all threads busy. Channels-last there is
  // none: to read a part of every row is slower than to read all rows twice.
  int64_t GroupForOnePass() const {
    if (view_.inner == 1) return 0;
    const int64_t threads = threads_.NumThreads();
    // Half of a thread's share of the cache: others use it too.
    const int64_t budget =
        std::max(PrivateCacheBytes(), LastLevelCacheBytes() / threads) / 2;
    int64_t group = std::min(widest_, budget / ChannelBytes());
    if (threads == 1 && group >= view_.channels) return view_.channels;
    group = std::min(group, view_.channels / (2 * threads));
    if (group >= kGroupAlignment)
      group = group / kGroupAlignment * kGroupAlignment;
    if (partition_.fold > 1 && group < view_.channels) return 0;
    const int64_t row_bytes =
        group * ColumnsPerChannel() * static_cast<int64_t>(SizeOf(args_.dtype));
    return row_bytes >= kMinGroupRowBytes ? group : 0;
  }

  ChannelSums Sums(int64_t b) const {
    return ChannelSums{sums_ + F::kNumSums * view_.channels * b,
                       view_.channels};
  }

  void Reduce(const Tile& tile, int64_t b) const {
    kernels_.reduce(args_, partition_, tile, Sums(b));
  }
  void Apply(const Tile& tile, int64_t) const {
    kernels_.apply(args_, partition_, tile, coefficients_, store_policy_);
  }
  void Frozen(const Tile& tile, int64_t b) const {
    kernels_.frozen(args_, partition_, tile, coefficients_, store_policy_, Sums(b));
  }

  // Adds the blocks up, in their order, into those of block 0, and makes of
  // them the coefficients and the small outputs.
  void Finish(int64_t c0, int64_t c1) const {
    const int num_sums = args_.is_training ? F::kNumSums : F::kNumFrozenSums;
    const ChannelSums total = Sums(0);
    for (int64_t b = 1; b < blocks_; ++b) {
      for (int k = 0; k < num_sums; ++k) {
        const double* const part = SumsOf(Sums(b), k);
        double* const sum = SumsOf(total, k);
        for (int64_t c = c0; c < c1; ++c) sum[c] += part[c];
      }
    }
    if (args_.is_training) {
      kernels_.coefficients(args_, c0, c1, total, coefficients_);
    }
    for (int64_t c = c0; c < c1; ++c) StoreSums(total, c);
  }

  // Writes the outputs of channel c that are sums.
  void StoreSums(const ChannelSums& total, int64_t c) const {
    double sums[F::kNumSums];
    if (args_.is_training) {
      LoadSums<F::kNumSums>(total, c, sums);
    } else {
      LoadSums<F::kNumFrozenSums>(total, c, sums);
    }
    F::StoreSums(args_, c, CenterAt(F::CentersOf(args_), c), sums);
  }

  const Args& args_;
  const View& view_;
  const Partition partition_;
  const int64_t blocks_;
  InlineExecutor no_threads_;
  Executor& threads_;
  const int64_t widest_;  // Channels in a tile, at most.
  const int64_t groups_;  // Tiles side by side.
  const Kernels<F>& kernels_;
  double* const sums_;        // [blocks][F::kNumSums][channels]
  void* const coefficients_;  // [F::kNumCoefficients][CoefficientStride]
  StorePolicy store_policy_ = StorePolicy::kTemporal;
};

template <typename F>
size_t Workspace(const View& view) {
  const int64_t sums =
      F::kNumSums * NumBlocks(MakePartition(view)) * view.channels;
  const int64_t coefficients =
      F::kNumCoefficients * CoefficientStride(view.channels);
  return static_cast<size_t>(sums + coefficients) * sizeof(double);
}

// `kernels` may be nullptr: the reference.
template <typename F>
void Run(const typename F::Args& args, const KernelTable<F>* kernels,
         void (*reference)(const typename F::Args&), Executor& threads,
         void* workspace) {
  if (NumElements(args.view) == 0) {
    for (int64_t c = 0; c < args.view.channels; ++c) F::StoreEmpty(args, c);
  } else if (kernels == nullptr) {
    reference(args);
  } else {
    Call<F>(args, kernels->by_dtype[static_cast<int>(args.dtype)], threads, workspace).Run();
  }
}

}  // namespace

size_t CpuBatchNormGradWorkspace(const View& view) {
  return Workspace<BatchNormGradFormula>(view);
}

size_t CpuBatchNormGradGradWorkspace(const View& view) {
  return Workspace<BatchNormGradGradFormula>(view);
}

void CpuBatchNormGrad(const BatchNormGradArgs& args,
                      const Implementation& implementation, Executor& threads,
                      void* workspace) {
  Run(args, implementation.first_order, ReferenceBatchNormGrad, threads,
      workspace);
}

void CpuBatchNormGradGrad(const BatchNormGradGradArgs& args,
                          const Implementation& implementation,
                          Executor& threads, void* workspace) {
  Run(args, implementation.second_order, ReferenceBatchNormGradGrad, threads,
      workspace);
}

}  // namespace tf_bn_ops
