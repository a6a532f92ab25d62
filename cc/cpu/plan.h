// The plan of a call on the CPU: how it is cut into tiles, scheduled, stored
// and prefetched, and why. A plan is computed first (MakePlan), then executed
// (driver.h) and, on request, printed (verbose.h).
//
// Nothing in a plan changes a bit of the results: the order of summation is a
// function of the view alone (cc/core/partition.h).

#pragma once

#include <cstdint>
#include <vector>

#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "cc/core/partition.h"
#include "cc/core/view.h"
#include "cc/cpu/kernels.h"
#include "cc/cpu/plan_reasons.h"

namespace tf_bn_ops {

// Sizes of data caches. They steer scheduling and stores, never what is
// computed.
struct CacheSizes {
  int64_t l2_bytes;   // Private to a core.
  int64_t llc_bytes;  // Last level, shared by all cores; at most 32 MiB.
};
// This machine's caches, read from the system once per process
// (cache_sizes.cc).
const CacheSizes& MachineCacheSizes();

// What a plan has to know of a formula (cc/core/formulas).
struct FormulaTraits {
  const char* name;  // Such as "batch_norm_grad".
  FormulaKind kind;
  int inputs, outputs;  // Tensors of view shape that the call has.
  // Columns of a tile whose running sums fit L1 (TileColumns), by mode.
  int64_t training_l1_columns, frozen_l1_columns;
  bool has_early_output;  // That the first pass can store, see formula.h.
  bool is_smooth;         // Whether it is a product, not masked elements.
  int reduce_inputs;      // That the first pass reads, the first ones.
  bool has_mask;          // Of an activation, which sums need, too.
  bool sums_frozen;       // Frozen, the one pass sums and stores.
};

// The buffer of an early output (formula.h).
enum class EarlyBuffer {
  kOwn,
  kInPlace,     // Of an input that the second pass does not read then.
  kOverwrites,  // Of one that it reads.
};

// All that a plan depends on.
struct PlanRequest {
  View view;
  DType dtype = DType::kFloat32;
  FormulaTraits formula = {};
  bool is_training = true;
  bool has_totals = false;  // The sums are given: the second pass alone.
  const Kernels* kernels = nullptr;
  // Each output is the buffer of an input of the pass that stores it.
  bool in_place = false;
  EarlyBuffer early_buffer = EarlyBuffer::kOwn;
  bool second_in_place = false;  // With an early output, x_backprop is.
  bool outputs_apart = false;    // In different places of a cache line.
  bool costly_slope = true;      // SlopeIsCostly of the activation.
  // An output begins at most kAliasBytes behind an input, modulo kPageBytes.
  bool page_offset_alias = false;
  int threads = 1;  // That the executor offers, the caller's included.
  CacheSizes caches = {};
};

enum class Schedule {
  kSmallOutputs,   // No elements: outputs of shape [channels] alone.
  kElementsAlone,  // The sums are given: apply all tiles.
  kFrozenOnePass,  // Frozen: one pass over all tiles sums and stores.
  kReduceOnly,     // Training without outputs of view shape: reduce all tiles.
  kChannelGroups,  // Training: both passes over one channel group at a time.
  kTwoPasses,      // Training: reduce all tiles, then apply in reverse order,
                   // since the last ones read are still in cache.
};

// How the two passes over channel groups overlap (cc/cpu/isa/pipeline.h).
enum class Pipeline {
  kNone,    // One group after the other, one pass after the other.
  kDirect,  // One group is applied while the next one is reduced.
  kPacked,  // The same, and what is reduced is copied to a scratch in L2.
};

// A decision's reason and the two numbers that it compared, 0 where there are
// none.
struct Why {
  Reason reason = Reason::kNotApplicable;
  int64_t found = 0, limit = 0;
};

struct Plan {
  Partition partition;  // Fixed by the view, see partition.h.
  Why partition_why;

  // Tile: `tile_channels` channels (the last ones fewer) of one block.
  int64_t tile_channels = 0;
  Why tile_why;
  int64_t tiles_per_block = 0, tiles = 0;

  Schedule schedule = Schedule::kSmallOutputs;
  Why schedule_why;

  // Of kChannelGroups.
  int64_t group_channels = 0, groups = 0;
  Why group_why;
  Pipeline pipeline = Pipeline::kNone;
  Why pipeline_why;
  // kPacked: elements from the copy of one input to the next copy, and
  // bytes of all copies.
  int64_t scratch_stride = 0, scratch_bytes = 0;

  int64_t num_tasks = 0;
  // Task i covers tiles (or channel groups) from task_bounds[i] up to, without,
  // task_bounds[i + 1]. In a pipeline these are where it begins; then it takes
  // groups that are left of other tasks. Empty: one task has all; a small call
  // allocates nothing.
  std::vector<int64_t> task_bounds;
  // Share s, of one thread (see executor.h), has the tasks from
  // share_bounds[s] up to, without, share_bounds[s + 1]. Empty: one has all.
  std::vector<int64_t> share_bounds;
  Why tasks_why;

  int threads = 1;  // That find a task, the caller's included.
  Why threads_why;

  StorePolicy store_policy = StorePolicy::kTemporal;
  Why store_why;

  // The first pass stores the formula's early output.
  bool early_output = false;
  Why early_output_why;

  // By pass; one pass that is all has the first one, elements alone the second
  // one. Rows of strips lie equally far apart in both.
  LoopPlan loops[2];
  Why early_store_why, two_loops_why, sum_rows_why, store_rows_why, packs_why;

  // The first pass prefetches what the second one alone reads, of its tile.
  bool prefetches_for_second_pass = false;
  // By pass; kChannelGroups and kTwoPasses have the second one.
  PrefetchKind prefetch[2] = {PrefetchKind::kNone, PrefetchKind::kNone};
  Why prefetch_why[2];
};

// A pure function: equal requests give equal plans, on every machine.
Plan MakePlan(const PlanRequest& request);

}  // namespace tf_bn_ops
