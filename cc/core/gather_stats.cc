// Chan's formula over the parts of a batch.

#include "cc/core/gather_stats.h"

#include <algorithm>
#include <cmath>

#include "cc/core/fp_env.h"

namespace tf_bn_ops {
namespace {

// Adds a part with `count` elements per channel to `total` others.
void AddPart(const GatherStatsArgs& args, int64_t part, double count,
             double total) {
  const double* const mean = args.means + part * args.channels;
  const double* const m2 = args.m2s + part * args.channels;
  const double share = count / (total + count);
  for (int64_t c = 0; c < args.channels; ++c) {
    const double delta = mean[c] - args.mean[c];
    args.mean[c] += delta * share;
    args.m2[c] += m2[c] + delta * delta * (total * share);
  }
}

}  // namespace

void GatherStats(const GatherStatsArgs& args) {
  const ScopedFpState fp_state;
  double total = 0;
  std::fill_n(args.mean, args.channels, 0.0);
  std::fill_n(args.m2, args.channels, 0.0);
  for (int64_t part = 0; part < args.parts; ++part) {
    const double count = args.counts[part];
    if (!(count > 0)) continue;
    if (total == 0) {
      // As they are: 0 * delta^2 would be NaN where delta is infinite.
      std::copy_n(args.means + part * args.channels, args.channels, args.mean);
      std::copy_n(args.m2s + part * args.channels, args.channels, args.m2);
    } else {
      AddPart(args, part, count, total);
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
