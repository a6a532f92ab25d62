// Statistics of a batch from its parts' statistics, see forward.h for what they
// are: what the replicas of a synchronised batch normalization send each other.

#pragma once

#include <cstdint>

#include "cc/core/call.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

// The pairwise formula of Chan, Golub and LeVeque (1983), part after part in
// their order, so that results are bitwise identical on every replica:
//
//   delta = mean_part - mean
//   mean += delta * (count_part / (count + count_part))
//   m2   += m2_part + delta^2 * (count * count_part / (count + count_part))
//
// Nothing cancels where a mean is large against the deviations from it, as it
// would in a sum of squares. Parts whose count is not above zero are left out,
// whatever their mean and m2 hold; without any other all results are zero.
void GatherStats(const GatherStatsArgs& args) TFBN_SHARED("gather_stats");

// One channel of what has been combined so far.
struct ChannelStatistics {
  double mean, m2;
};

// Adds a part with `count` elements to `total` others; the first part is taken
// as it is, since 0 * delta^2 would be NaN where delta is infinite.
static TFBN_HD void AddPart(double count, const ChannelStatistics& part,
                            double total, ChannelStatistics* of) {
  if (total == 0) {
    *of = part;
    return;
  }
  const double share = count / (total + count);
  const double delta = part.mean - of->mean;
  of->mean += delta * share;
  of->m2 += part.m2 + delta * delta * (total * share);
}

// The first part whose count is negative, infinite or NaN; -1 if there is none.
int64_t FindInvalidCount(const GatherStatsArgs& args)
    TFBN_SHARED("find_invalid_count");

}  // namespace tf_bn_ops
