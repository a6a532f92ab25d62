// The apply kernel: outputs of view shape, elementwise from inputs and
// coefficients.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_APPLY_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_APPLY_H_

#include <cstdint>

#include "cc/core/host_device.h"
#include "cc/cuda/device_loop.h"
#include "cc/cuda/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Where the outputs of view shape are written.
template <typename T, int kOutputs>
class VectorWriter {
 public:
  TFBN_HD VectorWriter(void* const (&out)[kOutputs], int shift) {
    TFBN_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      grid_[o] = reinterpret_cast<uintptr_t>(out[o]) - shift * sizeof(T);
    }
  }
  // kWhole: the vector is whole, and if it is of the first output, aligned.
  template <bool kWhole>
  TFBN_HD void Store(int o, const VectorSlot& slot, const Words& w) const {
    const uintptr_t to = grid_[o] + static_cast<uintptr_t>(slot.byte);
    if (kWhole && o == 0) {
      StoreWords(to, w);
    } else {
      StoreElements<T>(w, to, slot.begin, slot.end);
    }
  }

 private:
  uintptr_t grid_[kOutputs];
};

// Evaluates the formula for one vector of every input and stores the outputs.
// `k` has the coefficients of each column of the vector, or of its one channel.
template <typename Formula, typename T, bool kMasked, int kCount, int kColumns>
TFBN_HD void ApplyVector(
    bool training, const VectorSlot& slot, const Words (&in)[kCount],
    const Compute<T> (&k)[kColumns][Formula::kNumCoefficients],
    const VectorWriter<T, Formula::kOutputs>& writer) {
  constexpr int kVector = VectorTraits<T>::kVector;
  Compute<T> result[Formula::kOutputs][kVector];
  TFBN_UNROLL
  for (int e = 0; e < kVector; ++e) {
    Compute<T> from[Formula::kInputs] = {}, to[Formula::kOutputs];
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      from[i] =
          static_cast<Compute<T>>(ToDouble(ElementOf<T>(in[i], e)));
    }
    const auto& coefficients = k[kColumns > 1 ? e : 0];
    if (training) {
      Formula::template Element<true>(from, coefficients, to);
    } else {
      Formula::template Element<false>(from, coefficients, to);
    }
    TFBN_UNROLL
    for (int o = 0; o < Formula::kOutputs; ++o) result[o][e] = to[o];
  }
  TFBN_UNROLL
  for (int o = 0; o < Formula::kOutputs; ++o) {
    writer.template Store<!kMasked>(o, slot, RoundToWords<T>(result[o]));
  }
}

// Shared memory of a block: the coefficients of every column or channel of the
// tile.
template <typename Formula, typename T>
struct ApplyShared {
  Compute<T> k[Formula::kNumCoefficients][kThreads];
};

// Loads the coefficients of the tile; frozen, those that the formula computes
// then.
template <typename Formula, typename T, bool kChannelsLast, typename Block>
TFBN_HD void LoadCoefficients(const KernelParams<Formula>& params,
                              int64_t block_index, Block& block,
                              ApplyShared<Formula, T>* shared) {
  const LaunchConfig& config = params.config;
  const bool training = params.args.is_training;
  const int64_t channels = config.view.channels;
  block.ForEachThread([&](int t) {
    const int width = kChannelsLast
                          ? config.threads_x * VectorTraits<T>::kVector
                          : config.threads_y;
    int64_t column = config.TileOf(block_index) * width + t;
    // With a shift the first vector may begin in the row before.
    if (kChannelsLast) column -= config.shift;
    if (t >= width || column >= config.Columns()) return;
    if (column < 0) column += config.Columns();
    const auto* const from =
        static_cast<const Compute<T>*>(params.coefficients) +
        config.ChannelOf(column);
    TFBN_UNROLL
    for (int i = 0; i < Formula::kNumCoefficients; ++i) {
      if (training || i >= Formula::kFirstFrozenCoefficient) {
        shared->k[i][t] = from[i * channels];
      }
    }
  });
}

// kAligned: the inputs that are read are aligned as the first output. Blocks
// run in reverse order, so that the first ones read what the reduction read
// last and L2 still holds.
template <typename Formula, typename T, bool kChannelsLast, bool kAligned,
          typename Block>
TFBN_HD void Apply(const KernelParams<Formula>& params, Block& block,
                   ApplyShared<Formula, T>* shared) {
  constexpr int kColumns = kChannelsLast ? VectorTraits<T>::kVector : 1;
  constexpr int kVector = VectorTraits<T>::kVector;
  constexpr int kInputs = Formula::kInputs;
  constexpr int kHeld = kColumns * Formula::kNumCoefficients;
  const LaunchConfig& config = params.config;
  const int64_t index = config.GridSize() - 1 - block.Index();
  LoadCoefficients<Formula, T, kChannelsLast>(params, index, block, shared);

  block.LastPhase([&](int t) {
    BlockStrideLoop<T, kChannelsLast> loop(config, index, t);
    if (!loop.Active()) return;
    const auto tensors = Formula::TensorsOf(params.args);
    const bool training = params.args.is_training;
    const int count = training ? kInputs : int{Formula::kNumFrozenInputs};
    Compute<T> k[kColumns][Formula::kNumCoefficients];
    TFBN_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      const int column = kChannelsLast ? loop.x() * kColumns + e : loop.y();
      TFBN_UNROLL
      for (int i = 0; i < Formula::kNumCoefficients; ++i) {
        k[e][i] = shared->k[i][column];
      }
    }
    const VectorLoader<T, kInputs, kAligned, true> loader(tensors.in,
                                                          config.shift);
    const VectorWriter<T, Formula::kOutputs> writer(tensors.out, config.shift);
    const auto masked = [&](int, const VectorSlot& slot,
                            const Words(&in)[kInputs]) {
      if (!slot.Present()) return;
      ApplyVector<Formula, T, true>(training, slot, in, k, writer);
    };
    const auto whole = [&](int, bool present, int64_t byte,
                           const Words(&in)[kInputs]) {
      if (!present) return;
      ApplyVector<Formula, T, false>(training, VectorSlot{byte, 0, kVector}, in,
                                     k, writer);
    };
    for (; !loop.Done(); loop.NextGroup()) {
      if (!IsWhole<kAligned>(config, loop)) {
        const bool own_only =
            params.in_place || !loop.template Inside<kAligned>();
        ForEachMasked(loop, loader, count, own_only, masked);
      } else if (kChannelsLast && loop.GroupItems() == kGroupItems) {
        ForEachWhole<kHeld, true>(loop, loader, count, whole);
      } else {
        ForEachWhole<kHeld, false>(loop, loader, count, whole);
      }
    }
  });
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_APPLY_H_
