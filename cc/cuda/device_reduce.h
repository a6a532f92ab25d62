// The reduce kernel: partial sums per split, and for frozen statistics the
// outputs of view shape in the same pass.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_REDUCE_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_REDUCE_H_

#include <cstdint>

#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/cuda/device_apply.h"
#include "cc/cuda/device_loop.h"
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
  Compute<T> frozen[kFused ? kFrozenCoefficients : 1][kThreads];
};

// Computes the frozen coefficients of the tile: once per column, since the
// square root and division in double are too slow to repeat in every thread.
template <typename Formula, typename T, bool kChannelsLast, typename Block>
TFBN_HD void FinishFrozen(
    const KernelParams<Formula>& params, Block& block,
    ReduceShared<Formula, T, kChannelsLast, true>* shared) {
  const LaunchConfig& config = params.config;
  auto args = params.args;
  args.is_training = false;  // A constant, so that no code of training remains.
  block.ForEachThread([&](int t) {
    const int width = kChannelsLast
                          ? config.threads_x * VectorTraits<T>::kVector
                          : config.threads_y;
    const int64_t column = config.TileOf(block.Index()) * width + t;
    if (t >= width || column >= config.Columns()) return;
    const int64_t c = column % config.view.channels;
    const double no_sums[Formula::kNumSums] = {};
    Compute<T> k[Formula::kNumCoefficients];
    Formula::Finish(args, c, CenterAt(Formula::CentersOf(args), c), no_sums, k);
    TFBN_UNROLL
    for (int i = Formula::kFirstFrozenCoefficient;
         i < Formula::kNumCoefficients; ++i) {
      shared->frozen[i - Formula::kFirstFrozenCoefficient][t] = k[i];
    }
  });
}

// Adds the terms of one vector to the sums of the thread.
template <typename Formula, typename T, int kColumns, int kSums>
TFBN_HD void AccumulateVector(const VectorSlot& slot,
                              const Vector<T> (&in)[Formula::kInputs],
                              const double (&center)[kColumns],
                              double (&sums)[kColumns][kSums]) {
  constexpr int kVector = VectorTraits<T>::kVector;
  double terms[kVector][kSums];
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    double from[Formula::kInputs];
    TFBN_UNROLL
    for (int i = 0; i < Formula::kInputs; ++i) {
      from[i] = ToDouble(in[i].element[e]);
    }
    // The identity of addition: -0.0 + term is bitwise the term, so the
    // compiler folds the addition.
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) terms[e][s] = -0.0;
    Formula::Accumulate(from, center[kColumns > 1 ? e : 0], terms[e]);
    const bool own = e >= slot.begin && e < slot.end;
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) terms[e][s] = own ? terms[e][s] : 0.0;
  }
  if (kColumns == 1) {
    // A tree within the vector: one addition per vector in the chain of sums.
    TFBN_UNROLL
    for (int n = kVector / 2; n > 0; n /= 2) {
      TFBN_UNROLL
      for (int e = 0; e < n; ++e) {
        TFBN_UNROLL
        for (int s = 0; s < kSums; ++s) terms[e][s] += terms[e + n][s];
      }
    }
  }
  TFBN_UNROLL
  for (int e = 0; e < kColumns; ++e) {
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) sums[e][s] += terms[e][s];
  }
}

// The sums of thread `t` over its items, left in shared memory.
template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          bool kFused>
TFBN_HD void ReduceThread(
    const KernelParams<Formula>& params, int64_t block, int t,
    ReduceShared<Formula, T, kChannelsLast, kFused>* shared) {
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused>;
  constexpr int kColumns = Shared::kColumns, kSums = Shared::kSums;
  double sums[kColumns][kSums] = {};
  BlockStrideLoop<T, kChannelsLast> loop(params.config, block, t);
  if (loop.Active()) {
    const auto tensors = Formula::TensorsOf(params.args);
    const CenterArray centers = Formula::CentersOf(params.args);
    double center[kColumns];
    Compute<T> k[kColumns][Formula::kNumCoefficients];
    int64_t c = loop.Channel();
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e, c = loop.NextChannel(c)) {
      center[e] = CenterAt(centers, c);
      if constexpr (kFused) {
        const int column = kChannelsLast ? loop.x() * kColumns + e : loop.y();
        TFBN_UNROLL
        for (int i = 0; i < Shared::kFrozenCoefficients; ++i) {
          k[e][Formula::kFirstFrozenCoefficient + i] =
              shared->frozen[i][column];
        }
      }
    }
    ForEachVector<kAligned, kFused>(
        &loop, tensors.in, Formula::kInputs, params.config.elements,
        [&](const VectorSlot& slot, const Vector<T>(&in)[Formula::kInputs]) {
          AccumulateVector<Formula>(slot, in, center, sums);
          if constexpr (kFused) {
            ApplyVector<Formula, true>(false, slot, in, k, tensors.out);
          }
        });
  }
  TFBN_UNROLL
  for (int e = 0; e < kColumns; ++e) {
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) {
      shared->sums[s * kColumns + e][t] = sums[e][s];
    }
  }
}

template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          bool kFused, typename Block>
TFBN_HD void Reduce(const KernelParams<Formula>& params, Block& block,
                    ReduceShared<Formula, T, kChannelsLast, kFused>* shared) {
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused>;
  constexpr int kColumns = Shared::kColumns, kSums = Shared::kSums;
  const LaunchConfig& config = params.config;
  if constexpr (kFused) FinishFrozen(params, block, shared);
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

  block.ForEachThread([&](int t) {
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
