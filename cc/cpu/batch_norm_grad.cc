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

// Tasks of a thread where each makes both passes: enough that a slow thread
// does not hold up the others for long.
constexpr int64_t kTasksPerThread = 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- What depends on the order of the gradient ------------------------------

// Writes the outputs of channel c that are sums.
void StoreSums(const BatchNormGradArgs& args, const ChannelSums& sums,
               int64_t c) {
  StoreFromDouble(args.stat_dtype, args.offset_backprop, c,
                  SumsOf(sums, FirstOrder::kDySum)[c]);
  StoreFromDouble(args.stat_dtype, args.scale_backprop, c,
                  Rstd(args, c) * SumsOf(sums, FirstOrder::kDyXmuSum)[c]);
}

// The same for a channel without elements.
void StoreEmptySums(const BatchNormGradArgs& args, int64_t c) {
  StoreFromDouble(args.stat_dtype, args.offset_backprop, c, 0);
  StoreFromDouble(args.stat_dtype, args.scale_backprop, c, 0);
}

void StoreSums(const BatchNormGradGradArgs& args, const ChannelSums& sums,
               int64_t c) {
  // Frozen there are no other sums, and x may have been overwritten.
  const bool training = args.is_training;
  const BatchNormGradGradSums all =
      training ? SumsAt(sums, c)
               : BatchNormGradGradSums{SumsOf(sums, SecondOrder::kGxDySum)[c]};
  const double center = training ? CenterOf(args, c) : 0;
  StoreFromDouble(args.stat_dtype, args.scale_grad, c,
                  ChannelOf(args, c, center, all).scale_grad);
}

void StoreEmptySums(const BatchNormGradGradArgs& args, int64_t c) {
  StoreFromDouble(args.stat_dtype, args.scale_grad, c, 0);
}

// ---- What does not ----------------------------------------------------------

// One call for a gradient of the given order (see kernels.h).
template <typename Order>
class Call {
 public:
  using Args = typename Order::Args;

  Call(const Args& args, const Kernels<Order>& kernels, Threads& threads,
       void* workspace)
      : args_(args),
        view_(args.view),
        partition_(MakePartition(args.view)),
        blocks_(NumBlocks(partition_)),
        widest_(WidestGroup()),
        groups_(CeilDiv(view_.channels, widest_)),
        reduce_(kernels.reduce[static_cast<int>(args.dtype)]),
        coefficients_of_(kernels.coefficients[static_cast<int>(args.dtype)]),
        apply_(kernels.apply[static_cast<int>(args.dtype)]),
        threads_(NumElements(args.view) < kSerialElements ? no_threads_
                                                          : threads),
        sums_(static_cast<double*>(workspace)),
        coefficients_(sums_ + Order::kNumSums * view_.channels * blocks_) {
    const int64_t bytes =
        NumElements(view_) * static_cast<int64_t>(SizeOf(args.dtype));
    // Stores go around the cache when the tensors do not fit in it anyway,
    // except in place, where the line is in cache already.
    stream_ =
        (Order::kInputs + Order::kOutputs) * bytes > LastLevelCacheBytes();
    const auto tensors = TensorsOf(args);
    for (const void* out : tensors.out) {
      for (const void* in : tensors.in) stream_ = stream_ && out != in;
    }
  }

  void Run() {
    // Frozen, the result does not depend on the sums: each tile is applied
    // while its data is in cache from being reduced.
    const bool frozen = !args_.is_training;
    if (frozen) {
      coefficients_of_(args_, 0, view_.channels, Sums(0), coefficients_);
    }
    const int64_t group = GroupForOnePass();
    if (group > 0) {
      // A task takes several neighbouring groups, so that it can ask for the
      // next one's data while it works on what is in cache.
      const int64_t groups = CeilDiv(view_.channels, group);
      const int64_t per_task =
          std::max<int64_t>(1, groups / (kTasksPerThread * threads_.Count()));
      const auto both_passes = [&](int64_t task) {
        const int64_t end = std::min(groups, (task + 1) * per_task);
        for (int64_t g = task * per_task; g < end; ++g) {
          const int64_t c0 = g * group;
          const int64_t c1 = std::min(c0 + group, view_.channels);
          const bool ask_ahead = g + 1 < end && c1 + group <= view_.channels &&
                                 group * ChannelBytes() <= PrivateCacheBytes();
          const int64_t next = ask_ahead ? group * view_.inner : 0;
          for (int64_t b = 0; b < blocks_; ++b) {
            Reduce(b, c0, c1);
            if (frozen) Apply(b, c0, c1, next);
          }
          Finish(c0, c1);
          if (frozen) continue;
          // Backwards: what was read last is still in the nearest cache.
          for (int64_t b = blocks_ - 1; b >= 0; --b) Apply(b, c0, c1, next);
        }
      };
      ParallelFor(threads_, {{CeilDiv(groups, per_task), both_passes}});
      return;
    }
    const auto reduce = [&](int64_t t) {
      const auto [b, c0, c1] = TileAt(t);
      Reduce(b, c0, c1);
      if (frozen) Apply(b, c0, c1);
    };
    const auto finish = [&](int64_t g) {
      const auto [unused, c0, c1] = TileAt(g);
      Finish(c0, c1);
    };
    const auto apply = [&](int64_t t) {
      // Backwards: what was read last is still in cache.
      const auto [b, c0, c1] = TileAt(NumTiles() - 1 - t);
      Apply(b, c0, c1);
    };
    std::vector<Phase> phases = {{NumTiles(), reduce}, {groups_, finish}};
    if (!frozen) phases.push_back({NumTiles(), apply});
    ParallelFor(threads_, std::move(phases));
  }

 private:
  struct TileRange {
    int64_t block, c0, c1;
  };

  // Tiles of the widest groups, those of a block next to each other.
  int64_t NumTiles() const { return blocks_ * groups_; }
  TileRange TileAt(int64_t t) const {
    const int64_t c0 = t % groups_ * widest_;
    return {t / groups_, c0, std::min(c0 + widest_, view_.channels)};
  }

  // What both passes read of one channel.
  int64_t ChannelBytes() const {
    return Order::kInputs * ElementsPerChannel(view_) *
           static_cast<int64_t>(SizeOf(args_.dtype));
  }

  int64_t ColumnsPerChannel() const {
    return partition_.kind == Partition::kRows ? partition_.fold * view_.inner
                                               : view_.inner;
  }

  // Most channels that one tile may cover.
  int64_t WidestGroup() const {
    if (partition_.kind == Partition::kRuns) {
      // Any number is allowed; whole cache-sized groups of short channels keep
      // tasks from being tiny.
      return std::max<int64_t>(1, kSerialElements / ElementsPerChannel(view_));
    }
    if (partition_.fold > 1) return view_.channels;
    const int64_t most = kMaxColumns / ColumnsPerChannel();
    return most >= kGroupAlignment ? most / kGroupAlignment * kGroupAlignment
                                   : std::max<int64_t>(most, 1);
  }

  // Channels in a group whose tensors stay in cache between the two passes, so
  // that one task can make both and memory is read once; 0 if there is no such
  // group or too few of them to keep all threads busy. Channels-last there is
  // none: to read a part of every row is slower than to read all rows twice.
  int64_t GroupForOnePass() const {
    if (view_.inner == 1) return 0;
    const int64_t threads = threads_.Count();
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
    return ChannelSums{sums_ + Order::kNumSums * view_.channels * b,
                       view_.channels};
  }

  void Reduce(int64_t b, int64_t c0, int64_t c1) const {
    reduce_(args_, partition_, Tile{BlockAt(view_, partition_, b), c0, c1},
            Sums(b));
  }

  void Apply(int64_t b, int64_t c0, int64_t c1, int64_t next = 0) const {
    apply_(args_, partition_, Tile{BlockAt(view_, partition_, b), c0, c1, next},
           coefficients_, stream_);
  }

  // Adds the blocks up, in their order, into those of block 0, and makes of
  // them the coefficients and the small outputs.
  void Finish(int64_t c0, int64_t c1) const {
    const int num_sums =
        args_.is_training ? Order::kNumSums : Order::kNumFrozenSums;
    const ChannelSums total = Sums(0);
    for (int64_t b = 1; b < blocks_; ++b) {
      for (int k = 0; k < num_sums; ++k) {
        const double* const part = SumsOf(Sums(b), k);
        double* const sum = SumsOf(total, k);
        for (int64_t c = c0; c < c1; ++c) sum[c] += part[c];
      }
    }
    if (args_.is_training) {
      coefficients_of_(args_, c0, c1, total, coefficients_);
    }
    for (int64_t c = c0; c < c1; ++c) StoreSums(args_, total, c);
  }

  const Args& args_;
  const View& view_;
  const Partition partition_;
  const int64_t blocks_;
  const int64_t widest_;  // Channels in a tile, at most.
  const int64_t groups_;  // Tiles side by side.
  const typename Kernels<Order>::Reduce reduce_;
  const typename Kernels<Order>::Coefficients coefficients_of_;
  const typename Kernels<Order>::Apply apply_;
  NoThreads no_threads_;
  Threads& threads_;
  double* const sums_;        // [blocks][Order::kNumSums][channels]
  void* const coefficients_;  // [Order::kNumCoefficients][CoefficientStride]
  bool stream_ = false;
};

template <typename Order>
size_t Workspace(const View& view) {
  const int64_t sums =
      Order::kNumSums * NumBlocks(MakePartition(view)) * view.channels;
  const int64_t coefficients =
      Order::kNumCoefficients * CoefficientStride(view.channels);
  return static_cast<size_t>(sums + coefficients) * sizeof(double);
}

// `kernels` may be nullptr: the reference.
template <typename Order>
void Run(const typename Order::Args& args, const Kernels<Order>* kernels,
         void (*reference)(const typename Order::Args&), Threads& threads,
         void* workspace) {
  if (NumElements(args.view) == 0) {
    for (int64_t c = 0; c < args.view.channels; ++c) StoreEmptySums(args, c);
  } else if (kernels == nullptr) {
    reference(args);
  } else {
    Call<Order>(args, *kernels, threads, workspace).Run();
  }
}

}  // namespace

size_t CpuBatchNormGradWorkspace(const View& view) {
  return Workspace<FirstOrder>(view);
}

size_t CpuBatchNormGradGradWorkspace(const View& view) {
  return Workspace<SecondOrder>(view);
}

void CpuBatchNormGrad(const BatchNormGradArgs& args,
                      const Implementation& implementation, Threads& threads,
                      void* workspace) {
  Run(args, implementation.first_order, ReferenceBatchNormGrad, threads,
      workspace);
}

void CpuBatchNormGradGrad(const BatchNormGradGradArgs& args,
                          const Implementation& implementation,
                          Threads& threads, void* workspace) {
  Run(args, implementation.second_order, ReferenceBatchNormGradGrad, threads,
      workspace);
}

}  // namespace tf_bn_ops
