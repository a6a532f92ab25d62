// The finish kernel: total sums per channel, and from them the coefficients and
// the outputs of shape [channels]; and the kernel that combines the statistics
// of the parts of a batch.

#pragma once

#include <cstdint>
#include <type_traits>

#include "cc/core/formulas/formula.h"
#include "cc/core/gather_stats.h"
#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/gpu/device_items.h"
#include "cc/gpu/launch_config.h"

namespace tf_bn_ops::gpu {

// Sums of a channel that a call computes.
template <typename Formula>
TFBN_HD int SumsOf(const Call& call) {
  if (HasTotals(call)) return 0;
  return call.is_training ? int{Formula::kNumSums}
                          : int{Formula::kNumFrozenSums};
}

// Channels per block: at most 64 bytes of adjacent partial sums; fewer where
// the view has fewer, so that more threads share the partial sums of each.
TFBN_HD int FinishChannels(int64_t channels) {
  int n = 1;
  while (n < 8 && n < channels) n *= 2;
  return n;
}

inline int64_t FinishGridSize(const KernelParams& params) {
  return CeilDiv(params.call.view.channels,
                 FinishChannels(params.call.view.channels));
}

template <typename Formula>
struct FinishShared {
  double sums[Formula::kNumSums][kThreads];
  // Of a channel that is added up again.
  double again[kCentersAreElements<Formula> ? Formula::kNumSums : 1][kThreads];
};

// The sums of index `t`.
template <int kSums>
TFBN_HD void LoadSums(const double (&shared)[kSums][kThreads], int t,
                      double (&sums)[kSums]) {
  TFBN_UNROLL
  for (int s = 0; s < kSums; ++s) sums[s] = shared[s][t];
}

// Coefficients and small outputs of channel `c` from its sums, those at index
// `t`.
template <typename F, typename C>
TFBN_HD void FinishChannel(const KernelParams& params, int64_t c,
                           const FinishShared<F>& shared, int t) {
  const Call& call = params.call;
  if (params.config.elements == 0) return F::StoreEmpty(call, c);
  const double center = CenterAt(F::CentersOf(call), c);
  double sums[F::kNumSums] = {};
  LoadSums(shared.sums, t, sums);
  if constexpr (!std::is_same_v<C, double> && !kCentersAreElements<F>) {
    const double shift = ChainCenter(call.dtype, center) - center;
    if (shift < 0 || shift > 0) {
      F::Recenter(static_cast<double>(ElementsPerChannel(call.view)), shift,
                  sums);
    }
  }
  if (HasOutputs<F>(call)) {
    C k[F::kNumCoefficients];
    F::Finish(call, c, center, sums, k);
    if constexpr (kHasMask<F>) F::FinishMask(call, c, k);
    // Before StoreSums, so that no coefficient occupies a register there.
    C* const out = static_cast<C*>(params.coefficients) + c;
    TFBN_UNROLL
    for (int i = 0; i < F::kNumCoefficients; ++i) {
      if (call.is_training || i >= F::kFirstFrozenCoefficient) {
        out[i * call.view.channels] = k[i];
      }
    }
  }
  F::StoreSums(call, c, center, sums);
}

// The sum of values first, first + step, ... below `end`, `stride` apart. Eight
// of them are loaded before the first is added: their addition in order would
// otherwise wait for memory as many times.
TFBN_HD double SumOfEvery(const double* values, int64_t stride, int64_t first,
                          int64_t end, int step) {
  constexpr int kAhead = 8;
  double sum = 0;
  TFBN_NO_UNROLL
  for (int64_t j = first; j < end; j += kAhead * step) {
    double value[kAhead];
    TFBN_UNROLL
    for (int u = 0; u < kAhead; ++u) {
      const int64_t at = j + int64_t{u} * step;
      value[u] = at < end ? values[at * stride] : 0;
    }
    TFBN_UNROLL
    for (int u = 0; u < kAhead; ++u) sum += value[u];
  }
  return sum;
}

// Adds up channel `c` again, in double and by all threads, if its center turned
// out to be far from its mean; its sums are those at index `at`.
template <typename F, typename Block>
TFBN_HD void AddFarChannel(const KernelParams& params, int64_t c, int at,
                           Block& block, FinishShared<F>* shared) {
  constexpr int kSums = F::kNumSums;
  const Call& call = params.call;
  const View& view = call.view;
  double sums[kSums];
  LoadSums(shared->sums, at, sums);
  const double center = CenterAt(F::CentersOf(call), c);
  const BatchStatistics of = F::StatisticsOf(call, center, sums);
  if (!IsFarCenter(center, of)) return;
  const Tensors tensors = F::TensorsOf(call);
  const int64_t count = ElementsPerChannel(view);
  block.ForEachThread([&](int t) {
    double own[kSums] = {};
    TFBN_NO_UNROLL
    for (int64_t i = t; i < count; i += kThreads) {
      const int64_t element =
          (i / view.inner * view.channels + c) * view.inner + i % view.inner;
      double in[F::kInputs] = {};
      TFBN_UNROLL
      for (int k = 0; k < F::kNumReduceInputs; ++k) {
        in[k] = LoadAsDouble(call.dtype, tensors.in[k], element);
      }
      F::Accumulate(in, of.mean, own);
    }
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) shared->again[s][t] = own[s];
  });
  TreeReduce<kSums>(block, shared->again, kThreads, 1, kThreads);
  block.ForEachThread([&](int t) {
    if (t > 0) return;
    double again[kSums];
    LoadSums(shared->again, 0, again);
    F::Recenter(static_cast<double>(count), of.mean - center, again);
    TFBN_UNROLL
    for (int s = 0; s < kSums; ++s) shared->sums[s][at] = again[s];
  });
}

// The channels of a block: channel first + t has index t. C is the compute
// type.
template <typename F, typename C, typename Block>
TFBN_HD void Finish(const KernelParams& params, Block& block,
                    FinishShared<F>* shared) {
  const LaunchConfig& config = params.config;
  const int64_t channels = params.call.view.channels;
  const int width = FinishChannels(channels);
  const int64_t first = block.Index() * width;
  const int threads = kThreads / width;  // Per channel.
  // The partial sums of a channel lie `channels` apart, `fold` per split.
  const int64_t terms = config.elements == 0 ? 0 : config.splits * config.fold;
  block.ForEachThread([&](int t) {
    const int64_t c = first + t % width;
    TFBN_NO_UNROLL
    for (int s = 0; s < F::kNumSums; ++s) {
      const bool wanted = c < channels && s < SumsOf<F>(params.call);
      shared->sums[s][t] =
          SumOfEvery(params.partial_sums + s * terms * channels + c, channels,
                     t / width, wanted ? terms : 0, threads);
    }
  });
  TreeReduce<F::kNumSums>(block, shared->sums, threads, width, kThreads);
  if constexpr (kCentersAreElements<F> && !std::is_same_v<C, double>) {
    if (params.call.is_training && config.elements > 0) {
      TFBN_NO_UNROLL
      for (int i = 0; i < width && first + i < channels; ++i) {
        AddFarChannel(params, first + i, i, block, shared);
      }
    }
  }
  block.ForEachThread([&](int t) {
    if (t >= width || first + t >= channels) return;
    FinishChannel<F, C>(params, first + t, *shared, t);
  });
}

// At least one block, which writes the count.
inline int64_t GatherGridSize(const GatherStatsArgs& call) {
  return call.channels == 0 ? 1 : CeilDiv(call.channels, kThreads);
}

// GatherStats (cc/core/gather_stats.h) with a thread per channel, bitwise
// identical to it.
template <typename Block>
TFBN_HD void Gather(const GatherStatsArgs& call, Block& block) {
  block.ForEachThread([&](int t) {
    const int64_t c = block.Index() * kThreads + t;
    ChannelStatistics of = {0, 0};
    double total = 0;
    bool valid = true;
    for (int64_t part = 0; part < call.parts; ++part) {
      const double count = call.counts[part];
      valid = valid && count >= 0 && IsFinite(count);
      if (!(count > 0)) continue;
      if (c < call.channels) {
        const int64_t at = part * call.channels + c;
        AddPart(count, {call.means[at], call.m2s[at]}, total, &of);
      }
      total += count;
    }
    if (c == 0) *call.count = valid ? total : kNaN;
    if (c >= call.channels) return;
    call.mean[c] = valid ? of.mean : kNaN;
    call.m2[c] = valid ? of.m2 : kNaN;
  });
}

}  // namespace tf_bn_ops::gpu
