// Executes plans: the passes over tiles or channel groups.

#include "cc/cpu/driver.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/core/fp_env.h"
#include "cc/core/partition.h"
#include "cc/cpu/formula_entry.h"
#include "cc/cpu/scratch.h"
#include "cc/cpu/verbose.h"

namespace tf_bn_ops {
namespace {

// In place of a channel group.
constexpr int64_t kNoGroup = TaskShares::kNone;

// Executes the plan of one call that has elements.
class Driver {
 public:
  Driver(const Call& call, FormulaIndex formula, const Plan& plan,
         const Implementation& implementation, void* workspace)
      : call_(call),
        view_(call.view),
        plan_(plan),
        blocks_(NumBlocks(plan.partition)),
        entry_(EntryOf(formula)),
        kernels_(implementation.KernelsOf(formula, call.dtype)),
        apply_call_(&call),
        apply_(kernels_.Of(PassKind::kApply)),
        reduce_(kernels_.Of(PassKind::kReduce)),
        read_later_(plan.prefetches_for_second_pass
                        ? entry_.tensors(call).in[entry_.traits.reduce_inputs]
                        : nullptr),
        sums_(static_cast<double*>(workspace)),
        centers_(sums_ + entry_.num_sums * view_.channels * blocks_),
        coefficients_(centers_ + view_.channels) {
    if (plan.early_output) UseEarlyOutput(implementation);
  }

  void Run(Executor& executor) {
    // For coefficients that are computed before the first task, too.
    const ScopedFpState fp_state;
    switch (plan_.schedule) {
      case Schedule::kElementsAlone:
        Prepare(0, view_.channels);
        RunPhases(executor, plan_.threads, Phases(TilePass<&Driver::Apply>()));
        break;
      case Schedule::kFrozenOnePass:
        Prepare(0, view_.channels);
        RunPhases(executor, plan_.threads,
                  WithFinish(TilePass<&Driver::Frozen>()));
        break;
      case Schedule::kChannelGroups:
        if (plan_.pipeline == Pipeline::kNone) {
          RunPhases(executor, plan_.threads, Phases(GroupPass()));
        } else {
          TaskShares groups(plan_.task_bounds);
          RunPhases(executor, plan_.threads, Phases(PipelinePass(groups)));
        }
        break;
      case Schedule::kReduceOnly:
        Prepare(0, view_.channels);
        RunPhases(executor, plan_.threads,
                  WithFinish(TilePass<&Driver::Reduce>()));
        break;
      default:
        Prepare(0, view_.channels);
        std::vector<Phase> phases = WithFinish(TilePass<&Driver::Reduce>());
        phases.push_back(TilePass<&Driver::Apply, Direction::kBackward>());
        RunPhases(executor, plan_.threads, std::move(phases));
    }
  }

 private:
  enum class Direction { kForward, kBackward };
  using TileFunction = void (Driver::*)(const Tile&, int64_t block) const;
  static constexpr int kMostPhases = 3;  // Reduce, finish, apply.

  // The tiles of one block are neighbours.
  Tile TileAt(int64_t t) const {
    const int64_t c0 = t % plan_.tiles_per_block * plan_.tile_channels;
    return {BlockAt(view_, plan_.partition, t / plan_.tiles_per_block), c0,
            std::min(c0 + plan_.tile_channels, view_.channels)};
  }

  // Offset of the first element of a tile.
  int64_t OffsetOf(const Tile& tile) const {
    return (tile.block.o0 * view_.channels + tile.c0) * view_.inner +
           tile.block.i0;
  }

  // One pass over all tiles. Backward, each thread has the tiles of its share
  // in reverse order, since the last ones read are still in its L2. (A task
  // that captures no more than `this` needs no memory of its own: allocations
  // show in calls of a microsecond.)
  template <TileFunction kPass, Direction kDirection = Direction::kForward>
  Phase TilePass() const {
    return {plan_.num_tasks,
            [this](int64_t task) {
              const auto [begin, end] = UnitsOf(task);
              if (kDirection == Direction::kForward) {
                RunTiles<kPass, kDirection>(begin, end - 1);
              } else {
                const auto [share_begin, share_end] = ShareOf(task);
                RunTiles<kPass, kDirection>(share_begin + share_end - 1 - begin,
                                            share_begin + share_end - end);
              }
            },
            ShareBounds()};
  }

  // The tiles or channel groups of a task, the end not included.
  std::pair<int64_t, int64_t> UnitsOf(int64_t task) const {
    if (plan_.task_bounds.empty()) return {0, NumUnits()};
    return {plan_.task_bounds[task], plan_.task_bounds[task + 1]};
  }
  int64_t NumUnits() const {
    return plan_.schedule == Schedule::kChannelGroups ? plan_.groups
                                                      : plan_.tiles;
  }
  // nullptr: one share has all tasks.
  const std::vector<int64_t>* ShareBounds() const {
    return plan_.share_bounds.empty() ? nullptr : &plan_.share_bounds;
  }

  // Tiles from `first` to `last`, which is included, in one direction.
  template <TileFunction kPass, Direction kDirection>
  void RunTiles(int64_t first, int64_t last) const {
    constexpr bool kForward = kDirection == Direction::kForward;
    Tile tile = TileAt(first);
    for (int64_t t = first;;) {
      const int64_t following = kForward ? t + 1 : t - 1;
      // Behind a task the first tile of the next one is prefetched: this thread
      // usually takes it.
      Tile next = tile;
      if (0 <= following && following < plan_.tiles) next = TileAt(following);
      SetPrefetch(plan_.prefetch[kForward ? 0 : 1], next, &tile);
      (this->*kPass)(tile, t / plan_.tiles_per_block);
      if (t == last) return;
      t = following;
      tile = next;
    }
  }

  // `next`: the tile that is read after `tile`, which itself says that there is
  // none.
  void SetPrefetch(PrefetchKind kind, const Tile& next, Tile* tile) const {
    tile->prefetch = kind;
    tile->next_offset = OffsetOf(next) - OffsetOf(*tile);
  }

  // The tiles, from `first` up to `end`, of the share that a task belongs to.
  std::pair<int64_t, int64_t> ShareOf(int64_t task) const {
    if (plan_.share_bounds.empty()) return {0, NumUnits()};
    const std::vector<int64_t>& bounds = plan_.share_bounds;
    const auto end = std::upper_bound(bounds.begin(), bounds.end(), task);
    return {plan_.task_bounds[end[-1]], plan_.task_bounds[*end]};
  }

  Phase GroupPass() const {
    return {plan_.num_tasks,
            [this](int64_t task) {
              const auto [begin, end] = UnitsOf(task);
              BothPasses(begin);
              for (int64_t g = begin + 1; g < end; ++g) {
                WithWorkspaceOf(begin, g).BothPasses(g);
              }
            },
            ShareBounds()};
  }

  // Group g of a task uses the workspace of its first one: it stays in cache.
  Driver WithWorkspaceOf(int64_t first, int64_t g) const {
    Driver of = *this;
    const int64_t channels = (g - first) * plan_.group_channels;
    of.sums_ -= channels;
    of.centers_ -= channels;
    of.coefficients_ =
        static_cast<char*>(of.coefficients_) -
        channels * static_cast<int64_t>(SizeOf(ComputeDTypeOf(call_.dtype)));
    return of;
  }

  // Both passes over channel group g.
  void BothPasses(int64_t g) const {
    // Where a call takes a microsecond, what is not computed shows.
    const bool alone = blocks_ == 1 && plan_.groups == 1;
    Tile tile = TileOfGroup(g, 0);
    Prepare(tile.c0, tile.c1);
    for (int64_t b = 0; b < blocks_; ++b) {
      if (b > 0) tile = TileOfGroup(g, b);
      SetPrefetch(plan_.prefetch[0], alone ? tile : TileBehind(g, b), &tile);
      tile.read_later = read_later_;
      Reduce(tile, b);
    }
    Finish(tile.c0, tile.c1);
    // Backward: the blocks read last are still in L1 and L2.
    for (int64_t b = blocks_ - 1; b >= 0; --b) {
      const Tile next = b > 0 ? TileOfGroup(g, b - 1) : tile;
      SetPrefetch(plan_.prefetch[1], next, &tile);
      Apply(tile, b);
      tile = next;
    }
  }

  // What is read after block b of group g: its next block or, where the whole
  // next group is prefetched, that group's block; itself behind the last one.
  Tile TileBehind(int64_t g, int64_t b) const {
    const bool next_tile = plan_.prefetch[0] == PrefetchKind::kNextTile;
    if (!next_tile && b + 1 < blocks_) return TileOfGroup(g, b + 1);
    if (g + 1 == plan_.groups) return TileOfGroup(g, b);
    return TileOfGroup(g + 1, next_tile ? b : 0);
  }

  // Both passes over all groups; each task takes its share, then others.
  Phase PipelinePass(TaskShares& groups) const {
    return {plan_.num_tasks,
            [this, &groups](int64_t task) {
              int64_t next = groups.Take(task);
              if (next == kNoGroup) return;
              const ScopedScratch scratch(plan_.scratch_bytes);
              int64_t current = kNoGroup;
              do {
                RunStage(current, next, scratch.data());
                current = next;
                if (current != kNoGroup) next = groups.Take(task);
              } while (current != kNoGroup);
            },
            ShareBounds()};
  }

  // Applies the current group while it reduces the next one; one of both may be
  // kNoGroup.
  void RunStage(int64_t current, int64_t next, void* scratch) const {
    PipelineStage stage = {TileOfGroup(current, 0), TileOfGroup(next, 0),
                           scratch, plan_.group_channels, plan_.scratch_stride};
    const int64_t c0 = stage.next.c0, c1 = stage.next.c1;
    Prepare(c0, c1);
    for (int64_t b = 0; b < blocks_; ++b) {
      stage.current = TileOfGroup(current, b);
      stage.next = TileOfGroup(next, b);
      SetPrefetch(PrefetchKind::kFixedDistance,
                  next == kNoGroup ? stage.next : TileBehind(next, b),
                  &stage.next);
      kernels_.pipeline(call_, plan_.partition, stage, plan_.loops,
                        ArraysOf(b));
    }
    Finish(c0, c1);
  }

  // The channels of group g in block b; none of kNoGroup.
  Tile TileOfGroup(int64_t g, int64_t b) const {
    Tile tile{BlockAt(view_, plan_.partition, b), 0, 0};
    if (g == kNoGroup) return tile;
    tile.c0 = g * plan_.group_channels;
    tile.c1 = std::min(tile.c0 + plan_.group_channels, view_.channels);
    return tile;
  }

  // A pass, and the end of its sums: where one task would do that, as a part of
  // the pass, which saves a barrier (8 microseconds with two threads of a
  // virtual machine).
  std::vector<Phase> WithFinish(Phase pass) const {
    if (plan_.tiles_per_block == 1) {
      pass.last = [this] { Finish(0, view_.channels); };
      return Phases(std::move(pass));
    }
    std::vector<Phase> phases = Phases(std::move(pass));
    phases.push_back(
        {plan_.tiles_per_block, [this](int64_t t) {
           const int64_t c0 = t * plan_.tile_channels;
           Finish(c0, std::min(c0 + plan_.tile_channels, view_.channels));
         }});
    return phases;
  }

  // A phase that others may follow. (An initializer list would copy it.)
  static std::vector<Phase> Phases(Phase&& first) {
    std::vector<Phase> phases;
    phases.reserve(kMostPhases);
    phases.push_back(std::move(first));
    return phases;
  }

  ChannelSums Sums(int64_t b) const {
    return ChannelSums{sums_ + entry_.num_sums * view_.channels * b,
                       view_.channels};
  }

  // The first pass stores the formula's early output, and the second pass of
  // another formula reads it.
  void UseEarlyOutput(const Implementation& implementation) {
    second_call_ = entry_.early.second_call(call_);
    const FormulaIndex second = entry_.early.second_pass;
    apply_call_ = &second_call_;
    apply_ = implementation.KernelsOf(second, call_.dtype).Of(PassKind::kApply);
    reduce_ = kernels_.Of(PassKind::kReduceStoring);
  }

  ChannelArrays ArraysOf(int64_t b) const {
    return {centers_, coefficients_, Sums(b)};
  }
  void Reduce(const Tile& tile, int64_t b) const {
    reduce_(call_, plan_.partition, tile, plan_.loops[0], ArraysOf(b));
  }
  void Apply(const Tile& tile, int64_t) const {
    apply_(*apply_call_, plan_.partition, tile, plan_.loops[1], ArraysOf(0));
  }
  void Frozen(const Tile& tile, int64_t b) const {
    kernels_.Of(PassKind::kFrozen)(call_, plan_.partition, tile, plan_.loops[0],
                                   ArraysOf(b));
  }

  // Computes what the first pass reads of channels [c0, c1).
  void Prepare(int64_t c0, int64_t c1) const {
    entry_.prepare(call_, c0, c1, centers_, coefficients_);
  }

  // Adds the sums of all blocks, in their order, to the sums of block 0, and
  // computes the coefficients and the outputs of shape [channels] from them.
  void Finish(int64_t c0, int64_t c1) const {
    const int num_sums =
        call_.is_training ? entry_.num_sums : entry_.num_frozen_sums;
    const ChannelSums total = Sums(0);
    for (int64_t b = 1; b < blocks_; ++b) {
      for (int k = 0; k < num_sums; ++k) {
        const double* const part = SumsOfChannel(Sums(b), k);
        double* const sum = SumsOfChannel(total, k);
        for (int64_t c = c0; c < c1; ++c) sum[c] += part[c];
      }
    }
    const bool has_second_pass =
        call_.is_training && plan_.schedule != Schedule::kReduceOnly;
    entry_.finish(call_, c0, c1, centers_, total,
                  has_second_pass ? coefficients_ : nullptr);
  }

  const Call& call_;
  const View& view_;
  const Plan& plan_;
  const int64_t blocks_;
  const FormulaEntry& entry_;
  const Kernels& kernels_;
  // The passes; with an early output the second one is another formula's.
  Call second_call_;
  const Call* apply_call_;
  Kernels::PassFunction apply_, reduce_;
  const void* const read_later_;  // See Tile.
  double* sums_;                  // [blocks][num_sums][channels]
  double* centers_;               // [channels]
  void* coefficients_;            // [num_coefficients][CoefficientStride]
};

EarlyBuffer EarlyBufferOf(const FormulaEntry& entry, const Call& call) {
  if (!entry.traits.has_early_output) return EarlyBuffer::kOwn;
  const Tensors second =
      EntryOf(entry.early.second_pass).tensors(entry.early.second_call(call));
  for (int i = 0; i < second.inputs; ++i) {
    if (i != entry.early.input &&
        second.in[i] == second.in[entry.early.input]) {
      return EarlyBuffer::kOverwrites;
    }
  }
  return IsInPlace(entry.early.tensors(call), 0) ? EarlyBuffer::kInPlace
                                                 : EarlyBuffer::kOwn;
}

// Whether each output is the buffer of an input of the pass that stores it.
bool AllInPlace(const FormulaEntry& entry, const FormulaTraits& traits,
                const Call& call, EarlyBuffer early) {
  if (traits.has_early_output &&
      (early == EarlyBuffer::kOwn || early == EarlyBuffer::kInPlace)) {
    const Call second = entry.early.second_call(call);
    return early == EarlyBuffer::kInPlace &&
           IsInPlace(EntryOf(entry.early.second_pass).tensors(second), 0);
  }
  const Tensors tensors = entry.tensors(call);
  bool in_place = true;
  for (int o = 0; o < tensors.outputs; ++o) in_place &= IsInPlace(tensors, o);
  return in_place;
}

// Whether outputs begin in different places of a cache line.
bool HaveOutputsApart(const Tensors& tensors) {
  const auto offset = [&](int o) {
    return reinterpret_cast<uintptr_t>(tensors.out[o]) % kCacheLineBytes;
  };
  for (int o = 1; o < tensors.outputs; ++o) {
    if (offset(o) != offset(0)) return true;
  }
  return false;
}

// Whether an output apart from the inputs aliases one (kAliasBytes).
bool HasPageOffsetAlias(const Tensors& tensors) {
  for (int o = 0; o < tensors.outputs; ++o) {
    for (int i = 0; i < tensors.inputs; ++i) {
      if (tensors.out[o] == nullptr || tensors.in[i] == nullptr) continue;
      const auto behind =
          static_cast<int64_t>((reinterpret_cast<uintptr_t>(tensors.out[o]) -
                                reinterpret_cast<uintptr_t>(tensors.in[i])) %
                               kPageBytes);
      if (0 < behind && behind <= kAliasBytes) return true;
    }
  }
  return false;
}

PlanRequest RequestOf(const FormulaEntry& entry, const Kernels& kernels,
                      const Call& call, int threads) {
  PlanRequest request;
  request.view = call.view;
  request.dtype = call.dtype;
  request.formula = entry.traits;
  request.is_training = call.is_training;
  const Tensors tensors = entry.tensors(call);
  if (tensors.out[0] == nullptr) request.formula.outputs = 0;
  request.has_totals = HasTotals(call);
  request.kernels = &kernels;
  if (request.has_totals) request.formula.has_early_output = false;
  request.early_buffer = EarlyBufferOf(entry, call);
  request.costly_slope = SlopeIsCostly(call.activation);
  request.in_place =
      AllInPlace(entry, request.formula, call, request.early_buffer);
  if (request.formula.has_early_output) {
    const Tensors second =
        EntryOf(entry.early.second_pass).tensors(entry.early.second_call(call));
    request.second_in_place = IsInPlace(second, 0);
  }
  request.outputs_apart = HaveOutputsApart(tensors);
  request.page_offset_alias = HasPageOffsetAlias(tensors);
  request.threads = threads;
  request.caches = MachineCacheSizes();
  return request;
}

// Plans and executes one call.
void RunPlanned(const Call& call, const Implementation& implementation,
                Executor& executor, void* workspace) {
  const FormulaIndex formula = FormulaOf(call);
  const FormulaEntry& entry = EntryOf(formula);
  const PlanRequest request =
      RequestOf(entry, implementation.KernelsOf(formula, call.dtype), call,
                executor.NumThreads());
  const Plan plan = MakePlan(request);
  using Clock = std::chrono::steady_clock;
  const bool verbose = VerboseEnabled();
  const auto begin = verbose ? Clock::now() : Clock::time_point();
  if (plan.schedule == Schedule::kSmallOutputs) {
    entry.store_empty(call);
  } else {
    Driver(call, formula, plan, implementation, workspace).Run(executor);
  }
  if (!verbose) return;
  const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
  PrintCall(request, plan, implementation.name, time.count());
}

}  // namespace

size_t CpuWorkspaceBytes(FormulaKind formula, const View& view, DType dtype) {
  // Of each formula that a call may turn out to be.
  int num_sums = 0, num_coefficients = 0;
  for (int f = 0; f < kNumFormulas; ++f) {
    const FormulaEntry& entry = EntryOf(static_cast<FormulaIndex>(f));
    if (entry.traits.kind != formula) continue;
    num_sums = std::max(num_sums, entry.num_sums);
    num_coefficients = std::max(num_coefficients, entry.num_coefficients);
  }
  const int64_t sums =
      (num_sums * NumBlocks(MakePartition(view)) + 1) * view.channels;
  const int64_t coefficients =
      num_coefficients * CoefficientStride(view.channels);
  return static_cast<size_t>(sums) * sizeof(double) +
         static_cast<size_t>(coefficients) * SizeOf(ComputeDTypeOf(dtype));
}

void RunOnCpu(const Call& call, const Implementation& implementation,
              Executor& executor, void* workspace) {
  RunWithCopies(
      call,
      [&](const Call& computed) {
        RunPlanned(computed, implementation, executor, workspace);
        return 0;
      },
      [](void* to, const void* from, size_t bytes) {
        std::memcpy(to, from, bytes);
        return 0;
      });
}

}  // namespace tf_bn_ops
