// The reduce kernel: partial sums per split, and for frozen statistics the
// outputs of view shape in the same pass.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_REDUCE_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_REDUCE_H_

#include <cstdint>

#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/cuda/device_apply.h"
#include "cc/cuda/device_loop.h"
#include "cc/cuda/device_sums.h"
#include "cc/cuda/device_tree_reduction.h"
#include "cc/cuda/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Shared memory of a block. kFused: the apply is fused into the reduction,
// where frozen statistics make its coefficients independent of the sums.
template <typename Formula, typename T, bool kChannelsLast, bool kFused>
struct ReduceShared {
  // Sums per thread: for every column of its vector, or for its channel.
  static constexpr int kColumns = kChannelsLast ? VectorTraits<T>::kVector : 1;
  static constexpr int kSums =
      kFused ? int{Formula::kNumFrozenSums} : int{Formula::kNumSums};
  static constexpr int kFrozenCoefficients =
      Formula::kNumCoefficients - Formula::kFirstFrozenCoefficient;

  double sums[kSums * kColumns][kThreads];
  // Of every column or channel of the tile.
  Compute<T> center[kThreads];
  Compute<T> frozen[kFused ? kFrozenCoefficients : 1][kThreads];
};

// What a thread needs of the channels of its columns, computed or loaded once
// per column of the tile: the center and the frozen coefficients, whose square
// root and division in double are too slow to repeat in every thread.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          typename Block>
TFBN_HD void PrepareColumns(
    const KernelParams<Formula>& params, Block& block,
    ReduceShared<Formula, T, kChannelsLast, kFused>* shared) {
  const LaunchConfig& config = params.config;
  block.ForEachThread([&](int t) {
    const int width = kChannelsLast
                          ? config.threads_x * VectorTraits<T>::kVector
                          : config.threads_y;
    const int64_t column = config.TileOf(block.Index()) * width + t;
    if (t >= width || column >= config.Columns()) return;
    const int64_t c = config.ChannelOf(column);
    const double center = CenterAt(Formula::CentersOf(params.args), c);
    shared->center[t] =
        static_cast<Compute<T>>(RunCenter(params.args.dtype, center));
    if constexpr (kFused) {
      auto args = params.args;
      args.is_training = false;  // A constant: no code of training remains.
      const double no_sums[Formula::kNumSums] = {};
      Compute<T> k[Formula::kNumCoefficients];
      Formula::Finish(args, c, center, no_sums, k);
      TFBN_UNROLL
      for (int i = Formula::kFirstFrozenCoefficient;
           i < Formula::kNumCoefficients; ++i) {
        shared->frozen[i - Formula::kFirstFrozenCoefficient][t] = k[i];
      }
    }
  });
}

// Adds the group of items up in double.
template <typename Sums, typename T, bool kChannelsLast, typename Loader,
          int kColumns>
TFBN_HD void AddGroupAgain(const BlockStrideLoop<T, kChannelsLast>& loop,
                           const Loader& loader,
                           const Compute<T> (&center)[kColumns], Sums* sums) {
  typename BlockStrideLoop<T, kChannelsLast>::MaskedItems items(loop);
  TFBN_NO_UNROLL
  for (int i = 0; i < loop.GroupItems(); ++i) {
    const VectorSlot slot = items.Next();
    if (!slot.Present()) continue;
    Words words[Loader::kTensors];
    loader.LoadOwned(slot, Loader::kTensors, words);
    sums->AddAgain(slot.begin, slot.end, words, center);
  }
}

// The sums of thread `t` over its items, left in shared memory.
template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          bool kFused>
TFBN_HD void ReduceThread(
    const KernelParams<Formula>& params, int64_t block, int t,
    ReduceShared<Formula, T, kChannelsLast, kFused>* shared) {
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused>;
  using Loop = BlockStrideLoop<T, kChannelsLast>;
  constexpr int kColumns = Shared::kColumns, kSums = Shared::kSums;
  constexpr int kVector = VectorTraits<T>::kVector;
  constexpr int kCount = Formula::kNumReduceInputs;
  // Registers per column: runs, center, frozen coefficients.
  constexpr int kHeld =
      kColumns * (kSums + 1 + (kFused ? Shared::kFrozenCoefficients : 0));
  ThreadSums<Formula, T, kColumns, kSums> sums(shared->sums, t);
  Loop loop(params.config, block, t);
  if (loop.Active()) {
    const auto tensors = Formula::TensorsOf(params.args);
    Compute<T> center[kColumns];
    Compute<T> k[kColumns][Formula::kNumCoefficients];
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      const int column = kChannelsLast ? loop.x() * kColumns + e : loop.y();
      center[e] = shared->center[column];
      if constexpr (kFused) {
        TFBN_UNROLL
        for (int i = 0; i < Shared::kFrozenCoefficients; ++i) {
          k[e][Formula::kFirstFrozenCoefficient + i] =
              shared->frozen[i][column];
        }
      }
    }
    const VectorLoader<T, kCount, kAligned, kFused> loader(tensors.in, 0);
    const VectorWriter<T, Formula::kOutputs> writer(tensors.out, 0);
    const auto masked = [&](int i, const VectorSlot& slot,
                            const Words(&in)[kCount]) {
      sums.template Add<true>(i, slot.Present(), slot.begin, slot.end, in,
                              center);
      if constexpr (kFused) {
        if (slot.Present()) {
          ApplyVector<Formula, T, true>(false, slot, in, k, writer);
        }
      }
    };
    const auto whole = [&](int i, bool present, int64_t byte,
                           const Words(&in)[kCount]) {
      sums.template Add<false>(i, present, 0, kVector, in, center);
      if constexpr (kFused) {
        if (present) {
          ApplyVector<Formula, T, false>(false, VectorSlot{byte, 0, kVector},
                                         in, k, writer);
        }
      }
    };
    for (; !loop.Done(); loop.NextGroup()) {
      sums.BeginGroup();
      if (!IsWhole<kAligned>(params.config, loop)) {
        const bool own_only =
            (kFused && params.in_place) || !loop.template Inside<kAligned>();
        ForEachMasked(loop, loader, kCount, own_only, masked);
      } else if (kChannelsLast && loop.GroupItems() == kGroupItems) {
        ForEachWhole<kHeld, true>(loop, loader, kCount, whole);
      } else {
        ForEachWhole<kHeld, false>(loop, loader, kCount, whole);
      }
      if (!sums.EndGroup(loop.GroupItems())) {
        AddGroupAgain(loop, loader, center, &sums);
      }
    }
  }
  sums.Finish();
}

template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          bool kFused, typename Block>
TFBN_HD void Reduce(const KernelParams<Formula>& params, Block& block,
                    ReduceShared<Formula, T, kChannelsLast, kFused>* shared) {
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused>;
  constexpr int kColumns = Shared::kColumns, kSums = Shared::kSums;
  const LaunchConfig& config = params.config;
  PrepareColumns(params, block, shared);
  block.ForEachThread([&](int t) {
    ReduceThread<Formula, T, kChannelsLast, kAligned, kFused>(
        params, block.Index(), t, shared);
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

  block.LastPhase([&](int t) {
    const BlockStrideLoop<T, kChannelsLast> loop(config, block.Index(), t);
    if (!loop.Active() || loop.z() != 0 || (!kChannelsLast && loop.x() != 0)) {
      return;
    }
    const int64_t split = config.SplitOf(block.Index());
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      const int64_t column = kChannelsLast ? loop.Column(e) : loop.Channel();
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        params.partial_sums[(s * config.splits + split) * config.Columns() +
                            column] = shared->sums[s * kColumns + e][t];
      }
    }
  });
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_REDUCE_H_
