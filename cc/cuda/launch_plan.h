// Which kernels a call launches, in which order, and the workspace between
// them. Who launches them (the CUDA runtime, or the host emulator) passes a
// Launcher:
//
//   template <typename T, bool kChannelsLast, int kSums, bool kStores,
//             typename Formula>
//   int Pass(const KernelParams<Formula>&);
//   template <typename T, typename Formula>
//   int Finish(const KernelParams<Formula>&);
//
// each of which returns 0, or an error that ends the call.
//
//   training           pass with sums, finish, pass that stores (unless the
//                      sums alone are wanted)
//   fixed statistics   one pass with the sums that remain and the stores, and
//                      finish; without sums, or where they do not fit beside
//                      the stores, as in training

#ifndef TF_BN_OPS_CC_CUDA_LAUNCH_PLAN_H_
#define TF_BN_OPS_CC_CUDA_LAUNCH_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/view.h"
#include "cc/cuda/device_finish.h"
#include "cc/cuda/device_pass.h"
#include "cc/cuda/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Sums of a channel that a call computes.
template <typename Formula>
int SumsOf(bool is_training) {
  return is_training ? int{Formula::kNumSums} : int{Formula::kNumFrozenSums};
}

template <typename Formula>
LaunchConfig ReduceConfig(const View& view, DType dtype, bool is_training) {
  const int vector = kVectorBytes / static_cast<int>(SizeOf(dtype));
  return MakeLaunchConfig(view, vector,
                          SlicesOf(vector, SumsOf<Formula>(is_training)));
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

// `workspace` has WorkspaceBytes and is aligned to 8 bytes.
template <typename Formula>
KernelParams<Formula> MakeKernelParams(const typename Formula::Args& args,
                                       void* workspace) {
  KernelParams<Formula> params;
  params.args = args;
  params.config =
      ReduceConfig<Formula>(args.view, args.dtype, args.is_training);
  params.partial_sums = static_cast<double*>(workspace);
  params.coefficients =
      params.partial_sums +
      NumPartialSums<Formula>(params.config, args.is_training);
  const auto tensors = Formula::TensorsOf(args);
  const auto is_aligned = [](const void* p) {
    return MisalignedBytes(reinterpret_cast<uintptr_t>(p)) == 0;
  };
  params.aligned =
      std::all_of(std::begin(tensors.in), std::end(tensors.in), is_aligned) &&
      std::all_of(std::begin(tensors.out), std::end(tensors.out), is_aligned);
  for (int o = 0; o < Formula::kOutputs; ++o) {
    params.in_place |= IsInPlace(tensors, o);
  }
  return params;
}

template <typename T, bool kChannelsLast, typename Formula, typename Launcher>
int LaunchKernels(const KernelParams<Formula>& params, Launcher& launcher) {
  constexpr int kSums = Formula::kNumSums, kFrozen = Formula::kNumFrozenSums;
  constexpr bool kOnePass =
      kFrozen > 0 &&
      (!kChannelsLast || SlicesOf(VectorTraits<T>::kVector, kFrozen) == 1);
  int error = 0;
  if (params.args.is_training) {
    if constexpr (!kIsFrozenOnly<Formula>) {
      error = launcher.template Pass<T, kChannelsLast, kSums, false>(params);
    }
  } else if constexpr (kFrozen > 0) {
    error = launcher.template Pass<T, kChannelsLast, kFrozen, kOnePass>(params);
  }
  if (error == 0) error = launcher.template Finish<T>(params);
  const bool stored = kOnePass && !params.args.is_training;
  if (error != 0 || stored || !HasOutputs<Formula>(params.args)) return error;
  // Without sums a vector has one slice.
  KernelParams<Formula> store = params;
  store.config =
      MakeLaunchConfig(params.args.view, VectorTraits<T>::kVector, 1);
  return launcher.template Pass<T, kChannelsLast, 0, true>(store);
}

// The smallest elements that there are kernels for: a tile of channels-last
// rows is kRowThreads vectors, and has a thread for each of its columns.
constexpr size_t kMinElementBytes = 2;
static_assert(kRowThreads * kVectorBytes / kMinElementBytes <= kThreads);
// cudaErrorNotSupported, "operation not supported".
constexpr int kNotSupported = 801;

// Enqueues all kernels of a call with elements of type T.
template <typename T, typename Formula, typename Launcher>
int LaunchTyped(const KernelParams<Formula>& params, Launcher& launcher) {
  if constexpr (sizeof(T) < kMinElementBytes) {
    return kNotSupported;
  } else {
    if (params.config.elements == 0) return launcher.template Finish<T>(params);
    return params.config.channels_last
               ? LaunchKernels<T, true>(params, launcher)
               : LaunchKernels<T, false>(params, launcher);
  }
}

// Enqueues all kernels of a call of this very formula.
template <typename Formula, typename Launcher>
int LaunchFormula(const typename Formula::Args& args, void* workspace,
                  Launcher& launcher) {
  if (args.view.channels == 0) return 0;
  const KernelParams<Formula> params =
      MakeKernelParams<Formula>(args, workspace);
  switch (args.dtype) {
#define X(name, text, code, storage, compute, fraction, exponent) \
  case DType::k##name:                                            \
    return LaunchTyped<storage>(params, launcher);
    TFBN_FOR_EACH_DTYPE(X)
#undef X
  }
  return 0;
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_LAUNCH_PLAN_H_
