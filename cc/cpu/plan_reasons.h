// Why a plan is what it is: one table of the reasons behind its decisions, each
// with a name for programs and a sentence for people.

#pragma once

namespace tf_bn_ops {

// X(enumerator, name, sentence). {found} and {limit} stand for the two numbers
// that the decision compared, see Why in plan.h.
#define TFBN_PLAN_REASONS(X)                                                   \
  /* Several decisions. */                                                     \
  X(kNotApplicable, "not_applicable", "the schedule has no such thing")        \
  X(kNoElements, "no_elements",                                                \
    "the view has no elements: only outputs of shape [channels] are written")  \
  X(kFoldedRows, "folded_rows",                                                \
    "rows of few columns: {found} outer indices are folded into one row, "     \
    "which holds all channels")                                                \
  X(kAllChannels, "all_channels", "all {found} channels fit one tile")         \
  X(kFairShare, "fair_share",                                                  \
    "at most {found} channels, so that each of {limit} threads gets two")      \
  /* Partition. */                                                             \
  X(kFullRows, "full_rows",                                                    \
    "the {found} columns of one outer index fill whole vectors")               \
  X(kLongInner, "long_inner",                                                  \
    "inner size {found} is above {limit}: rows are segments of one channel")   \
  X(kFewOuter, "few_outer",                                                    \
    "only {found} outer indices: rows are segments of one channel")            \
  /* Tile width. */                                                            \
  X(kSumsFitL1, "sums_fit_l1",                                                 \
    "{found} columns: the running sums of {limit} columns fit L1")             \
  X(kStreamedRows, "streamed_rows",                                            \
    "{found} columns: rows of up to {limit} columns stream from memory "       \
    "whole, which gains more than running sums in L1")                         \
  X(kFullVectors, "full_vectors",                                              \
    "{found} columns of {limit}: fewer, whose sums fit L1, would end in "      \
    "partial vectors")                                                         \
  X(kMinRowBytes, "min_row_bytes",                                             \
    "widened to {found} bytes per row: scattered rows below {limit} bytes "    \
    "cost more than they gain")                                                \
  X(kTaskElements, "task_elements",                                            \
    "short channels: a tile has up to {limit} elements")                       \
  X(kOneChannel, "one_channel",                                                \
    "a channel alone has {found} elements, enough for a tile")                 \
  /* Schedule. */                                                              \
  X(kFrozen, "frozen",                                                         \
    "frozen, the results do not depend on the sums: one pass")                 \
  X(kSumsGiven, "sums_given", "the sums are given: one pass stores")           \
  X(kSumsWanted, "sums_wanted",                                                \
    "no output of view shape is wanted: one pass sums")                        \
  X(kGroupFitsCache, "group_fits_cache",                                       \
    "a group's {found} bytes of inputs stay in the {limit} bytes of cache "    \
    "that one thread counts on: memory is read once for both passes")          \
  X(kChannelsLast, "channels_last",                                            \
    "a channel group would be a part of every row, and reading parts is "      \
    "slower than reading all rows twice")                                      \
  X(kChannelExceedsCache, "channel_exceeds_cache",                             \
    "one channel has {found} bytes of inputs, more than the {limit} bytes of " \
    "cache that one thread counts on")                                         \
  X(kTooFewChannels, "too_few_channels",                                       \
    "{found} channels: two groups for each thread need {limit}")               \
  X(kShortRows, "short_rows",                                                  \
    "rows of a group have {found} bytes, less than {limit} bytes")             \
  /* Width of a channel group. */                                              \
  X(kCacheBudget, "cache_budget",                                              \
    "as many channels as fit the {limit} bytes of cache that one thread "      \
    "counts on")                                                               \
  X(kTileWidth, "tile_width", "as wide as a tile")                             \
  X(kScratchBudget, "scratch_budget",                                          \
    "as many channels as fit the {limit} bytes of scratch in L2")              \
  /* Pipeline over channel groups. */                                          \
  X(kPackedGroup, "packed_group",                                              \
    "one group is written while the next one is read; the {found} bytes of "   \
    "a group's inputs lie side by side in L2, of which they may take {limit}") \
  X(kGroupExceedsL2, "group_exceeds_l2",                                       \
    "one group is written while the next one is read, uncopied: a group has "  \
    "{found} bytes of inputs, a scratch in L2 at most {limit}")                \
  X(kLargeChannelInLlc, "large_channel_in_llc",                                \
    "a channel has {found} bytes of inputs; while tensors fit LLC, only one "  \
    "of at most {limit} bytes leaves L2 enough room")                          \
  X(kSumsExceedRegisters, "sums_exceed_registers",                             \
    "rows are not segments of one channel, so that the sums and coefficients " \
    "of both groups would not fit L1")                                         \
  X(kOneGroup, "one_group", "there is no group to read meanwhile")             \
  X(kNoPipelineKernel, "no_pipeline_kernel",                                   \
    "the build has one for float32, half and bfloat16 alone, of the forward "  \
    "op and of the gradient, also behind ReLU, without a side input")          \
  /* Threads. */                                                               \
  X(kAllOffered, "all_offered", "every thread that the executor offers")       \
  X(kOneOffered, "one_offered", "the executor offers one")                     \
  X(kBelowSerialThreshold, "below_serial_threshold",                           \
    "{found} elements are below the serial threshold of {limit}: waking a "    \
    "second thread costs about as much as the work")                           \
  X(kOneBlock, "one_block",                                                    \
    "the partition has one block of {found} elements, which one tile covers")  \
  X(kFewTasks, "few_tasks",                                                    \
    "no pass has more than {found} tasks for the {limit} threads")             \
  /* Tasks. */                                                                 \
  X(kOneThread, "one_thread", "one thread takes all")                          \
  X(kGuided, "guided",                                                         \
    "guided self-scheduling: a task is a fixed part of what is left, at "      \
    "least {limit} elements")                                                  \
  X(kOneTaskEach, "one_task_each",                                             \
    "{found} tasks, one for each thread, which takes group after group")       \
  /* Stores. */                                                                \
  X(kFitsL2s, "fits_l2s",                                                      \
    "inputs and outputs have {found} bytes, within the {limit} bytes of the "  \
    "threads' L2")                                                             \
  X(kExceedsL2s, "exceeds_l2s",                                                \
    "inputs and outputs have {found} bytes, more than the {limit} bytes of "   \
    "the threads' L2: results would evict what is read next")                  \
  X(kFitsLlc, "fits_llc",                                                      \
    "inputs and outputs have {found} bytes, within the {limit} bytes of LLC")  \
  X(kExceedsLlc, "exceeds_llc",                                                \
    "inputs and outputs have {found} bytes, more than the {limit} bytes of "   \
    "LLC: results would evict what is read next")                              \
  X(kInPlace, "in_place",                                                      \
    "outputs are the buffers of inputs, so their lines are in cache already")  \
  X(kPageOffsetAlias, "page_offset_alias",                                     \
    "an output begins within {limit} bytes behind an input, modulo 4 KiB: "    \
    "loads would wait for non-temporal stores")                                \
  X(kNoNonTemporalStores, "no_non_temporal_stores",                            \
    "the build has no stores past the caches")                                 \
  X(kRowsApart, "rows_apart",                                                  \
    "rows have {found} bytes, no multiple of the {limit} of a cache line: "    \
    "they begin anywhere in one")                                              \
  X(kOutputsApart, "outputs_apart",                                            \
    "outputs begin in different places of a cache line")                       \
  /* Loops. */                                                                 \
  X(kPartsOfLines, "parts_of_lines",                                           \
    "the vectors of a strip are no whole cache lines: row by row, they are "   \
    "complete soon")                                                           \
  X(kAliasedRows, "aliased_rows",                                              \
    "rows of {limit} bytes share a page offset: loads would wait for stores")  \
  X(kFarRows, "far_rows",                                                      \
    "rows lie {found} bytes apart, at least {limit}: results come from L1, "   \
    "behind the sums of a few rows")                                           \
  X(kRowsReadOnce, "rows_read_once",                                           \
    "what is loaded is summed and stored from registers")                      \
  X(kRowsInStrip, "rows_in_strip",                                             \
    "{found} rows: as many as have {limit} bytes, but at least two")           \
  X(kWholeChains, "whole_chains", "{found} rows: a chain of a two-level sum")  \
  X(kPackedRows, "packed_rows",                                                \
    "{found} rows, at least {limit}, share coefficients that are brought to "  \
    "the order of packs")                                                      \
  X(kFewRows, "few_rows",                                                      \
    "{found} rows, fewer than {limit}, do not pay for bringing coefficients "  \
    "to the order of packs")                                                   \
  /* Early output. */                                                          \
  X(kSecondPassReadsIt, "second_pass_reads_it",                                \
    "the first pass stores it, and the second one reads it in place of what "  \
    "it was computed from")                                                    \
  X(kOverwritesInput, "overwrites_input",                                      \
    "it is the buffer of an input that the second pass reads")                 \
  X(kRoundedOutput, "rounded_output",                                          \
    "the second pass computes from it what is rounded once")                   \
  X(kCheapSlope, "cheap_slope",                                                \
    "the derivative takes less time than to store and load a product")         \
  X(kProductExceedsLlc, "product_exceeds_llc",                                 \
    "inputs and outputs have {found} bytes, more than the {limit} bytes of "   \
    "LLC: what both passes compute is cheaper than memory")                    \
  X(kGroupInCache, "group_in_cache",                                           \
    "the second pass finds a group's inputs in cache, where this output "      \
    "would not be")                                                            \
  /* Prefetch. */                                                              \
  X(kWholeRows, "whole_rows",                                                  \
    "memory is read in the order of addresses: a fixed distance ahead")        \
  X(kSmallTile, "small_tile",                                                  \
    "the next one has {found} bytes of inputs, at most {limit} bytes: L2 "     \
    "holds it beside this one")                                                \
  X(kPipelined, "pipelined",                                                   \
    "groups follow each other without a break: a fixed distance ahead")        \
  X(kLargeTile, "large_tile",                                                  \
    "the next one has {found} bytes of inputs, more than {limit} bytes: L2 "   \
    "would lose it before its turn")                                           \
  X(kL2Resident, "l2_resident",                                                \
    "the first pass left the {found} bytes of inputs in the {limit} bytes of " \
    "L2")                                                                      \
  X(kPrefetchedByFirst, "prefetched_by_first",                                 \
    "the first pass prefetched what it does not read; the {found} bytes of "   \
    "inputs fit the {limit} bytes of L2")                                      \
  X(kExceedsL2, "exceeds_l2",                                                  \
    "{found} bytes of inputs do not fit the {limit} bytes of L2")

enum class Reason {
#define X(enumerator, name, sentence) enumerator,
  TFBN_PLAN_REASONS(X)
#undef X
};

}  // namespace tf_bn_ops
