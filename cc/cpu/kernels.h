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
  // A tensor of view shape that the second pass alone reads; a pass that sums
  // prefetches the elements of its tile. nullptr: there is none.
  const void* read_later = nullptr;
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

// How the loop of a pass goes through the rows of a tile (isa/pass.h).
struct LoopPlan {
  StorePolicy stores = StorePolicy::kNone;
  // Of a pass that sums and stores: each takes a loop of its own.
  bool two_loops = false;
  // Rows of a strip of a loop that sums, and of one that stores alone.
  int sum_rows = 0, store_rows = 0;
  // A loop that stores alone takes neighbouring vectors in packs (isa/vec.h).
  bool packs = false;
};

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

// What the kernels read and write of channels, in arrays that are indexed by
// channel: what sums are centered at, unless there are none; coefficients,
// CoefficientStride apart, in the type that the formula is applied in (double
// for float64, else float); and sums over a tile.
struct ChannelArrays {
  const double* centers;
  const void* coefficients;
  ChannelSums sums;
};

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

// What a plan depends on of the vectors of a build, for one formula and type.
struct VectorTraits {
  bool has_non_temporal_stores;
  bool is_cache_line;  // A vector.
  // The vectors of a strip that sums, and of one that stores alone, are whole
  // cache lines of elements.
  bool sums_fill_lines, stores_fill_lines;
  bool has_packs;  // Of a strip that stores alone.
};

// The kernels of one formula (cc/core/formulas) for one element type; nullptr:
// no op makes such a call, or there is no pipeline (kernel_table.h).
struct Kernels {
  bool is_defined;  // Whether the build has kernels of this type.
  VectorTraits vectors;
  // By PassKind. Sums are over the tile, of its channels.
  using PassFunction = void (*)(const Call&, const Partition&, const Tile&,
                                const LoopPlan&, const ChannelArrays&);
  PassFunction passes[kNumPassKinds];
  // Training, in kSegments: kApply of the current group and kReduce of the next
  // one, by the plans of the first pass and of the second one.
  void (*pipeline)(const Call&, const Partition&, const PipelineStage&,
                   const LoopPlan (&)[2], const ChannelArrays&);

  PassFunction Of(PassKind kind) const {
    return passes[static_cast<int>(kind)];
  }
};

// Each build defines, for each formula F,
//   const Kernels* KernelTable_<build>(const F*);   [kNumDTypes]
// by TFBN_DEFINE_KERNELS of kernel_table.h.
#define TFBN_CONCAT_(a, b) a##_##b
#define TFBN_CONCAT(a, b) TFBN_CONCAT_(a, b)
#define TFBN_KERNEL_TABLE(build) TFBN_CONCAT(KernelTable, build)

}  // namespace tf_bn_ops
