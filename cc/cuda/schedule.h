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

#ifndef TF_BN_OPS_CC_CUDA_SCHEDULE_H_
#define TF_BN_OPS_CC_CUDA_SCHEDULE_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/batch_norm_grad.h"
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

inline int MisalignedBytes(const void* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % kVectorBytes);
}

template <typename T, bool kRows, typename Launcher>
int RunCut(const Params& params, Launcher& launcher) {
  using C = typename ElementOf<T>::Compute;
  const BatchNormGradArgs& args = params.args;
  const int dy_bytes = MisalignedBytes(args.y_backprop);
  const int x_bytes = MisalignedBytes(args.x);
  const int out_bytes = MisalignedBytes(args.x_backprop);
  const int64_t grid = params.geometry.Grid();
  const int64_t finish_grid =
      CeilDiv(args.view.channels, FinishChannels(args.view.channels));
  int error;
  if (dy_bytes == 0 && x_bytes == 0) {
    if (!args.is_training && out_bytes == 0) {
      // One pass: x_backprop needs no sums.
      error = launcher.template Reduce<T, kRows, true, true>(params, grid);
      return error != 0 ? error
                        : launcher.template Finish<C>(params, finish_grid);
    }
    error = launcher.template Reduce<T, kRows, true, false>(params, grid);
  } else {
    error = launcher.template Reduce<T, kRows, false, false>(params, grid);
  }
  if (error != 0) return error;
  error = launcher.template Finish<C>(params, finish_grid);
  if (error != 0) return error;
  // No sums here: the grid of vectors may follow the output's alignment.
  Params apply = params;
  apply.geometry = MakeGeometry(args.view, ElementOf<T>::kVector,
                                out_bytes / static_cast<int>(sizeof(T)));
  if (dy_bytes == out_bytes && (!args.is_training || x_bytes == out_bytes)) {
    return launcher.template Apply<T, kRows, true>(apply,
                                                   apply.geometry.Grid());
  }
  return launcher.template Apply<T, kRows, false>(apply, apply.geometry.Grid());
}

template <typename T, typename Launcher>
int RunTyped(const Params& params, Launcher& launcher) {
  if (params.geometry.elements == 0) {
    return launcher.template Finish<typename ElementOf<T>::Compute>(
        params, CeilDiv(params.args.view.channels,
                        FinishChannels(params.args.view.channels)));
  }
  return params.geometry.rows ? RunCut<T, true>(params, launcher)
                              : RunCut<T, false>(params, launcher);
}

// Enqueues everything that `args` needs; `workspace` is aligned to 8 bytes.
template <typename Launcher>
int Run(const BatchNormGradArgs& args, void* workspace, Launcher& launcher) {
  if (args.view.channels == 0) return 0;
  Params params;
  params.args = args;
  params.geometry = ReduceGeometry(args.view, args.dtype);
  params.partials = static_cast<double*>(workspace);
  params.coefficients = params.partials + PartialSums(params.geometry);
  switch (args.dtype) {
    case DType::kFloat32:
      return RunTyped<float>(params, launcher);
    case DType::kFloat16:
      return RunTyped<Float16>(params, launcher);
    case DType::kBfloat16:
      return RunTyped<Bfloat16>(params, launcher);
    case DType::kFloat64:
      return RunTyped<double>(params, launcher);
  }
  return 0;
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_SCHEDULE_H_
