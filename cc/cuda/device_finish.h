// The finish kernel: total sums per channel, and from them the coefficients and
// the outputs of shape [channels]; and the kernel that combines the statistics
// of the parts of a batch.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_FINISH_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_FINISH_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/formulas/formula.h"
#include "cc/core/gather_stats.h"
#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/cuda/device_block.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Maximum channels per block: 64 bytes of adjacent partial sums.
constexpr int kMaxFinishChannels = 8;
// Partial sums that a thread loads before it adds the first.
constexpr int kFinishAhead = 8;

// Channels per block: fewer where the view has fewer, so that more threads
// share the partial sums of each.
TFBN_HD int FinishChannels(int64_t channels) {
  int n = 1;
  while (n < kMaxFinishChannels && n < channels) n *= 2;
  return n;
}

inline int64_t FinishGridSize(const KernelParams& params) {
  return CeilDiv(params.args.view.channels,
                 FinishChannels(params.args.view.channels));
}

template <typename Formula>
struct FinishShared {
  double sums[Formula::kNumSums][kThreads];
  // Of a channel that is added up again.
  double again[kCentersAreElements<Formula> ? Formula::kNumSums : 1][kThreads];
};

// The sums at index `t`. Volatile: they are read twice, so that in between they
// occupy no registers, of which calls of the division leave few.
template <typename Formula>
TFBN_HD void LoadSums(const FinishShared<Formula>& shared, int t,
                      double (&sums)[Formula::kNumSums]) {
  TFBN_UNROLL
  for (int s = 0; s < Formula::kNumSums; ++s) {
    sums[s] = kIsFrozenOnly<Formula>
                  ? 0
                  : *static_cast<const volatile double*>(&shared.sums[s][t]);
  }
}

// Coefficients and small outputs of channel `c` from its sums, those at index
// `t`.
template <typename Formula, typename C>
TFBN_HD void FinishChannel(const KernelParams& params, int64_t c,
                           FinishShared<Formula>* shared, int t) {
  const auto& args = params.args;
  if (params.config.elements == 0) {
    Formula::StoreEmpty(args, c);
    return;
  }
  const double center = CenterAt(Formula::CentersOf(args), c);
  double sums[Formula::kNumSums];
  if constexpr (!kIsFrozenOnly<Formula> && !std::is_same_v<C, double> &&
                !kCentersAreElements<Formula>) {
    const double run_center = ChainCenter(args.dtype, center);
    if (run_center != center) {
      LoadSums(*shared, t, sums);
      Formula::Recenter(static_cast<double>(ElementsPerChannel(args.view)),
                        run_center - center, sums);
      TFBN_UNROLL
      for (int s = 0; s < Formula::kNumSums; ++s) shared->sums[s][t] = sums[s];
    }
  }
  if (HasOutputs<Formula>(args)) {
    C k[Formula::kNumCoefficients];
    LoadSums(*shared, t, sums);
    Formula::Finish(args, c, center, sums, k);
    if constexpr (kHasMask<Formula>) Formula::FinishMask(args, c, k);
    // Before StoreSums, so that no coefficient occupies a register there.
    C* const out = static_cast<C*>(params.coefficients) + c;
    TFBN_UNROLL
    for (int i = 0; i < Formula::kNumCoefficients; ++i) {
      if (args.is_training || i >= Formula::kFirstFrozenCoefficient) {
        out[i * args.view.channels] = k[i];
      }
    }
  }
  LoadSums(*shared, t, sums);
  Formula::StoreSums(args, c, center, sums);
}

// The sum of values first, first + step, ... below `end`, `stride` apart.
// kFinishAhead of them are loaded before the first is added: their addition in
// order would otherwise wait for memory as many times.
TFBN_HD double SumOfEvery(const double* values, int64_t stride, int64_t first,
                          int64_t end, int step) {
  double sum = 0;
  int64_t j = first;
  TFBN_NO_UNROLL
  for (; j + int64_t{kFinishAhead - 1} * step < end; j += kFinishAhead * step) {
    double value[kFinishAhead];
    TFBN_UNROLL
    for (int u = 0; u < kFinishAhead; ++u) {
      value[u] = values[(j + int64_t{u} * step) * stride];
    }
    TFBN_UNROLL
    for (int u = 0; u < kFinishAhead; ++u) sum += value[u];
  }
  TFBN_NO_UNROLL
  for (; j < end; j += step) sum += values[j * stride];
  return sum;
}

// The total sums of the channels of a block from `first` on: channel first + t
// has index t.
template <typename Formula, typename Block>
TFBN_HD void AddPartialSums(const KernelParams& params, int64_t first,
                            int width, Block& block,
                            FinishShared<Formula>* shared) {
  constexpr int kSums = Formula::kNumSums;
  const LaunchConfig& config = params.config;
  const int64_t channels = params.args.view.channels;
  const int threads = kThreads / width;  // Per channel.
  // The frozen reduction writes no others; without any it does not run.
  const int num_sums =
      params.args.is_training ? kSums : int{Formula::kNumFrozenSums};
  // The partial sums of a channel lie `channels` apart, `fold` per split.
  const int64_t terms = config.elements == 0 ? 0 : config.splits * config.fold;

  block.ForEachThread([&](int t) {
    const int64_t c = first + t % width;
    TFBN_NO_UNROLL
    for (int s = 0; s < kSums; ++s) {
      const bool wanted = c < channels && s < num_sums;
      shared->sums[s][t] =
          SumOfEvery(params.partial_sums + s * terms * channels + c, channels,
                     t / width, wanted ? terms : 0, threads);
    }
  });

  TreeReduce<kSums>(block, shared->sums, threads, width, kThreads,
                    [=](int t) { return t / width; });
}

// Adds up channel `c` again, in double and by all threads, if its center turned
// out to be far from its mean; its sums are those at index `at`.
template <typename Formula, typename Block>
TFBN_HD void AddFarChannel(const KernelParams& params, int64_t c, int at,
                           Block& block, FinishShared<Formula>* shared) {
  constexpr int kSums = Formula::kNumSums;
  const auto& args = params.args;
  const View& view = args.view;
  double sums[kSums];
  LoadSums(*shared, at, sums);
  const double center = CenterAt(Formula::CentersOf(args), c);
  const BatchStatistics of = Formula::StatisticsOf(args, center, sums);
  if (!IsFarCenter(center, of)) return;
  const auto tensors = Formula::TensorsOf(args);
  const int64_t count = ElementsPerChannel(view);
  block.ForEachThread([&](int t) {
    double own[kSums] = {};
    TFBN_NO_UNROLL
    for (int64_t i = t; i < count; i += kThreads) {
      const int64_t element =
          (i / view.inner * view.channels + c) * view.inner + i % view.inner;
      double in[Formula::kInputs] = {};
      TFBN_UNROLL
      for (int k = 0; k < Formula::kNumReduceInputs; ++k) {
        in[k] = LoadAsDouble(args.dtype, tensors.in[k], element);
      }
      Formula::Accumulate(in, of.mean, own);
    }
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) shared->again[s][t] = own[s];
  });
  TreeReduce<kSums>(block, shared->again, kThreads, 1, kThreads,
                    [](int t) { return t; });
  block.ForEachThread([&](int t) {
    if (t > 0) return;
    double again[kSums];
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) again[s] = shared->again[s][0];
    Formula::Recenter(static_cast<double>(count), of.mean - center, again);
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) shared->sums[s][at] = again[s];
  });
}

// C is the compute type.
template <typename Formula, typename C, typename Block>
TFBN_HD void Finish(const KernelParams& params, Block& block,
                    FinishShared<Formula>* shared) {
  const int width = FinishChannels(params.args.view.channels);
  const int64_t first = block.Index() * width;
  if constexpr (!kIsFrozenOnly<Formula>) {
    AddPartialSums(params, first, width, block, shared);
  }
  if constexpr (kCentersAreElements<Formula> && !std::is_same_v<C, double>) {
    if (params.args.is_training && params.config.elements > 0) {
      TFBN_NO_UNROLL
      for (int i = 0; i < width && first + i < params.args.view.channels; ++i) {
        AddFarChannel(params, first + i, i, block, shared);
      }
    }
  }
  block.ForEachThread([&](int t) {
    const int64_t c = first + t;
    if (t >= width || c >= params.args.view.channels) return;
    FinishChannel<Formula, C>(params, c, shared, t);
  });
}

// At least one block, which writes the count.
inline int64_t GatherGridSize(const GatherStatsArgs& args) {
  return args.channels == 0 ? 1 : CeilDiv(args.channels, kThreads);
}

// GatherStats (cc/core/gather_stats.h) with a thread per channel, bitwise
// identical to it.
template <typename Block>
TFBN_HD void Gather(const GatherStatsArgs& args, Block& block) {
  block.ForEachThread([&](int t) {
    const int64_t c = block.Index() * kThreads + t;
    ChannelStatistics of = {0, 0};
    double total = 0;
    bool valid = true;
    for (int64_t part = 0; part < args.parts; ++part) {
      const double count = args.counts[part];
      valid = valid && count >= 0 && IsFinite(count);
      if (!(count > 0)) continue;
      if (c < args.channels) {
        const int64_t at = part * args.channels + c;
        AddPart(count, {args.means[at], args.m2s[at]}, total, &of);
      }
      total += count;
    }
    if (c == 0) *args.count = valid ? total : kNaN;
    if (c >= args.channels) return;
    args.mean[c] = valid ? of.mean : kNaN;
    args.m2[c] = valid ? of.m2 : kNaN;
  });
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_FINISH_H_
