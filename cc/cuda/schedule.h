// The kernels of one call, in their order, and the memory between them. Whoever
// launches them (the CUDA runtime, or the host emulator) passes a Launcher:
//
//   template <typename T, bool kRows, bool kAligned, bool kWrite>
//   int Reduce(const Params&, int64_t blocks);
//   template <typename C> int Finish(const Params&, int64_t blocks);
//   template <typename T, bool kRows, bool kAligned>
//   int Apply(const Params&, int64_t blocks);
//
// each of which returns 0, or an error that ends the call.
//
// Where the tensors do not fit into the L2 cache and the view is cut into runs,
// the three kernels are launched for a group of channels after the other, each
// group small enough for the cache: the second pass then reads memory no more.
// The cut of the view stays that of all channels, so groups change no bit.

#ifndef TF_BN_OPS_CC_CUDA_SCHEDULE_H_
#define TF_BN_OPS_CC_CUDA_SCHEDULE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/cuda/geometry.h"
#include "cc/cuda/programs.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Geometry of the sums; of a view without elements, one that has none.
inline Geometry ReduceGeometry(const View& view, DType dtype) {
  if (NumElements(view) == 0) {
    Geometry g;
    g.view = view;
    return g;
  }
  return MakeGeometry(view, kVectorBytes / static_cast<int>(SizeOf(dtype)), 0);
}

inline int64_t PartialSums(const Geometry& g) {
  return g.elements == 0 ? 0 : 2 * g.blocks * g.Columns();
}

// Partial sums and coefficients; room for doubles, whatever the type.
inline size_t WorkspaceBytes(const View& view, DType dtype) {
  return sizeof(double) *
         static_cast<size_t>(PartialSums(ReduceGeometry(view, dtype)) +
                             kNumCoefficients * view.channels);
}

// What the schedule has to know of a device.
struct DeviceTraits {
  // Bytes of both inputs that a group may have; 0: no groups.
  int64_t group_bytes = 0;
  // Bytes below which a group does not pay for its launches.
  int64_t least_group_bytes = 0;
};

// Three launches, each with the time in which a chip fills and drains; the
// second pass saves about half of its time when it reads the cache.
constexpr double kGroupSeconds = 10e-6;

// From the size of the L2 cache and what memory delivers. Half of the cache is
// left to results on their way and to lines that conflict. An estimate: it has
// not been measured on any device.
inline DeviceTraits TraitsOf(int64_t l2_bytes, double bytes_per_second) {
  DeviceTraits traits;
  traits.group_bytes = l2_bytes / 2;
  traits.least_group_bytes =
      static_cast<int64_t>(4 * kGroupSeconds * bytes_per_second);
  return traits;
}

// Tiles of a group; all of them where groups are not for this view.
inline int64_t TilesPerGroup(const Params& params, const Geometry& apply,
                             const DeviceTraits& traits) {
  const Geometry& g = params.geometry;
  const int64_t bytes =
      2 * g.elements * static_cast<int64_t>(SizeOf(params.args.dtype));
  const bool same_tiles =
      apply.tiles == g.tiles && apply.channels == g.channels;
  if (g.rows || !params.args.is_training || !same_tiles ||
      bytes <= traits.group_bytes) {
    return g.tiles;
  }
  const int64_t tile_bytes = CeilDiv(bytes, g.tiles);
  const int64_t most = traits.group_bytes / tile_bytes;
  if (most == 0) return g.tiles;
  // Groups of equal size rather than a small last one.
  const int64_t tiles = CeilDiv(g.tiles, CeilDiv(g.tiles, most));
  return tiles * tile_bytes < traits.least_group_bytes ? g.tiles : tiles;
}

// Blocks of Finish for the channels of a launch.
inline int64_t FinishGrid(const Params& params) {
  return CeilDiv(params.end_channel - params.first_channel,
                 FinishChannels(params.args.view.channels));
}

inline int MisalignedBytes(const void* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % kVectorBytes);
}

template <typename T, bool kRows, typename Launcher>
int RunCut(const Params& params, const DeviceTraits& traits,
           Launcher& launcher) {
  using C = typename ElementOf<T>::Compute;
  const BatchNormGradArgs& args = params.args;
  const int dy_bytes = MisalignedBytes(args.y_backprop);
  const int x_bytes = MisalignedBytes(args.x);
  const int out_bytes = MisalignedBytes(args.x_backprop);
  const bool inputs_aligned = dy_bytes == 0 && x_bytes == 0;
  if (inputs_aligned && !args.is_training && out_bytes == 0) {
    // One pass: x_backprop needs no sums.
    const int error = launcher.template Reduce<T, kRows, true, true>(
        params, params.geometry.Grid());
    return error != 0 ? error
                      : launcher.template Finish<C>(params, FinishGrid(params));
  }
  // No sums in the second pass: its grid of vectors may follow the output's
  // alignment.
  Params reduce = params, apply = params;
  apply.geometry = MakeGeometry(args.view, ElementOf<T>::kVector,
                                out_bytes / static_cast<int>(sizeof(T)));
  const bool apply_aligned =
      dy_bytes == out_bytes && (!args.is_training || x_bytes == out_bytes);
  const int64_t tiles = params.geometry.tiles;
  const int64_t group = TilesPerGroup(params, apply.geometry, traits);
  for (int64_t first = 0; first < tiles; first += group) {
    if (group < tiles) {
      const int64_t n = std::min(group, tiles - first);
      for (Geometry* g : {&reduce.geometry, &apply.geometry}) {
        g->first_tile = first;
        g->launch_tiles = n;
      }
      reduce.first_channel = first * params.geometry.channels;
      reduce.end_channel =
          std::min(args.view.channels,
                   reduce.first_channel + n * params.geometry.channels);
    }
    const int64_t grid = reduce.geometry.Grid();
    int error =
        inputs_aligned
            ? launcher.template Reduce<T, kRows, true, false>(reduce, grid)
            : launcher.template Reduce<T, kRows, false, false>(reduce, grid);
    if (error != 0) return error;
    error = launcher.template Finish<C>(reduce, FinishGrid(reduce));
    if (error != 0) return error;
    const int64_t apply_grid = apply.geometry.Grid();
    error = apply_aligned
                ? launcher.template Apply<T, kRows, true>(apply, apply_grid)
                : launcher.template Apply<T, kRows, false>(apply, apply_grid);
    if (error != 0) return error;
  }
  return 0;
}

template <typename T, typename Launcher>
int RunTyped(const Params& params, const DeviceTraits& traits,
             Launcher& launcher) {
  if (params.geometry.elements == 0) {
    return launcher.template Finish<typename ElementOf<T>::Compute>(
        params, FinishGrid(params));
  }
  return params.geometry.rows ? RunCut<T, true>(params, traits, launcher)
                              : RunCut<T, false>(params, traits, launcher);
}

// Enqueues everything that `args` needs; `workspace` is aligned to 8 bytes.
template <typename Launcher>
int Run(const BatchNormGradArgs& args, void* workspace,
        const DeviceTraits& traits, Launcher& launcher) {
  if (args.view.channels == 0) return 0;
  Params params;
  params.args = args;
  params.geometry = ReduceGeometry(args.view, args.dtype);
  params.end_channel = args.view.channels;
  params.partials = static_cast<double*>(workspace);
  params.coefficients = params.partials + PartialSums(params.geometry);
  switch (args.dtype) {
    case DType::kFloat32:
      return RunTyped<float>(params, traits, launcher);
    case DType::kFloat16:
      return RunTyped<Float16>(params, traits, launcher);
    case DType::kBfloat16:
      return RunTyped<Bfloat16>(params, traits, launcher);
    case DType::kFloat64:
      return RunTyped<double>(params, traits, launcher);
  }
  return 0;
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_SCHEDULE_H_
