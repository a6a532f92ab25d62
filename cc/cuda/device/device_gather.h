// The kernel that combines the statistics of the parts of a batch: a thread per
// channel.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_GATHER_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_GATHER_H_

#include <cstdint>

#include "cc/core/formulas/formula.h"
#include "cc/core/gather_stats.h"
#include "cc/core/host_device.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// At least one block, which writes the count.
inline int64_t GatherGridSize(const GatherStatsArgs& args) {
  return args.channels == 0 ? 1 : CeilDiv(args.channels, kThreads);
}

// As GatherStats, bit by bit.
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

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_GATHER_H_
