// The launch plan of a call: which kernels run, in which order, and the
// workspace between them. Who launches them (the CUDA runtime, or the host
// emulator) passes a Launcher:
//
//   template <typename T, bool kChannelsLast, bool kAligned, bool kFused,
//             int kSums, typename Formula>
//   int Reduce(const KernelParams<Formula>&);
//   template <typename T, typename Formula>
//   int Finish(const KernelParams<Formula>&);
//   template <typename T, bool kChannelsLast, bool kAligned, typename Formula>
//   int Apply(const KernelParams<Formula>&);
//   int Copy(void* to, const void* from, size_t bytes);
//
// each of which returns 0, or an error that ends the call.
//
// Frozen, a formula without frozen sums needs no reduction: finish computes the
// coefficients from the given statistics, apply follows. A call that wants the
// sums alone ends after finish.
//
// Large channels-first tensors are processed in groups of channels: reduce,
// finish and apply of one group after the other, each group small enough for
// the apply to read L2 instead of DRAM. The launch configuration stays that of
// all channels, so results are bitwise identical with any groups.

#ifndef TF_BN_OPS_CC_CUDA_LAUNCH_PLAN_H_
#define TF_BN_OPS_CC_CUDA_LAUNCH_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/view.h"
#include "cc/cuda/device/device_apply.h"
#include "cc/cuda/device/device_finish.h"
#include "cc/cuda/device/device_reduce.h"
#include "cc/cuda/device/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Bytes of all inputs in a group of channels.
struct GroupPolicy {
  int64_t max_bytes = 0;  // 0: no groups.
  int64_t min_bytes = 0;  // Below it a group does not pay for its launches.
};

// Time of the three launches of a group, in which the device fills and drains.
constexpr double kGroupSeconds = 10e-6;

// Half of L2 is left to outputs and conflict misses. Reading L2 saves about
// half of the time of the second pass, which is a quarter of the group's. Both
// are estimates: not measured on any device.
inline GroupPolicy MakeGroupPolicy(int64_t l2_bytes, double bytes_per_second) {
  return {l2_bytes / 2,
          static_cast<int64_t>(4 * kGroupSeconds * bytes_per_second)};
}

inline int VectorElements(DType dtype) {
  return kVectorBytes / static_cast<int>(SizeOf(dtype));
}

// Sums of a channel that a call computes.
template <typename Formula>
int SumsOf(bool is_training) {
  return is_training ? int{Formula::kNumSums} : int{Formula::kNumFrozenSums};
}

// Of the reduction; a view without elements has no tiles.
template <typename Formula>
LaunchConfig ReduceConfig(const View& view, DType dtype, bool is_training) {
  if (NumElements(view) > 0) {
    const int vector = VectorElements(dtype);
    return MakeLaunchConfig(view, vector, 0,
                            SlicesOf(vector, SumsOf<Formula>(is_training)));
  }
  LaunchConfig config;
  config.view = view;
  return config;
}

template <typename Formula>
int64_t NumPartialSums(const LaunchConfig& config, bool is_training) {
  return config.elements == 0
             ? 0
             : SumsOf<Formula>(is_training) * config.splits * config.Columns();
}

// Partial sums and coefficients; the latter as doubles, whatever the type.
template <typename Formula>
size_t WorkspaceBytes(const View& view, DType dtype) {
  int64_t sums = 0;
  for (const bool is_training : {true, false}) {
    const LaunchConfig config = ReduceConfig<Formula>(view, dtype, is_training);
    sums = std::max(sums, NumPartialSums<Formula>(config, is_training));
  }
  return sizeof(double) *
         static_cast<size_t>(sums + Formula::kNumCoefficients * view.channels);
}

template <typename Formula>
struct LaunchPlan {
  // Of the kernels reduce and finish.
  KernelParams<Formula> params;
  // Of the apply, whose grid of vectors follows the alignment of its output.
  LaunchConfig apply_config;
  bool applies = false;  // There are outputs of view shape.
  // Frozen, and all tensors aligned: the reduction writes the outputs too.
  bool fused = false;
  bool inputs_aligned = false;
  bool apply_aligned = false;
  int64_t group_tiles = 0;  // params.config.tiles: one group.
};

// Tiles per group; all of them where groups do not apply or do not pay.
template <typename Formula>
int64_t GroupTiles(const LaunchPlan<Formula>& plan, const GroupPolicy& policy) {
  const auto& args = plan.params.args;
  const LaunchConfig& reduce = plan.params.config;
  const LaunchConfig& apply = plan.apply_config;
  const int64_t bytes = Formula::kInputs * reduce.elements *
                        static_cast<int64_t>(SizeOf(args.dtype));
  const bool same_tiles =
      apply.tiles == reduce.tiles && apply.threads_y == reduce.threads_y;
  if (reduce.channels_last || !args.is_training || !plan.applies ||
      !same_tiles || bytes <= policy.max_bytes) {
    return reduce.tiles;
  }
  const int64_t tile_bytes = CeilDiv(bytes, reduce.tiles);
  const int64_t most = policy.max_bytes / tile_bytes;
  if (most == 0) return reduce.tiles;
  // Groups of equal size rather than a small last one.
  const int64_t tiles = CeilDiv(reduce.tiles, CeilDiv(reduce.tiles, most));
  return tiles * tile_bytes < policy.min_bytes ? reduce.tiles : tiles;
}

// Whether the first `count` pointers are `bytes` beyond a multiple of 16.
template <typename Pointer, int kCount>
bool AllMisalignedBy(unsigned bytes, const Pointer (&pointers)[kCount],
                     int count) {
  return std::all_of(pointers, pointers + count, [=](const void* p) {
    return MisalignedBytes(reinterpret_cast<uintptr_t>(p)) == bytes;
  });
}

// Whether any output is the buffer of an input.
template <int kInputs, int kOutputs>
bool AnyInPlace(const Tensors<kInputs, kOutputs>& tensors) {
  bool any = false;
  for (int o = 0; o < kOutputs; ++o) any |= IsInPlace(tensors, o);
  return any;
}

// `workspace` has WorkspaceBytes and is aligned to 8 bytes.
template <typename Formula>
LaunchPlan<Formula> MakeLaunchPlan(const typename Formula::Args& args,
                                   void* workspace, const GroupPolicy& policy) {
  LaunchPlan<Formula> plan;
  KernelParams<Formula>& params = plan.params;
  params.args = args;
  params.config =
      ReduceConfig<Formula>(args.view, args.dtype, args.is_training);
  params.end_channel = args.view.channels;
  params.partial_sums = static_cast<double*>(workspace);
  params.coefficients =
      params.partial_sums +
      NumPartialSums<Formula>(params.config, args.is_training);
  if (params.config.elements == 0) return plan;

  const auto tensors = Formula::TensorsOf(args);
  const int read =
      args.is_training ? int{Formula::kInputs} : int{Formula::kNumFrozenInputs};
  const unsigned out_bytes =
      MisalignedBytes(reinterpret_cast<uintptr_t>(tensors.out[0]));
  params.in_place = AnyInPlace(tensors);
  plan.inputs_aligned = AllMisalignedBy(0, tensors.in, Formula::kInputs);
  plan.apply_aligned = AllMisalignedBy(out_bytes, tensors.in, read);
  plan.applies = HasOutputs<Formula>(args);
  plan.fused = Formula::kNumFrozenSums > 0 && !args.is_training &&
               plan.applies && plan.inputs_aligned &&
               AllMisalignedBy(0, tensors.out, Formula::kOutputs);
  plan.apply_config =
      MakeLaunchConfig(args.view, VectorElements(args.dtype),
                       static_cast<int>(out_bytes / SizeOf(args.dtype)));
  plan.group_tiles = GroupTiles(plan, policy);
  return plan;
}

// Restricts a launch to tiles [first, first + n).
template <typename Formula>
void SelectTiles(int64_t first, int64_t n, KernelParams<Formula>* params) {
  LaunchConfig& config = params->config;
  config.first_tile = first;
  config.launch_tiles = n;
  params->first_channel = first * config.threads_y;
  params->end_channel = std::min(config.view.channels,
                                 params->first_channel + n * config.threads_y);
}

// The sums of a call in training, or frozen.
template <typename T, bool kChannelsLast, int kSums, typename Formula,
          typename Launcher>
int LaunchReduce(const LaunchPlan<Formula>& plan,
                 const KernelParams<Formula>& params, Launcher& launcher) {
  return plan.inputs_aligned
             ? launcher.template Reduce<T, kChannelsLast, true, false, kSums>(
                   params)
             : launcher.template Reduce<T, kChannelsLast, false, false, kSums>(
                   params);
}

// Reduce (if there are sums), finish and apply (if there are outputs) of one
// group.
template <typename T, bool kChannelsLast, typename Formula, typename Launcher>
int LaunchGroup(const LaunchPlan<Formula>& plan,
                const KernelParams<Formula>& reduce,
                const KernelParams<Formula>& apply, Launcher& launcher) {
  constexpr int kSums = Formula::kNumSums, kFrozen = Formula::kNumFrozenSums;
  int error = 0;
  if constexpr (!kIsFrozenOnly<Formula>) {
    if (reduce.args.is_training) {
      error = LaunchReduce<T, kChannelsLast, kSums>(plan, reduce, launcher);
    }
  }
  if constexpr (kFrozen > 0) {
    if (!reduce.args.is_training) {
      error = LaunchReduce<T, kChannelsLast, kFrozen>(plan, reduce, launcher);
    }
  }
  if (error == 0) error = launcher.template Finish<T>(reduce);
  if (error != 0 || !plan.applies) return error;
  return plan.apply_aligned
             ? launcher.template Apply<T, kChannelsLast, true>(apply)
             : launcher.template Apply<T, kChannelsLast, false>(apply);
}

template <typename T, bool kChannelsLast, typename Formula, typename Launcher>
int LaunchLayout(const LaunchPlan<Formula>& plan, Launcher& launcher) {
  if constexpr (Formula::kNumFrozenSums > 0) {
    if (plan.fused) {
      const int error =
          launcher.template Reduce<T, kChannelsLast, true, true,
                                   Formula::kNumFrozenSums>(plan.params);
      return error != 0 ? error : launcher.template Finish<T>(plan.params);
    }
  }
  KernelParams<Formula> reduce = plan.params, apply = plan.params;
  apply.config = plan.apply_config;
  const int64_t tiles = plan.params.config.tiles;
  for (int64_t first = 0; first < tiles; first += plan.group_tiles) {
    if (plan.group_tiles < tiles) {
      const int64_t n = std::min(plan.group_tiles, tiles - first);
      SelectTiles(first, n, &reduce);
      SelectTiles(first, n, &apply);
    }
    const int error =
        LaunchGroup<T, kChannelsLast>(plan, reduce, apply, launcher);
    if (error != 0) return error;
  }
  return 0;
}

template <typename T, typename Formula, typename Launcher>
int LaunchTyped(const LaunchPlan<Formula>& plan, Launcher& launcher) {
  const LaunchConfig& config = plan.params.config;
  if (config.elements == 0) return launcher.template Finish<T>(plan.params);
  return config.channels_last ? LaunchLayout<T, true>(plan, launcher)
                              : LaunchLayout<T, false>(plan, launcher);
}

// The smallest elements that there are kernels for: a tile of channels-last
// rows is kRowThreads vectors, and has a thread for each of its columns.
constexpr size_t kMinElementBytes = 2;
static_assert(kRowThreads * kVectorBytes / kMinElementBytes <= kThreads);
// cudaErrorNotSupported and hipErrorNotSupported, "operation not supported".
constexpr int kNotSupported = 801;

template <typename T, typename Formula, typename Launcher>
int LaunchStored(const LaunchPlan<Formula>& plan, Launcher& launcher) {
  if constexpr (sizeof(T) < kMinElementBytes) {
    return kNotSupported;
  } else {
    return LaunchTyped<T>(plan, launcher);
  }
}

// Enqueues all kernels of a call of this very formula.
template <typename Formula, typename Launcher>
int LaunchFormula(const typename Formula::Args& args, void* workspace,
                  const GroupPolicy& policy, Launcher& launcher) {
  if (args.view.channels == 0) return 0;
  const LaunchPlan<Formula> plan =
      MakeLaunchPlan<Formula>(args, workspace, policy);
  switch (args.dtype) {
#define X(name, text, code, storage, compute, fraction, exponent) \
  case DType::k##name:                                            \
    return LaunchStored<storage>(plan, launcher);
    TFBN_FOR_EACH_DTYPE(X)
#undef X
  }
  return 0;
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_LAUNCH_PLAN_H_
