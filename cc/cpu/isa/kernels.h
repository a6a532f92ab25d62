// What one instruction-set build of the CPU kernels offers to the driver
// (cc/cpu).

#ifndef TF_BN_OPS_CC_CPU_ISA_KERNELS_H_
#define TF_BN_OPS_CC_CPU_ISA_KERNELS_H_

#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/core/partition.h"

namespace tf_bn_ops {

// Channels [c0, c1) of one block. In kRows the group must have at most
// kMaxColumns columns (fold * (c1 - c0) * inner), and all channels if fold > 1.
struct Tile {
  Block block;
  int64_t c0, c1;
  // Elements from this tile to the one that the same thread reads next, which a
  // pass asks memory for while it computes; 0: it asks for what it reads itself
  // a little later.
  int64_t next = 0;
  // Nothing is asked for: what is read is in the private cache already.
  bool in_cache = false;
};

// Per-channel sums: arrays of length `channels`, one after the other, that are
// indexed by channel.
struct ChannelSums {
  double* first;
  int64_t channels;
};
static TFBN_HD double* SumsOf(const ChannelSums& sums, int k) {
  return sums.first + k * sums.channels;
}

// The sums of channel `c`; those behind the first kRead are zero.
template <int kRead, int kSums>
static TFBN_HD void LoadSums(const ChannelSums& sums, int64_t c,
                             double (&out)[kSums]) {
  for (int k = 0; k < kSums; ++k) {
    out[k] = k < kRead ? SumsOf(sums, k)[c] : 0;
  }
}

// Elements from one array of coefficients to the next. Arrays are read in whole
// vectors, so a vector behind each must be readable; and they must not lie a
// multiple of 4 KiB apart, where the processor takes a load for an overlap with
// an earlier store.
static TFBN_HD int64_t CoefficientStride(int64_t channels) {
  constexpr int64_t kPadding = 48;  // Three vectors of float, three lines.
  return channels + kPadding;
}

// The kernels of one formula (cc/core/formulas). Coefficients are arrays in the
// type that Apply computes in (double for float64, else float), one after the
// other, CoefficientStride apart; frozen, only those from
// kFirstFrozenCoefficient on, and only the first kNumFrozenSums sums.
template <typename F>
struct Kernels {
  using Args = typename F::Args;
  // Training, the first pass: writes the sums over the tile, those of channels
  // [c0, c1).
  using Reduce = void (*)(const Args&, const Partition&, const Tile&,
                          const ChannelSums& sums);
  // Writes the coefficients of channels [c0, c1) from the sums over the view;
  // frozen, those that need no sums.
  using Coefficients = void (*)(const Args&, int64_t c0, int64_t c1,
                                const ChannelSums& sums, void* coefficients);
  // Training, the second pass: writes the results of view shape in the tile.
  // `stream`: store around the cache, for results that nobody will read from
  // it.
  using Apply = void (*)(const Args&, const Partition&, const Tile&,
                         const void* coefficients, bool stream);
  // Frozen, where the results need no sums: both in one pass.
  using Frozen = void (*)(const Args&, const Partition&, const Tile&,
                          const void* coefficients, bool stream,
                          const ChannelSums& sums);

  // Indexed by DType.
  Reduce reduce[kNumDTypes];
  Coefficients coefficients[kNumDTypes];
  Apply apply[kNumDTypes];
  Frozen frozen[kNumDTypes];
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_KERNELS_H_
