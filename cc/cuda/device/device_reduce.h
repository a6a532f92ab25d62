// The reduce kernel: partial sums per split, and for frozen statistics the
// outputs of view shape in the same pass.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_REDUCE_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_REDUCE_H_

#include <cstdint>

#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/cuda/device/device_apply.h"
#include "cc/cuda/device/device_loop.h"
#include "cc/cuda/device/device_sums.h"
#include "cc/cuda/device/device_tree_reduction.h"
#include "cc/cuda/device/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Shared memory of a block. kSums: those of Formula that are computed, the
// first ones. kFused: the apply is fused into the reduction, where frozen
// statistics make its coefficients independent of the sums.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          int kSums>
struct ReduceShared {
  static constexpr int kVector = VectorTraits<T>::kVector;
  static constexpr int kSlices = kChannelsLast ? SlicesOf(kVector, kSums) : 1;
  // Sums per thread: for every column of its slice, or for its channel.
  static constexpr int kColumns = kChannelsLast ? kVector / kSlices : 1;
  // Coefficients that are known before the sums: the frozen ones of the apply,
  // or those of the mask alone.
  static constexpr int kFirstKnown = kFused
                                         ? int{Formula::kFirstFrozenCoefficient}
                                         : int{Formula::kFirstMaskCoefficient};
  static constexpr int kKnown = Formula::kNumCoefficients - kFirstKnown;
  static_assert(kKnown == 0 || kSlices == 1, "threads would need an offset");
  static_assert(kSlices <= 4, "slices are whole words");

  double sums[kSums * kColumns][kThreads];
  // Of the columns of the tile, see IndexInTile.
  Compute<T> center[kTileElements];
  Compute<T> known[kKnown > 0 ? kKnown : 1][kTileElements];
};

// Computes what threads need of their columns, once per column of the tile: the
// center, which is in memory, and the known coefficients, whose square root and
// division in double are too slow to repeat in every thread.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          int kSums, typename Block>
TFBN_HD void PrepareColumns(
    const KernelParams<Formula>& params, Block& block,
    ReduceShared<Formula, T, kChannelsLast, kFused, kSums>* shared) {
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused, kSums>;
  const LaunchConfig& config = params.config;
  auto args = params.args;
  // A constant, so that no code of training remains.
  if (kFused) args.is_training = false;
  block.ForEachThread([&](int t) {
    constexpr int kVector = Shared::kVector;
    const int width = TileWidth<T, kChannelsLast>(config);
    const int64_t column = config.TileOf(block.Index()) * width + t;
    if (t >= width || column >= config.Columns()) return;
    const int64_t c = config.ChannelOf(column);
    const int at = IndexInTile<T, kChannelsLast>(t / kVector, t, t % kVector);
    const double center = CenterAt(Formula::CentersOf(args), c);
    shared->center[at] = static_cast<Compute<T>>(RunCenter(args.dtype, center));
    if constexpr (Shared::kKnown > 0) {
      Compute<T> k[Formula::kNumCoefficients];
      if constexpr (kFused) {
        const double no_sums[Formula::kNumSums] = {};
        Formula::Finish(args, c, center, no_sums, k);
      }
      if constexpr (kHasMask<Formula>) Formula::FinishMask(args, c, k);
      TFBN_UNROLL
      for (int i = 0; i < Shared::kKnown; ++i) {
        shared->known[i][at] = k[Shared::kFirstKnown + i];
      }
    }
  });
}

// The elements of slice `slice` of kSlices, before the others. Constant indices
// keep the vector in registers.
template <int kSlices>
TFBN_HD Words SliceOf(const Words& v, int slice) {
  constexpr int kWords = 4 / kSlices;
  Words part = v;
  TFBN_UNROLL
  for (int s = 1; s < kSlices; ++s) {
    TFBN_UNROLL
    for (int i = 0; i < kWords; ++i) {
      part.word[i] = s == slice ? v.word[s * kWords + i] : part.word[i];
    }
  }
  return part;
}

// The center and the known coefficients of the columns of a thread.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          int kSums>
class KnownOfColumns {
 public:
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused, kSums>;
  using Coefficients =
      ColumnCoefficients<Formula, T, kChannelsLast, Shared::kFirstKnown,
                         kMaxHeldBesideSums>;
  static constexpr int kColumns = Shared::kColumns;
  // 32-bit registers.
  static constexpr int kHeld =
      kColumns * int{sizeof(Compute<T>) / 4} + Coefficients::kHeld;

  TFBN_HD KnownOfColumns(const Shared* shared,
                         const BlockStrideLoop<T, kChannelsLast>& loop,
                         int first)
      : coefficients_(shared->known, loop),
        centers_(&shared->center[IndexInTile<T, kChannelsLast>(
            loop.x(), loop.y(), first)]) {
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) center_[e] = centers_[e];
  }

  TFBN_HD Compute<T> Center(int e) const {
    // Volatile, see ColumnCoefficients: a fused kernel, or one of many sums,
    // has no registers left.
    return (kFused && kChannelsLast) || kSums > 2
               ? *static_cast<const volatile Compute<T>*>(
                     &centers_[kChannelsLast ? e : 0])
               : center_[kChannelsLast ? e : 0];
  }
  TFBN_HD void Load(int e, Compute<T> (&k)[Formula::kNumCoefficients]) const {
    coefficients_.Load(e, k);
  }

 private:
  const Coefficients coefficients_;
  const Compute<T>* const centers_;
  Compute<T> center_[kColumns];
};

// The reduction of one thread, whose items' vectors ForEachItem passes on.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          int kSums>
class ThreadReduction {
 public:
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused, kSums>;
  using Loop = BlockStrideLoop<T, kChannelsLast>;
  static constexpr int kColumns = Shared::kColumns;
  static constexpr int kSlices = Shared::kSlices;
  static constexpr int kVector = Shared::kVector;
  // Tensors that are read.
  static constexpr int kCount =
      kFused ? int{Formula::kInputs} : int{Formula::kNumReduceInputs};
  using Sums = ThreadSums<Formula, T, kChannelsLast, kColumns, kSums>;
  using Known = KnownOfColumns<Formula, T, kChannelsLast, kFused, kSums>;
  // 32-bit registers: runs or sums, and what is known. Masks, and the results
  // of a fused apply, need what is left.
  static constexpr int kHeld =
      kFused || kHasMask<Formula>
          ? kHeldRegisters
          : kColumns * kSums * int{sizeof(Compute<T>) / 4} + Known::kHeld;
  // Whether sums of a group may have to be added again, which in place its
  // results must not precede.
  static constexpr bool kReadsAgain = kFused && Sums::kMayOverflow;

  TFBN_HD ThreadReduction(const KernelParams<Formula>& params, const Loop& loop,
                          int thread, Shared* shared)
      : sums_(shared->sums, thread),
        slice_(kSlices > 1 ? loop.y() : 0),
        known_(shared, loop, slice_ * kColumns),
        writer_(Formula::TensorsOf(params.args).out, 0) {}

  // Adds the items of a group, and stores their frozen results. In place these
  // must not precede sums that may have to be added again: a second pass stores
  // them then, whose loads L1 or L2 answers. As a loop, the two passes are one
  // code of few registers.
  template <typename Loader>
  TFBN_HD void AddGroup(const KernelParams<Formula>& params, const Loop& loop,
                        const Loader& loader) {
    sums_.BeginGroup();
    if constexpr (kReadsAgain) {
      const int last = params.in_place ? 1 : 0;
      TFBN_NO_UNROLL
      for (int pass = 0; pass <= last; ++pass) {
        Pass(params, loop, loader, pass == 0, pass == last);
        if (pass == 0) EndGroup(loop, loader);
      }
    } else {
      Pass(params, loop, loader, true, true);
      EndGroup(loop, loader);
    }
  }

  TFBN_HD auto& sums() { return sums_; }

 private:
  template <typename Loader>
  TFBN_HD void Pass(const KernelParams<Formula>& params, const Loop& loop,
                    const Loader& loader, bool adds, bool applies) {
    const int count = adds ? kCount : int{Formula::kNumFrozenInputs};
    const bool in_place = kFused && params.in_place;
    ForEachItem<kHeld>(params.config, loop, loader, count, in_place,
                       [&](auto is_masked, int i, bool present,
                           const VectorSlot& slot, const auto& in) {
                         if (adds) {
                           Words part[kCount];
                           Slice(in, part);
                           const int first = slice_ * kColumns;
                           sums_.template Add<is_masked.value>(
                               i, present, slot.begin - first, slot.end - first,
                               part, known_);
                         }
                         if constexpr (kFused) {
                           if (applies && present) {
                             ApplyVector<Formula, T, is_masked.value>(
                                 false, slot, in, known_, writer_);
                           }
                         }
                       });
  }

  template <typename Loader>
  TFBN_HD void EndGroup(const Loop& loop, const Loader& loader) {
    if (!sums_.EndGroup(loop.GroupItems())) AddGroupAgain(loop, loader);
  }

  // Adds the group up in double.
  template <typename Loader>
  TFBN_HD void AddGroupAgain(const Loop& loop, const Loader& loader) {
    typename Loop::MaskedItems items(loop);
    const int first = slice_ * kColumns;
    TFBN_NO_UNROLL
    for (int i = 0; i < loop.GroupItems(); ++i) {
      const VectorSlot slot = items.Next();
      if (!slot.Present()) continue;
      Words words[kCount], part[kCount];
      if constexpr (kChannelsLast) {
        loader.LoadOwned(slot, kCount, words);
        Slice(words, part);
        sums_.AddAgain(slot.begin - first, slot.end - first, part, known_);
      } else {
        // One by one: this loop should occupy no register of the fast one.
        TFBN_NO_UNROLL
        for (int e = slot.begin; e < slot.end; ++e) {
          const int64_t byte = slot.byte + e * int64_t{sizeof(T)};
          loader.LoadOwned(VectorSlot{byte, 0, 1}, kCount, words);
          sums_.AddAgain(0, 1, words, known_);
        }
      }
    }
  }

  TFBN_HD void Slice(const Words (&in)[kCount], Words (&part)[kCount]) const {
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) part[i] = SliceOf<kSlices>(in[i], slice_);
  }

  Sums sums_;
  const int slice_;
  const Known known_;
  const VectorWriter<T, Formula::kOutputs> writer_;
};

// The sums of thread `t` over its items, left in shared memory.
template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          bool kFused, int kSums>
TFBN_HD void ReduceThread(
    const KernelParams<Formula>& params, int64_t block, int t,
    ReduceShared<Formula, T, kChannelsLast, kFused, kSums>* shared) {
  using Reduction = ThreadReduction<Formula, T, kChannelsLast, kFused, kSums>;
  BlockStrideLoop<T, kChannelsLast> loop(params.config, block, t);
  Reduction reduction(params, loop, t, shared);
  if (loop.Active()) {
    const VectorLoader<T, Reduction::kCount, kAligned, kFused> loader(
        Formula::TensorsOf(params.args).in, 0);
    for (; !loop.Done(); loop.NextGroup()) {
      reduction.AddGroup(params, loop, loader);
    }
  }
  reduction.sums().Finish();
}

// The sums of the block, one per column or channel and sum.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          int kSums, typename Block>
TFBN_HD void StorePartialSums(
    const KernelParams<Formula>& params, Block& block,
    ReduceShared<Formula, T, kChannelsLast, kFused, kSums>* shared) {
  constexpr int kColumns =
      ReduceShared<Formula, T, kChannelsLast, kFused, kSums>::kColumns;
  const LaunchConfig& config = params.config;
  block.LastPhase([&](int t) {
    const BlockStrideLoop<T, kChannelsLast> loop(config, block.Index(), t);
    if (!loop.Active() || loop.z() != 0 || (!kChannelsLast && loop.x() != 0)) {
      return;
    }
    const int64_t split = config.SplitOf(block.Index());
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      const int64_t column =
          kChannelsLast ? loop.Column(loop.y() * kColumns + e) : loop.Channel();
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        params.partial_sums[(s * config.splits + split) * config.Columns() +
                            column] = shared->sums[s * kColumns + e][t];
      }
    }
  });
}

template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          bool kFused, int kSums, typename Block>
TFBN_HD void Reduce(
    const KernelParams<Formula>& params, Block& block,
    ReduceShared<Formula, T, kChannelsLast, kFused, kSums>* shared) {
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused, kSums>;
  constexpr int kColumns = Shared::kColumns;
  const LaunchConfig& config = params.config;
  PrepareColumns(params, block, shared);
  block.ForEachThread([&](int t) {
    ReduceThread<Formula, T, kChannelsLast, kAligned>(params, block.Index(), t,
                                                      shared);
  });

  const int threads_x = config.threads_x;
  const int threads_xy = threads_x * config.threads_y;
  TreeReduce<kSums * kColumns>(block, shared->sums, config.threads_z,
                               threads_xy, threads_xy * config.threads_z,
                               [=](int t) { return t / threads_xy; });
  if (!kChannelsLast) {
    TreeReduce<kSums * kColumns>(block, shared->sums, threads_x, 1, threads_xy,
                                 [=](int t) { return t % threads_x; });
  }
  StorePartialSums(params, block, shared);
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_REDUCE_H_
