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
  static constexpr int kFirstKnown =
      kFused ? int{Formula::kFirstFrozenCoefficient}
             : int{Formula::kFirstMaskCoefficient};
  static constexpr int kKnown = Formula::kNumCoefficients - kFirstKnown;
  static_assert(kKnown == 0 || kSlices == 1, "threads would need an offset");

  // Where the coefficients of a column of the tile are: those of neighbouring
  // threads lie side by side.
  static TFBN_HD int IndexOf(const LaunchConfig& config, int x, int y, int e) {
    return kChannelsLast ? e * config.threads_x + x : y;
  }

  double sums[kSums * kColumns][kThreads];
  Compute<T> known[kKnown > 0 ? kKnown : 1][kThreads];
};

// Computes the known coefficients of the tile: once per column, since the
// square root and division in double are too slow to repeat in every thread.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          int kSums, typename Block>
TFBN_HD void FinishKnown(
    const KernelParams<Formula>& params, Block& block,
    ReduceShared<Formula, T, kChannelsLast, kFused, kSums>* shared) {
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused, kSums>;
  const LaunchConfig& config = params.config;
  auto args = params.args;
  // A constant, so that no code of training remains.
  if (kFused) args.is_training = false;
  block.ForEachThread([&](int t) {
    constexpr int kColumns = Shared::kColumns;
    const int width =
        kChannelsLast ? config.threads_x * kColumns : config.threads_y;
    const int64_t column = config.TileOf(block.Index()) * width + t;
    if (t >= width || column >= config.Columns()) return;
    const int64_t c = column % config.view.channels;
    Compute<T> k[Formula::kNumCoefficients];
    if constexpr (kFused) {
      const double no_sums[Formula::kNumSums] = {};
      Formula::Finish(args, c, CenterAt(Formula::CentersOf(args), c), no_sums,
                      k);
    } else {
      Formula::FinishMask(args, c, k);
    }
    const int at = Shared::IndexOf(config, t / kColumns, t, t % kColumns);
    TFBN_UNROLL
    for (int i = 0; i < Shared::kKnown; ++i) {
      shared->known[i][at] = k[Shared::kFirstKnown + i];
    }
  });
}

// The known coefficients of the columns of a thread. Read from shared memory
// for every element: in registers they would be more than the sums.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          int kSums>
class KnownCoefficients {
 public:
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused, kSums>;
  TFBN_HD KnownCoefficients(const Shared* shared,
                            const BlockStrideLoop<T, kChannelsLast>& loop,
                            const LaunchConfig& config)
      : shared_(shared), config_(config), x_(loop.x()), y_(loop.y()) {}

  // Those of column `e`; the others stay.
  TFBN_HD void Load(int e, Compute<T> (&k)[Formula::kNumCoefficients]) const {
    const int at = Shared::IndexOf(config_, x_, y_, e);
    TFBN_UNROLL
    for (int i = 0; i < Shared::kKnown; ++i) {
      k[Shared::kFirstKnown + i] = shared_->known[i][at];
    }
  }

 private:
  const Shared* const shared_;
  const LaunchConfig& config_;
  const int x_, y_;
};

// The elements of slice `slice` of kSlices, before the others. Constant indices
// keep the vector in registers.
template <int kSlices, typename T>
TFBN_HD Vector<T> SliceOf(const Vector<T>& v, int slice) {
  constexpr int kColumns = VectorTraits<T>::kVector / kSlices;
  Vector<T> part = v;
  TFBN_UNROLL
  for (int s = 1; s < kSlices; ++s) {
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      part.element[e] =
          s == slice ? v.element[s * kColumns + e] : part.element[e];
    }
  }
  return part;
}

// The inputs of one element as doubles, masked where the formula has a mask.
template <typename Formula, typename T, typename Known>
TFBN_HD void LoadTerms(const Vector<T> (&in)[Formula::kInputs], int e,
                       const Known& known, double (&from)[Formula::kInputs]) {
  if constexpr (kHasMask<Formula>) {
    Compute<T> masked[Formula::kInputs], k[Formula::kNumCoefficients];
    known.Load(e, k);
    TFBN_UNROLL
    for (int i = 0; i < Formula::kInputs; ++i) {
      masked[i] = ToCompute(in[i].element[e]);
    }
    Formula::Mask(masked, k);
    TFBN_UNROLL
    for (int i = 0; i < Formula::kInputs; ++i) from[i] = ToDouble(masked[i]);
  } else {
    TFBN_UNROLL
    for (int i = 0; i < Formula::kInputs; ++i) {
      from[i] = ToDouble(in[i].element[e]);
    }
  }
}

// Adds the terms of `kElements` elements of a vector, of which those in [begin,
// end) are the thread's, to its sums: of each column, or of one channel.
template <typename Formula, int kElements, typename T, typename Known,
          int kColumns, int kSums>
TFBN_HD void AccumulateVector(int begin, int end,
                              const Vector<T> (&in)[Formula::kInputs],
                              const double (&center)[kColumns],
                              const Known& known,
                              double (&sums)[kColumns][kSums]) {
  double terms[kElements][kSums];
  TFBN_UNROLL
  for (int e = 0; e < kElements; ++e) {
    double from[Formula::kInputs];
    LoadTerms<Formula>(in, e, known, from);
    // The identity of addition: -0.0 + term is bitwise the term, so the
    // compiler folds the addition.
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) terms[e][s] = -0.0;
    Formula::Accumulate(from, center[kColumns > 1 ? e : 0], terms[e]);
    const bool own = e >= begin && e < end;
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) terms[e][s] = own ? terms[e][s] : 0.0;
  }
  if (kColumns == 1) {
    // A tree within the vector: one addition per vector in the chain of sums.
    TFBN_UNROLL
    for (int n = kElements / 2; n > 0; n /= 2) {
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
          bool kFused, int kSums>
TFBN_HD void ReduceThread(
    const KernelParams<Formula>& params, int64_t block, int t,
    ReduceShared<Formula, T, kChannelsLast, kFused, kSums>* shared) {
  using Shared = ReduceShared<Formula, T, kChannelsLast, kFused, kSums>;
  constexpr int kColumns = Shared::kColumns, kSlices = Shared::kSlices;
  constexpr int kElements = kChannelsLast ? kColumns : Shared::kVector;
  double sums[kColumns][kSums] = {};
  BlockStrideLoop<T, kChannelsLast> loop(params.config, block, t);
  if (loop.Active()) {
    const auto tensors = Formula::TensorsOf(params.args);
    const CenterArray centers = Formula::CentersOf(params.args);
    const KnownCoefficients<Formula, T, kChannelsLast, kFused, kSums> known(
        shared, loop, params.config);
    const int slice = kSlices > 1 ? loop.y() : 0;
    double center[kColumns];
    int64_t c = loop.Channel(slice * kColumns);
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e, c = loop.NextChannel(c)) {
      center[e] = CenterAt(centers, c);
    }
    ForEachVector<kAligned, kFused>(
        &loop, tensors.in, Formula::kInputs, params.config.elements,
        [&](const VectorSlot& slot, const Vector<T>(&in)[Formula::kInputs]) {
          Vector<T> part[Formula::kInputs];
          TFBN_UNROLL
          for (int i = 0; i < Formula::kInputs; ++i) {
            part[i] = SliceOf<kSlices>(in[i], slice);
          }
          AccumulateVector<Formula, kElements>(
              slot.begin - slice * kColumns, slot.end - slice * kColumns, part,
              center, known, sums);
          if constexpr (kFused) {
            ApplyVector<Formula, true>(false, slot, in, known, tensors.out);
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

// The sums of the block, one per column or channel and sum.
template <typename Formula, typename T, bool kChannelsLast, bool kFused,
          int kSums, typename Block>
TFBN_HD void StorePartialSums(
    const KernelParams<Formula>& params, Block& block,
    ReduceShared<Formula, T, kChannelsLast, kFused, kSums>* shared) {
  constexpr int kColumns =
      ReduceShared<Formula, T, kChannelsLast, kFused, kSums>::kColumns;
  const LaunchConfig& config = params.config;
  block.ForEachThread([&](int t) {
    const BlockStrideLoop<T, kChannelsLast> loop(config, block.Index(), t);
    if (!loop.Active() || loop.z() != 0 || (!kChannelsLast && loop.x() != 0)) {
      return;
    }
    const int64_t split = config.SplitOf(block.Index());
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      const int64_t column = kChannelsLast
                                 ? loop.Column(loop.y() * kColumns + e)
                                 : loop.Channel();
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
  if constexpr (Shared::kKnown > 0) FinishKnown(params, block, shared);
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

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_REDUCE_H_
