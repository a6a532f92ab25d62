// BatchNormGatherStats in XLA's own operations, for any device: Chan's formula
// of cc/core/gather_stats.h.

#ifndef TF_BN_OPS_CC_XLA_HLO_GATHER_STATS_H_
#define TF_BN_OPS_CC_XLA_HLO_GATHER_STATS_H_

#include <cstdint>
#include <vector>

#include "xla/hlo/builder/lib/comparators.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tf_bn_ops {

// count, mean, m2 of `parts` rows: Chan's formula of cc/core/gather_stats.h.
inline std::vector<xla::XlaOp> BuildGatherStats(xla::XlaOp counts,
                                                xla::XlaOp means,
                                                xla::XlaOp m2s, int64_t parts,
                                                int64_t channels) {
  xla::XlaBuilder* const builder = counts.builder();
  const xla::XlaOp zeros =
      xla::Zeros(builder, xla::ShapeUtil::MakeShape(xla::F64, {channels}));
  xla::XlaOp total = xla::Zero(builder, xla::F64), mean = zeros, m2 = zeros;
  for (int64_t part = 0; part < parts; ++part) {
    const auto row = [&](xla::XlaOp rows) {
      return xla::Reshape(
          xla::SliceInDim(rows, part, part + 1, /*stride=*/1, /*dimno=*/0),
          {channels});
    };
    const xla::XlaOp count = xla::Reshape(
        xla::SliceInDim(counts, part, part + 1, /*stride=*/1, /*dimno=*/0), {});
    const auto spread = [&](xla::XlaOp v) {
      return xla::Broadcast(v, {channels});
    };
    const xla::XlaOp share = count / (total + count);
    const xla::XlaOp delta = row(means) - mean;
    const xla::XlaOp has = spread(xla::Gt(count, xla::ZerosLike(count)));
    const xla::XlaOp first = spread(xla::Eq(total, xla::ZerosLike(total)));
    const xla::XlaOp new_mean =
        xla::Select(first, row(means), mean + delta * spread(share));
    const xla::XlaOp new_m2 = xla::Select(
        first, row(m2s), m2 + row(m2s) + delta * delta * spread(total * share));
    mean = xla::Select(has, new_mean, mean);
    m2 = xla::Select(has, new_m2, m2);
    total = xla::Select(xla::Gt(count, xla::ZerosLike(count)), total + count,
                        total);
  }
  return {total, mean, m2};
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_XLA_HLO_GATHER_STATS_H_
