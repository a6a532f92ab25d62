// The apply kernel: outputs of view shape, elementwise from inputs and
// coefficients.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_APPLY_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_APPLY_H_

#include <cstdint>

#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/cuda/device_loop.h"
#include "cc/cuda/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// One element of every output.
template <typename Formula, typename C>
TFBN_HD void ApplyElement(bool training, const C (&from)[Formula::kInputs],
                          const C (&k)[Formula::kNumCoefficients],
                          C (&to)[Formula::kOutputs]) {
  if constexpr (!kIsFrozenOnly<Formula>) {
    if (training) {
      Formula::template Element<true>(from, k, to);
      return;
    }
  }
  Formula::template Element<false>(from, k, to);
}

// Evaluates the formula for one vector of every input and stores the outputs.
// The first output is aligned to 16 bytes; kAligned: all are.
// `coefficients`.Load(e, k): those of element `e` of the vector.
template <typename Formula, bool kAligned, typename T, typename Coefficients>
TFBN_HD void ApplyVector(bool training, const VectorSlot& slot,
                         const Vector<T> (&in)[Formula::kInputs],
                         const Coefficients& coefficients,
                         void* const (&out)[Formula::kOutputs]) {
  constexpr int kVector = VectorTraits<T>::kVector;
  Vector<T> result[Formula::kOutputs];
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    Compute<T> from[Formula::kInputs], to[Formula::kOutputs];
    TFBN_UNROLL
    for (int i = 0; i < Formula::kInputs; ++i) {
      from[i] = ToCompute(in[i].element[e]);
    }
    Compute<T> k[Formula::kNumCoefficients];
    coefficients.Load(e, k);
    ApplyElement<Formula>(training, from, k, to);
    TFBN_UNROLL
    for (int o = 0; o < Formula::kOutputs; ++o) {
      FromDouble(to[o], &result[o].element[e]);
    }
  }
  TFBN_UNROLL
  for (int o = 0; o < Formula::kOutputs; ++o) {
    StoreVector(result[o], static_cast<T*>(out[o]), slot.at, slot.begin,
                slot.end, kAligned || o == 0);
  }
}

// Coefficients of columns, or of one channel, in registers.
template <typename Formula, typename C, int kColumns>
struct ThreadCoefficients {
  TFBN_HD void Load(int e, C (&to)[Formula::kNumCoefficients]) const {
    TFBN_UNROLL
    for (int i = 0; i < Formula::kNumCoefficients; ++i) {
      to[i] = k[kColumns > 1 ? e : 0][i];
    }
  }
  C k[kColumns][Formula::kNumCoefficients];
};

// The coefficients of the thread's columns; frozen, those that the formula
// computes then.
template <typename Formula, typename T, bool kChannelsLast, int kColumns>
TFBN_HD void LoadCoefficients(
    const KernelParams<Formula>& params,
    const BlockStrideLoop<T, kChannelsLast>& loop,
    Compute<T> (&k)[kColumns][Formula::kNumCoefficients]) {
  const bool training = params.args.is_training;
  const int64_t channels = params.args.view.channels;
  int64_t c = loop.Channel();
  TFBN_UNROLL
  for (int e = 0; e < kColumns; ++e, c = loop.NextChannel(c)) {
    const auto* const from =
        static_cast<const Compute<T>*>(params.coefficients) + c;
    TFBN_UNROLL
    for (int i = 0; i < Formula::kNumCoefficients; ++i) {
      if (training || i >= Formula::kFirstFrozenCoefficient) {
        k[e][i] = from[i * channels];
      }
    }
  }
}

// kAligned: the inputs that are read are aligned as the first output. Blocks
// run in reverse order, so that the first ones read what the reduction read
// last and L2 still holds.
template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          typename Block>
TFBN_HD void Apply(const KernelParams<Formula>& params, Block& block) {
  constexpr int kColumns = kChannelsLast ? VectorTraits<T>::kVector : 1;
  const LaunchConfig& config = params.config;
  const auto tensors = Formula::TensorsOf(params.args);
  const bool training = params.args.is_training;
  const int inputs = training ? Formula::kInputs : Formula::kNumFrozenInputs;

  block.ForEachThread([&](int t) {
    BlockStrideLoop<T, kChannelsLast> loop(
        config, config.GridSize() - 1 - block.Index(), t);
    if (!loop.Active()) return;
    ThreadCoefficients<Formula, Compute<T>, kColumns> coefficients;
    LoadCoefficients(params, loop, coefficients.k);
    const auto apply = [&](const VectorSlot& slot,
                           const Vector<T>(&in)[Formula::kInputs]) {
      ApplyVector<Formula, false>(training, slot, in, coefficients,
                                  tensors.out);
    };
    ForEachVector<kAligned, true>(&loop, tensors.in, inputs, config.elements,
                                  apply);
  });
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_APPLY_H_
