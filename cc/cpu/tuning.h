// Every constant of the CPU backend that was measured or estimated. None of
// them changes a bit of any result: what does stands in cc/core/partition.h.
//
// Measured in November 2026, on two cores of virtual machines:
//
//   A  AMD EPYC, AVX2, 512 KiB of L2 a core, 32 MiB of LLC
//   B  AMD EPYC, AVX-512 and AVX2, 1 MiB of L2 a core, 32 MiB of LLC
//   X  Intel Xeon, AVX-512, 2 MiB of L2 a core
//
// A constant says its machine, if it was noted, and the cost of other values:
// the time of a call with the other value over the time with this one. To
// measure one again, build both libraries and compare them in pairs of calls:
//
//   cp tf_bn_ops/lib/libtf_bn_ops_core.so /tmp/before.so
//   make bench-against LIB=/tmp/before.so     (TF_BN_OPS_CPU_ISA=avx2 for AVX2)

#pragma once

#include <cstdint>

#include "cc/core/partition.h"

namespace tf_bn_ops {

// ---- Hardware ---------------------------------------------------------------

// Bytes of a cache line on all processors that kernels are built for. (Some
// aarch64 have lines of 128 bytes, which hold whole ones of these.)
constexpr int kCacheLineBytes = 64;

// Loads and stores whose addresses agree in their lower 12 bits look alike to a
// processor until it has translated them: 4 KiB aliasing.
constexpr int64_t kPageBytes = 4096;

// ---- Plan (plan.cc) ---------------------------------------------------------

// Serial threshold in elements: below it a call stays on the calling thread,
// since waking another one takes 10 to 40 microseconds. X.
constexpr int64_t kSerialElements = int64_t{1} << 15;

// Bytes of the narrowest row of a tile or channel group that is worth its
// scattered accesses: hardware fetches lines in pairs, and each row opens a
// DRAM page. Estimated.
constexpr int64_t kMinRowBytes = 512;

// Guided self-scheduling: a task is 1/kGuidedDivisor of what is left of a
// thread's share, and has at least kMinTaskElements elements, 10 microseconds.
// Large tasks first, since the first tile of a stolen one is not prefetched.
constexpr int64_t kGuidedDivisor = 2;
constexpr int64_t kMinTaskElements = int64_t{1} << 14;

// L2 holds this many of the tiles or channel groups that are prefetched whole:
// this one, the next one, the results of both, and what others use. X:
// groups of up to 256 KiB are 1.00 to 1.02 times as fast as with a fixed
// distance, larger ones no faster.
constexpr int64_t kPrefetchedTilesInL2 = 8;

// Most rows, channels last, of which a channel group is a part of each: the
// parts lie in cache between the passes, and so does the group's workspace.
// Two passes over all: [1, 1000000, 1] in float32 2.5 to 3.9, [4, 30000, 1] 1.1
// to 1.3, [32, 4096, 1] 1.0 to 1.1. X.
constexpr int64_t kMostWideRows = 32;

// L1 bytes for the centers, sums and coefficients of a tile's columns; the
// tensors need the rest of 32 KiB.
constexpr int64_t kL1TileBytes = 24 << 10;

// An output that begins at most so many bytes behind an input, modulo 4 KiB,
// makes each load wait for the non-temporal store before it. A: one
// line behind 4.5, two 1.6, three 1.0.
constexpr int64_t kAliasBytes = 2 * kCacheLineBytes;
// Bytes of the shortest rows for which that holds: with 1 KiB 1.0. A.
constexpr int64_t kAliasedRowBytes = 2048;

// Part of L2 for the scratch of a pipeline; what is read and prefetched passes
// through the rest. X.
constexpr double kScratchPartOfL2 = 0.7;
// Where a tensor fits LLC: the most of L2 that a channel of a pipeline takes.
// X, two threads, 32 MiB of LLC: the second order of [32, C, 3136] in float32,
// of which it takes 0.57, with a pipeline over without: 1.02 to 1.09 for C = 32
// and 64, 0.84 for 96.
constexpr double kChannelPartOfL2InLlc = 0.5;
// Elements between the copies of two inputs in a scratch, lest they lie a
// multiple of 4 KiB apart.
constexpr int64_t kScratchPadding = 96;
// The same of the coefficients of all channels, and of the columns of a tile.
// At least a vector, since they are read in whole vectors.
constexpr int64_t kCoefficientPadding = 48;
constexpr int64_t kColumnPadding = 64;
static_assert(kCoefficientPadding >= kMaxLanes && kColumnPadding >= kMaxLanes);

// ---- Strips (isa/pass.h) ----------------------------------------------------

// Bytes of the rows of a strip: two pages, which hardware prefetchers follow as
// one stream.
constexpr int64_t kStripBytes = 8192;

// Most rows of a strip; more gained nothing. Strips of narrow elements have
// whole chains of two-level sums. X.
constexpr int kMaxRowsPerStrip = 8;
static_assert(kMaxRowsPerStrip % kTwoLevelChain == 0,
              "a strip would end within a chain, and change bits");

// Most rows of a strip that stores float32 or float64 non-temporally and sums
// nothing: eight 1.0 to 1.1 with AVX-512 (B); with AVX2 1.0 to 1.3 (A),
// 0.96 to 1.08 (B); two or one, up to 1.8 on one of them. With sums, which
// strips load and store, four instead of eight 1.04 to 1.19.
constexpr int kMaxStoringRows = 4;

// Fewest rows of a strip that takes vectors in packs, since its coefficients
// are brought to their order first. A, bfloat16: packs with one row 1.2
// ([128, 1024, 16]), with four 0.9 ([3136, 1024, 1]).
constexpr int64_t kLeastPackedRows = 4;

// Fewest full lines of a row that has columns beside them for non-temporal
// stores. With one to three, temporal stores are 2.5 to 2.9 times as fast in
// half, 1.2 to 1.4 times in float32; with 15, 1.4 times as slow.
constexpr int64_t kLeastFullLines = 4;

// Whether rows that lie `bytes` apart are stored non-temporally one at a time:
// loads of the other rows of a strip alias what was just stored. A, the
// worst of five placements of the output: [6272, 1024, 1] in float32 3.9 with
// two rows at a time, 1.25 with one; [32, 512, 784] in half 2.4. Rows of 2 KiB,
// four at a time, are slower in float32 alone: half is 1.5 times as fast.
inline __attribute__((always_inline)) bool ShareAPageOffset(int64_t bytes,
                                                            bool is_narrow) {
  constexpr int64_t kNear = 2 * kCacheLineBytes;
  const int64_t period = is_narrow ? kPageBytes : kPageBytes / 2;
  return bytes >= period - kNear && (bytes + kNear) % period <= 2 * kNear;
}

// ---- Prefetch (isa/prefetch.h) ----------------------------------------------

// Prefetch distance in bytes, in the order of traversal. X: below kStripBytes
// lines arrive late; 8 to 32 KiB 1.0.
constexpr int64_t kPrefetchBytes = 16384;

// Short parts of rows are prefetched ahead in their own tile where at most one
// row in so many is left to the next tile. A.
constexpr int64_t kLeastRowsOfDistances = 8;

// ---- Pipeline (isa/pipeline.h) ----------------------------------------------

// Prefetch distance in bytes: with 16 KiB 1.1 to 1.2 where rows are short
// ([128, 256, 256] in float32). X.
constexpr int64_t kPipelinePrefetchBytes = 4096;

// Bytes of all inputs of the segments that are taken at once, results first,
// then sums. With AVX2 half as many 1.03 to 1.08 in the forward pass of
// float32, twice as many 1.08 in the gradient; with AVX-512 twice as many up
// to 1.08. Narrow elements have whole chains of two-level sums, whatever their
// bytes.
constexpr int64_t kPipelineStageBytes = 1024;

}  // namespace tf_bn_ops
