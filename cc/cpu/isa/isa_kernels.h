// What one ISA build of the CPU kernels offers to the driver (cc/cpu).

#pragma once

#include <cstdint>

#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/core/partition.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {

// Tile width: columns of a tile in kRows that L1 holds. Per column these are a
// center and sums in double and the mask's coefficients in float while a tile
// is reduced, and coefficients in float while results are computed. At most
// what a row may have.
template <typename F>
static constexpr int64_t TileColumns(bool is_training) {
  const int sums = is_training ? F::kNumSums : F::kNumFrozenSums;
  const int coefficients =
      F::kNumCoefficients - (is_training ? 0 : F::kFirstFrozenCoefficient);
  const int64_t reduce_bytes =
      (1 + sums) * sizeof(double) +
      (F::kNumCoefficients - F::kFirstMaskCoefficient) * sizeof(float);
  const int64_t apply_bytes = coefficients * sizeof(float);
  const int64_t columns =
      kL1TileBytes / (reduce_bytes > apply_bytes ? reduce_bytes : apply_bytes);
  return columns < kMaxRowColumns ? columns / kMaxLanes * kMaxLanes
                                  : kMaxRowColumns;
}

// How a pass prefetches what it reads later.
enum class PrefetchKind {
  kNone,
  kFixedDistance,  // A fixed distance ahead, see prefetch.h.
  kNextTile,       // The tile or channel group that the thread reads next.
};

// The unit of work of a pass: channels [c0, c1) of one block. In kRows the tile
// has at most kMaxRowColumns columns (fold * (c1 - c0) * inner), and all
// channels if fold > 1.
struct Tile {
  Block block;
  int64_t c0, c1;
  PrefetchKind prefetch = PrefetchKind::kNone;
  // Elements from this tile to the one that the thread reads next; 0 if there
  // is none.
  int64_t next_offset = 0;
};

// A stage of a pipeline over channel groups: results of the current group while
// the next one is reduced, in one block. The first stage has no current group,
// the last one no next one: their tiles have no channels.
struct PipelineStage {
  Tile current, next;
  // What is read of the next group is copied here, and the results of the
  // current one are computed from what the last stage copied here: for each
  // input [outer, scratch_channels, inner], scratch_stride elements apart.
  // nullptr: results are computed from the tensors.
  void* scratch = nullptr;
  int64_t scratch_channels = 0, scratch_stride = 0;
};

// How a pass stores results of view shape. Non-temporal (streaming) stores
// write full cache lines past the caches, without reading them first.
enum class StorePolicy { kNone, kTemporal, kNonTemporal };

// Per-channel sums: arrays of length `channels`, one after the other, that are
// indexed by channel.
struct ChannelSums {
  double* first;
  int64_t channels;
};
static TFBN_INLINE double* SumsOfChannel(const ChannelSums& sums, int k) {
  return sums.first + k * sums.channels;
}
// The first kRead sums of channel `c`; zero for the others.
template <int kRead, int kSums>
static TFBN_INLINE void LoadChannelSums(const ChannelSums& sums, int64_t c,
                                        double (&out)[kSums]) {
  for (int k = 0; k < kSums; ++k) {
    out[k] = k < kRead ? SumsOfChannel(sums, k)[c] : 0;
  }
}

// Elements from one array of coefficients to the next. Arrays are read in whole
// vectors, so one vector behind each is readable; and they do not lie a
// multiple of 4 KiB apart, where a load aliases an earlier store of another
// array.
static TFBN_INLINE int64_t CoefficientStride(int64_t channels) {
  return channels + kCoefficientPadding;
}

// What a pass of a tile does.
enum class PassKind {
  // Training, the first pass: writes the sums. Reads the coefficients of the
  // mask.
  kReduce,
  // The same where the formula has an early output, which it stores.
  kReduceStoring,
  // Training, the second pass: writes the results of view shape.
  kApply,
  // Frozen, where the results need no sums: both in one pass. Writes the first
  // kNumFrozenSums sums, and results.
  kFrozen,
};
constexpr int kNumPassKinds = 4;

// The kernels of one formula (cc/core/formulas) for one element type.
// Coefficients are arrays in the type that the formula is applied in (double
// for float64, else float), one after the other, CoefficientStride apart.
struct Kernels {
  // Whether the build has kernels of this type.
  bool IsDefined() const { return finish != nullptr; }

  // Before the first pass: writes the coefficients of the mask of channels
  // [c0, c1), those from kFirstMaskCoefficient on.
  void (*mask_coefficients)(const Call&, int64_t c0, int64_t c1,
                            void* coefficients);
  // From the sums over the view: writes the other coefficients of channels
  // [c0, c1), unless `coefficients` is nullptr, and the outputs of shape
  // [channels] if `stores_sums`. Frozen, before the pass, only the coefficients
  // from kFirstFrozenCoefficient on, and no sum is read.
  void (*finish)(const Call&, int64_t c0, int64_t c1, const ChannelSums& sums,
                 void* coefficients, bool stores_sums);
  // By PassKind; nullptr: the formula has no such pass. Sums are over the tile,
  // of channels [c0, c1).
  using Pass = void (*)(const Call&, const Partition&, const Tile&,
                        const void* coefficients, StorePolicy,
                        const ChannelSums& sums);
  Pass passes[kNumPassKinds];
  // Training, in kSegments: kApply of the current group and kReduce of the next
  // one.
  void (*pipeline)(const Call&, const Partition&, const PipelineStage&,
                   const void* coefficients, StorePolicy,
                   const ChannelSums& sums);

  Pass Of(PassKind kind) const { return passes[static_cast<int>(kind)]; }
};

// Each build defines, for each formula F,
//   const Kernels* KernelTable_<build>(const F*);   [kNumDTypes]
// by TFBN_DEFINE_KERNELS of kernel_table.h.
#define TFBN_CONCAT_(a, b) a##_##b
#define TFBN_CONCAT(a, b) TFBN_CONCAT_(a, b)
#define TFBN_KERNEL_TABLE(build) TFBN_CONCAT(KernelTable, build)

}  // namespace tf_bn_ops
