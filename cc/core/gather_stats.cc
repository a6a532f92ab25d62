// Chan's formula over the parts of a batch.

#include "cc/core/gather_stats.h"

#include <algorithm>
#include <cmath>

#include "cc/core/fp_env.h"

namespace tf_bn_ops {
void GatherStats(const GatherStatsArgs& args) {
  const ScopedFpState fp_state;
  double total = 0;
  std::fill_n(args.mean, args.channels, 0.0);
  std::fill_n(args.m2, args.channels, 0.0);
  for (int64_t part = 0; part < args.parts; ++part) {
    const double count = args.counts[part];
    if (!(count > 0)) continue;
    const int64_t first = part * args.channels;
    for (int64_t c = 0; c < args.channels; ++c) {
      ChannelStatistics of = {args.mean[c], args.m2[c]};
      AddPart(count, {args.means[first + c], args.m2s[first + c]}, total, &of);
      args.mean[c] = of.mean;
      args.m2[c] = of.m2;
    }
    total += count;
  }
  *args.count = total;
}

int64_t FindInvalidCount(const GatherStatsArgs& args) {
  for (int64_t part = 0; part < args.parts; ++part) {
    const double count = args.counts[part];
    if (!(count >= 0) || std::isinf(count)) return part;
  }
  return -1;
}

}  // namespace tf_bn_ops
