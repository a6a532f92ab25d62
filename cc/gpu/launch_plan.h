// Which kernels a call launches, in which order, and the workspace between
// them. Who launches them (the CUDA runtime, or the host emulator) passes a
// Launcher:
//
//   template <typename PassOf>
//   int Pass(const KernelParams&);
//   template <typename Formula, typename T>
//   int Finish(const KernelParams&);
//
// each of which returns 0, or an error that ends the call.
//
//   training           pass with sums (unless they are given), finish, pass
//                      that stores (unless the sums alone are wanted)
//   fixed statistics   one pass with the sums that remain and the stores, and
//                      finish; without sums, or where they do not fit beside
//                      the stores, as in training

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/view.h"
#include "cc/gpu/device_finish.h"
#include "cc/gpu/device_pass.h"
#include "cc/gpu/device_vector.h"
#include "cc/gpu/launch_config.h"

namespace tf_bn_ops::gpu {

// Of a reduction to `sums` sums of a channel.
inline LaunchConfig ReduceConfig(const View& view, DType dtype, int sums) {
  const int vector = kVectorBytes / static_cast<int>(SizeOf(dtype));
  return MakeLaunchConfig(view, vector, SlicesOf(vector, sums));
}

inline int64_t NumPartialSums(const LaunchConfig& config, int sums) {
  return config.elements == 0 ? 0 : sums * config.splits * config.Columns();
}

// Partial sums and coefficients; the latter as doubles, whatever the type.
template <typename Formula>
size_t WorkspaceBytes(const View& view, DType dtype) {
  int64_t sums = 0;
  for (const int of_channel :
       {int{Formula::kNumSums}, int{Formula::kNumFrozenSums}}) {
    sums = std::max(sums, NumPartialSums(ReduceConfig(view, dtype, of_channel),
                                         of_channel));
  }
  return sizeof(double) *
         static_cast<size_t>(sums + Formula::kNumCoefficients * view.channels);
}

// cudaErrorNotSupported, "operation not supported".
constexpr int kNotSupported = 801;

template <typename Formula, typename T, bool kChannelsLast, typename Launcher>
int LaunchKernels(const KernelParams& params, Launcher& launcher) {
  // For the host compiler, which nvcc may hand larger constants, see Gradient.
  static_assert(int{Formula::kNumFrozenSums} <= int{Formula::kNumSums} &&
                int{Formula::kNumFrozenInputs} <= int{Formula::kInputs} &&
                int{Formula::kNumReduceInputs} <= int{Formula::kInputs} &&
                int{Formula::kFirstMaskCoefficient} <=
                    int{Formula::kNumCoefficients} &&
                int{Formula::kFirstFrozenCoefficient} <=
                    int{Formula::kFirstMaskCoefficient});
  constexpr int kFrozen = Formula::kNumFrozenSums;
  constexpr bool kOnePass =
      kFrozen > 0 && (!kChannelsLast || SlicesOf(kVectorOf<T>, kFrozen) == 1);
  using Reduce =
      PassOf<ReductionOf<Formula>, T, kChannelsLast, Formula::kNumSums, false>;
  using Frozen = PassOf<Formula, T, kChannelsLast, kFrozen, kOnePass>;
  using Apply = PassOf<Formula, T, kChannelsLast, 0, true>;
  // What ops call (op_calls.h); the others have no kernels.
  constexpr bool kTrains = IsCalled<Formula, T>(CallPart::kWhole, true);
  constexpr bool kSums = kTrains || IsCalled<Formula, T>(CallPart::kSums, true);
  constexpr bool kFreezes = IsCalled<Formula, T>(CallPart::kWhole, false);
  constexpr bool kElements = kTrains ||
                             IsCalled<Formula, T>(CallPart::kElements, true) ||
                             (kFreezes && !kOnePass);
  int error = 0;
  if (!params.call.is_training) {
    if constexpr (kFreezes && kFrozen > 0) {
      error = launcher.template Pass<Frozen>(params);
    }
  } else if (!HasTotals(params.call)) {
    if constexpr (kSums) error = launcher.template Pass<Reduce>(params);
  }
  if (error == 0) error = launcher.template Finish<Formula, T>(params);
  const bool stored = kOnePass && !params.call.is_training;
  if (error != 0 || stored || !HasOutputs<Formula>(params.call)) return error;
  // Without sums a vector has one slice.
  KernelParams store = params;
  store.config = MakeLaunchConfig(params.call.view, kVectorOf<T>, 1);
  if constexpr (kElements) return launcher.template Pass<Apply>(store);
  return kNotSupported;
}

// The smallest elements that there are kernels for: a tile of channels-last
// rows is kRowThreads vectors, and has a thread for each of its columns.
constexpr size_t kMinElementBytes = 2;
static_assert(kRowThreads * kVectorBytes / kMinElementBytes <= kThreads);

// Enqueues all kernels of a call with elements of type T.
template <typename Formula, typename T, typename Launcher>
int LaunchTyped(const KernelParams& params, Launcher& launcher) {
  if constexpr (sizeof(T) < kMinElementBytes) {
    return kNotSupported;
  } else if (params.config.elements == 0) {
    return launcher.template Finish<Formula, T>(params);
  } else {
    return params.config.channels_last
               ? LaunchKernels<Formula, T, true>(params, launcher)
               : LaunchKernels<Formula, T, false>(params, launcher);
  }
}

// Enqueues all kernels of a call of this very formula. `workspace` has
// WorkspaceBytes and is aligned to 8 bytes.
template <typename Formula, typename Launcher>
int LaunchFormula(const Call& call, void* workspace, Launcher& launcher) {
  if (call.view.channels == 0) return 0;
  KernelParams params;
  params.call = call;
  const int sums = SumsOf<Formula>(call);
  params.config = ReduceConfig(call.view, call.dtype, sums);
  params.partial_sums = static_cast<double*>(workspace);
  params.coefficients =
      params.partial_sums + NumPartialSums(params.config, sums);
  const Tensors tensors = Formula::TensorsOf(call);
  const auto is_aligned = [](const void* p) {
    return IsAligned(reinterpret_cast<uintptr_t>(p));
  };
  params.aligned =
      std::all_of(tensors.in, tensors.in + tensors.inputs, is_aligned) &&
      std::all_of(tensors.out, tensors.out + tensors.outputs, is_aligned);
  for (int o = 0; o < tensors.outputs; ++o) {
    params.in_place |= IsInPlace(tensors, o);
  }
  TFBN_SWITCH_DTYPE(call.dtype,
                    return (LaunchTyped<Formula, T>(params, launcher)));
  return 0;
}

}  // namespace tf_bn_ops::gpu
