// Executes plans: the passes over tiles or channel groups.

#include "cc/cpu/driver.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/core/formulas/fitting_formula.h"
#include "cc/core/fp_env.h"
#include "cc/core/partition.h"
#include "cc/core/reference.h"
#include "cc/core/task_shares.h"
#include "cc/core/two_level_sum.h"
#include "cc/cpu/cache_sizes.h"
#include "cc/cpu/call_memory.h"
#include "cc/cpu/verbose.h"

namespace tf_bn_ops {
namespace {

// The formula that applies after an early output; F itself where it has none.
template <typename F, typename = void>
struct SecondPassOf {
  using Formula = F;
};
template <typename F>
struct SecondPassOf<F, std::enable_if_t<kHasEarlyOutput<F>>> {
  using Formula = typename F::SecondPass;
};
template <typename F>
using SecondPass = typename SecondPassOf<F>::Formula;

// In place of a channel group.
constexpr int64_t kNoGroup = TaskShares::kNone;

// Executes the plan of one call of formula F that has elements.
template <typename F>
class Driver {
 public:
  using Args = typename F::Args;

  // `second`: the kernels of SecondPass<F>.
  Driver(const Args& args, const Plan& plan, const Kernels<F>& kernels,
         const Kernels<SecondPass<F>>& second, void* workspace)
      : args_(args),
        view_(args.view),
        plan_(plan),
        blocks_(NumBlocks(plan.partition)),
        kernels_(kernels),
        second_(second),
        sums_(static_cast<double*>(workspace)),
        coefficients_(sums_ + F::kNumSums * view_.channels * blocks_) {}

  void Run(Executor& executor) {
    // For coefficients that are computed before the first task, too.
    const ScopedFpState fp_state;
    switch (plan_.schedule) {
      case Schedule::kFrozenOnePass:
        kernels_.mask_coefficients(args_, 0, view_.channels, coefficients_);
        kernels_.coefficients(args_, 0, view_.channels, Sums(0), coefficients_);
        RunPhases(executor, WithFinish(TilePass<&Driver::Frozen>()));
        break;
      case Schedule::kChannelGroups:
        if (plan_.pipeline == Pipeline::kNone) {
          RunPhases(executor, Phases(GroupPass()));
        } else {
          TaskShares groups(plan_.task_bounds);
          RunPhases(executor, Phases(PipelinePass(groups)));
        }
        break;
      case Schedule::kReduceOnly:
        kernels_.mask_coefficients(args_, 0, view_.channels, coefficients_);
        RunPhases(executor, WithFinish(TilePass<&Driver::Reduce>()));
        break;
      default:
        kernels_.mask_coefficients(args_, 0, view_.channels, coefficients_);
        std::vector<Phase> phases = WithFinish(TilePass<&Driver::Reduce>());
        phases.push_back(TilePass<&Driver::Apply, Direction::kBackward>());
        RunPhases(executor, std::move(phases));
    }
  }

 private:
  enum class Direction { kForward, kBackward };
  using Pass = void (Driver::*)(const Tile&, int64_t block) const;
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
  template <Pass kPass, Direction kDirection = Direction::kForward>
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
  template <Pass kPass, Direction kDirection>
  void RunTiles(int64_t first, int64_t last) const {
    constexpr bool kForward = kDirection == Direction::kForward;
    Tile tile = TileAt(first);
    for (int64_t t = first;;) {
      const int64_t following = kForward ? t + 1 : t - 1;
      // That of the next task, where this one ends: the thread may get it.
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
              for (int64_t g = begin; g < end; ++g) BothPasses(g);
            },
            ShareBounds()};
  }

  // Both passes over channel group g.
  void BothPasses(int64_t g) const {
    // Where a call takes a microsecond, what is not computed shows.
    const bool alone = blocks_ == 1 && plan_.groups == 1;
    Tile tile = TileOfGroup(g, 0);
    kernels_.mask_coefficients(args_, tile.c0, tile.c1, coefficients_);
    for (int64_t b = 0; b < blocks_; ++b) {
      if (b > 0) tile = TileOfGroup(g, b);
      SetPrefetch(plan_.prefetch[0], alone ? tile : TileBehind(g, b), &tile);
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

  // Both passes over all groups; each task takes those of its share, then
  // others.
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
    kernels_.mask_coefficients(args_, c0, c1, coefficients_);
    for (int64_t b = 0; b < blocks_; ++b) {
      stage.current = TileOfGroup(current, b);
      stage.next = TileOfGroup(next, b);
      SetPrefetch(PrefetchKind::kFixedDistance,
                  next == kNoGroup ? stage.next : TileBehind(next, b),
                  &stage.next);
      kernels_.pipeline(args_, plan_.partition, stage, coefficients_,
                        plan_.store_policy, Sums(b));
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
    return ChannelSums{sums_ + F::kNumSums * view_.channels * b,
                       view_.channels};
  }

  void Reduce(const Tile& tile, int64_t b) const {
    if constexpr (kHasEarlyOutput<F>) {
      if (plan_.early_output) {
        const auto tensors = F::FirstPass::TensorsOf(args_);
        kernels_.Of(PassKind::kReduceStoring)(args_, plan_.partition, tile,
                                              coefficients_, PolicyOf(tensors),
                                              Sums(b));
        return;
      }
    }
    kernels_.Of(PassKind::kReduce)(args_, plan_.partition, tile, coefficients_,
                                   StorePolicy::kNone, Sums(b));
  }
  void Apply(const Tile& tile, int64_t) const {
    if constexpr (kHasEarlyOutput<F>) {
      if (plan_.early_output) {
        const auto args = F::SecondPassArgs(args_);
        second_.Of(PassKind::kApply)(args, plan_.partition, tile, coefficients_,
                                     PolicyOf(F::SecondPass::TensorsOf(args)),
                                     Sums(0));
        return;
      }
    }
    kernels_.Of(PassKind::kApply)(args_, plan_.partition, tile, coefficients_,
                                  plan_.store_policy, Sums(0));
  }
  // That of a pass with one output.
  template <typename Tensors>
  StorePolicy PolicyOf(const Tensors& tensors) const {
    return IsInPlace(tensors, 0) ? StorePolicy::kTemporal : plan_.store_policy;
  }
  void Frozen(const Tile& tile, int64_t b) const {
    kernels_.Of(PassKind::kFrozen)(args_, plan_.partition, tile, coefficients_,
                                   plan_.store_policy, Sums(b));
  }

  // Adds the sums of all blocks, in their order, to those of block 0, and
  // computes the coefficients and the outputs of shape [channels] from them.
  void Finish(int64_t c0, int64_t c1) const {
    const int num_sums = args_.is_training ? F::kNumSums : F::kNumFrozenSums;
    const ChannelSums total = Sums(0);
    for (int64_t b = 1; b < blocks_; ++b) {
      for (int k = 0; k < num_sums; ++k) {
        const double* const part = SumsOfChannel(Sums(b), k);
        double* const sum = SumsOfChannel(total, k);
        for (int64_t c = c0; c < c1; ++c) sum[c] += part[c];
      }
    }
    Recenter(total, c0, c1, num_sums);
    if (args_.is_training && plan_.schedule != Schedule::kReduceOnly) {
      kernels_.coefficients(args_, c0, c1, total, coefficients_);
    }
    const CenterArray centers = F::CentersOf(args_);
    for (int64_t c = c0; c < c1; ++c) StoreSums(total, c, centers);
  }

  // Two-level sums are around a rounded center: those around the center itself.
  void Recenter(const ChannelSums& total, int64_t c0, int64_t c1,
                int num_sums) const {
    if constexpr (!kIsFrozenOnly<F>) {
      const CenterArray centers = F::CentersOf(args_);
      if (!IsNarrow(args_.dtype) || num_sums < F::kNumSums ||
          centers.dtype == args_.dtype) {
        return;
      }
      for (int64_t c = c0; c < c1; ++c) {
        const double center = CenterAt(centers, c);
        const double shift = RunCenter(args_.dtype, center) - center;
        // Not where the center is an infinity or NaN, either.
        if (!(shift < 0 || shift > 0)) continue;
        double sums[F::kNumSums];
        LoadChannelSums<F::kNumSums>(total, c, sums);
        F::Recenter(shift, sums);
        for (int k = 0; k < num_sums; ++k) SumsOfChannel(total, k)[c] = sums[k];
      }
    }
  }

  void StoreSums(const ChannelSums& total, int64_t c,
                 const CenterArray& centers) const {
    double sums[F::kNumSums];
    if (args_.is_training) {
      LoadChannelSums<F::kNumSums>(total, c, sums);
    } else {
      LoadChannelSums<F::kNumFrozenSums>(total, c, sums);
    }
    F::StoreSums(args_, c, CenterAt(centers, c), sums);
  }

  const Args& args_;
  const View& view_;
  const Plan& plan_;
  const int64_t blocks_;
  const Kernels<F>& kernels_;
  const Kernels<SecondPass<F>>& second_;
  double* const sums_;        // [blocks][F::kNumSums][channels]
  void* const coefficients_;  // [F::kNumCoefficients][CoefficientStride]
};

#define TFBN_NAME_OF(unused, F, formula_name) \
  constexpr const char* NameOf(const F*) { return formula_name; }
TFBN_FOR_EACH_FORMULA(TFBN_NAME_OF, )

template <typename F>
FormulaTraits TraitsOf() {
  return {NameOf(static_cast<const F*>(nullptr)),
          F::kInputs,
          F::kOutputs,
          TileColumns<F>(true),
          TileColumns<F>(false),
          kHasEarlyOutput<F>};
}

template <typename F>
EarlyBuffer EarlyBufferOf([[maybe_unused]] const typename F::Args& args) {
  if constexpr (kHasEarlyOutput<F>) {
    const auto second = F::SecondPass::TensorsOf(F::SecondPassArgs(args));
    for (int i = 0; i < F::SecondPass::kInputs; ++i) {
      if (i != F::kEarlyInput && second.in[i] == second.in[F::kEarlyInput]) {
        return EarlyBuffer::kOverwrites;
      }
    }
    if (IsInPlace(F::FirstPass::TensorsOf(args), 0)) {
      return EarlyBuffer::kInPlace;
    }
  }
  return EarlyBuffer::kOwn;
}

// Whether each output is the buffer of an input of the pass that stores it.
template <typename F>
bool AllInPlace(const typename F::Args& args) {
  if constexpr (kHasEarlyOutput<F>) {
    const EarlyBuffer early = EarlyBufferOf<F>(args);
    if (early != EarlyBuffer::kOverwrites) {
      return early == EarlyBuffer::kInPlace &&
             IsInPlace(F::SecondPass::TensorsOf(F::SecondPassArgs(args)), 0);
    }
  }
  const auto tensors = F::TensorsOf(args);
  bool in_place = true;
  for (int o = 0; o < F::kOutputs; ++o) in_place &= IsInPlace(tensors, o);
  return in_place;
}

// Whether an output apart from the inputs aliases one (kAliasBytes).
template <typename Tensors>
bool HasPageOffsetAlias(const Tensors& tensors) {
  for (const void* const out : tensors.out) {
    if (out == nullptr) continue;
    for (const void* const in : tensors.in) {
      if (in == nullptr) continue;
      const auto behind = static_cast<int64_t>(
          (reinterpret_cast<uintptr_t>(out) - reinterpret_cast<uintptr_t>(in)) %
          kPageBytes);
      if (0 < behind && behind <= kAliasBytes) return true;
    }
  }
  return false;
}

template <typename F>
PlanRequest RequestOf(const typename F::Args& args, bool reference,
                      int threads) {
  PlanRequest request;
  request.view = args.view;
  request.dtype = args.dtype;
  request.formula = TraitsOf<F>();
  request.is_training = args.is_training;
  const auto tensors = F::TensorsOf(args);
  if (tensors.out[0] == nullptr) request.formula.outputs = 0;
  request.in_place = AllInPlace<F>(args);
  request.early_buffer = EarlyBufferOf<F>(args);
  request.page_offset_alias = HasPageOffsetAlias(tensors);
  request.reference = reference;
  request.threads = threads;
  request.caches = MachineCacheSizes();
  return request;
}

template <typename F>
void Execute(const typename F::Args& args, const Plan& plan,
             const Implementation& implementation, Executor& executor,
             void* workspace) {
  if (plan.schedule == Schedule::kSmallOutputs) {
    for (int64_t c = 0; c < args.view.channels; ++c) F::StoreEmpty(args, c);
  } else if (plan.schedule == Schedule::kReference) {
    RunReference<F>(args);
  } else {
    InlineExecutor inline_executor;
    const auto dtype = static_cast<int>(args.dtype);
    Driver<F>(args, plan, implementation.KernelsOf<F>()->by_dtype[dtype],
              implementation.KernelsOf<SecondPass<F>>()->by_dtype[dtype],
              workspace)
        .Run(plan.threads > 1 ? executor : inline_executor);
  }
}

}  // namespace

template <typename F>
size_t CpuWorkspaceBytes(const View& view, DType dtype) {
  const int64_t sums =
      F::kNumSums * NumBlocks(MakePartition(view)) * view.channels;
  const int64_t coefficients =
      F::kNumCoefficients * CoefficientStride(view.channels);
  return static_cast<size_t>(sums) * sizeof(double) +
         static_cast<size_t>(coefficients) * SizeOf(ComputeDTypeOf(dtype));
}

namespace {

// Plans and executes one call of formula F.
template <typename F>
void RunFormula(const typename F::Args& args,
                const Implementation& implementation, Executor& executor,
                void* workspace) {
  const PlanRequest request =
      RequestOf<F>(args, implementation.IsReference(), executor.NumThreads());
  const Plan plan = MakePlan(request);
  for (void* const out : F::TensorsOf(args).out) {
    AdviseHugePages(out, NumElements(args.view) * SizeOf(args.dtype));
  }
  if (!VerboseEnabled()) {
    Execute<F>(args, plan, implementation, executor, workspace);
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  Execute<F>(args, plan, implementation, executor, workspace);
  const std::chrono::duration<double, std::milli> time =
      std::chrono::steady_clock::now() - begin;
  PrintCall(request, plan, implementation.name, time.count());
}

int CopyTensor(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return 0;
}

}  // namespace

template <typename F>
void RunOnCpu(const typename F::Args& args,
              const Implementation& implementation, Executor& executor,
              void* workspace) {
  RunFittingFormula<F>(
      args,
      [&](auto fitting, const auto& its_args) {
        RunFormula<typename decltype(fitting)::Formula>(
            its_args, implementation, executor, workspace);
        return 0;
      },
      CopyTensor);
}

bool FindFormula(const std::string& name, FormulaTraits* traits) {
#define TFBN_IF_NAMED(unused, F, formula_name) \
  if (name == formula_name) {                  \
    *traits = TraitsOf<F>();                   \
    return true;                               \
  }
  TFBN_FOR_EACH_FORMULA(TFBN_IF_NAMED, )
  return false;
}

#define TFBN_INSTANTIATE(unused, F, formula_name)                             \
  template size_t CpuWorkspaceBytes<F>(const View&, DType);                   \
  template void RunOnCpu<F>(const F::Args&, const Implementation&, Executor&, \
                            void*);
TFBN_FOR_EACH_FORMULA(TFBN_INSTANTIATE, )

}  // namespace tf_bn_ops
