// The apply kernel: outputs of view shape, elementwise from inputs and
// coefficients.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_APPLY_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_APPLY_H_

#include <cstdint>

#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/cuda/device/device_loop.h"
#include "cc/cuda/device/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Maximum coefficients of a thread in 32-bit registers: beside vectors alone,
// which take twice as many where they are misaligned, and beside the sums of a
// fused kernel.
constexpr int kMaxHeldCoefficients = 48;
constexpr int kMaxHeldMisaligned = 24;
constexpr int kMaxHeldBesideSums = 8;

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

// The results of one vector of every input. `coefficients`.Load(e, k): those of
// element `e` of the vector.
template <typename Formula, typename T, bool kTraining, int kCount,
          typename Coefficients>
TFBN_HD void ComputeVector(
    const Words (&in)[kCount], const Coefficients& coefficients,
    Compute<T> (&result)[Formula::kOutputs][VectorTraits<T>::kVector]) {
  TFBN_UNROLL
  for (int e = 0; e < VectorTraits<T>::kVector; ++e) {
    Compute<T> from[Formula::kInputs] = {}, to[Formula::kOutputs];
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      from[i] = static_cast<Compute<T>>(ToDouble(ElementOf<T>(in[i], e)));
    }
    Compute<T> k[Formula::kNumCoefficients];
    coefficients.Load(e, k);
    Formula::template Element<kTraining>(from, k, to);
    TFBN_UNROLL
    for (int o = 0; o < Formula::kOutputs; ++o) result[o][e] = to[o];
  }
}

// Evaluates the formula for one vector of every input and stores the outputs.
template <typename Formula, typename T, bool kMasked, int kCount,
          typename Coefficients>
TFBN_HD void ApplyVector(bool training, const VectorSlot& slot,
                         const Words (&in)[kCount],
                         const Coefficients& coefficients,
                         const VectorWriter<T, Formula::kOutputs>& writer) {
  Compute<T> result[Formula::kOutputs][VectorTraits<T>::kVector];
  // Around the elements, so that each of them needs no branch.
  if (!kIsFrozenOnly<Formula> && training) {
    ComputeVector<Formula, T, !kIsFrozenOnly<Formula>>(in, coefficients,
                                                       result);
  } else {
    ComputeVector<Formula, T, false>(in, coefficients, result);
  }
  TFBN_UNROLL
  for (int o = 0; o < Formula::kOutputs; ++o) {
    writer.template Store<!kMasked>(o, slot, RoundToWords<T>(result[o]));
  }
}

// Where shared memory holds what belongs to a column of the tile: element `e`
// of the vector of thread x, or channel y. The elements of a thread are one
// address and constants; an element of padding spreads threads over the banks.
template <typename T, bool kChannelsLast>
TFBN_HD int IndexInTile(int x, int y, int e) {
  return kChannelsLast ? x * (VectorTraits<T>::kVector + 1) + e : y;
}
// Elements of such an array.
constexpr int kTileElements = kThreads + kRowThreads;

// Columns or channels of a tile.
template <typename T, bool kChannelsLast>
TFBN_HD int TileWidth(const LaunchConfig& config) {
  return kChannelsLast ? config.threads_x * VectorTraits<T>::kVector
                       : config.threads_y;
}

// Coefficients kFirst and following of the columns of a thread. Few of them are
// kept in registers; many are read from shared memory for every element, or the
// registers that loads need would be occupied.
template <typename Formula, typename T, bool kChannelsLast, int kFirst,
          int kMaxHeld>
class ColumnCoefficients {
 public:
  using C = Compute<T>;
  static constexpr int kColumns = kChannelsLast ? VectorTraits<T>::kVector : 1;
  static constexpr int kCount = Formula::kNumCoefficients - kFirst;
  // 32-bit registers.
  static constexpr int kSize = kColumns * kCount * int{sizeof(C) / 4};
  static constexpr bool kInRegisters = kSize <= kMaxHeld;
  static constexpr int kHeld = kInRegisters ? kSize : 0;

  template <typename Loop>
  TFBN_HD ColumnCoefficients(const C (*shared)[kTileElements], const Loop& loop)
      : shared_(shared), x_(loop.x()), y_(loop.y()) {
    if constexpr (kInRegisters) {
      TFBN_UNROLL
      for (int e = 0; e < kColumns; ++e) {
        const int at = IndexInTile<T, kChannelsLast>(x_, y_, e);
        TFBN_UNROLL
        for (int i = 0; i < kCount; ++i) held_[e][i] = shared[i][at];
      }
    }
  }

  // Those of element `e` of a vector; the others stay.
  TFBN_HD void Load(int e, C (&k)[Formula::kNumCoefficients]) const {
    const int at = IndexInTile<T, kChannelsLast>(x_, y_, e);
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kInRegisters) {
        k[kFirst + i] = held_[kChannelsLast ? e : 0][i];
      } else {
        // Volatile: the compiler would load them all before the loop.
        k[kFirst + i] = *static_cast<const volatile C*>(&shared_[i][at]);
      }
    }
  }

 private:
  const C (*const shared_)[kTileElements];
  const int x_, y_;
  C held_[kInRegisters ? kColumns : 1][kCount > 0 ? kCount : 1];
};

// Shared memory of a block: the coefficients of every column or channel of the
// tile.
template <typename Formula, typename T>
struct ApplyShared {
  Compute<T> k[Formula::kNumCoefficients][kTileElements];
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
    constexpr int kVector = VectorTraits<T>::kVector;
    const int width = TileWidth<T, kChannelsLast>(config);
    int64_t column = config.TileOf(block_index) * width + t;
    // With a shift the first vector may begin in the row before.
    if (kChannelsLast) column -= config.shift;
    if (t >= width || column >= config.Columns()) return;
    if (column < 0) column += config.Columns();
    const auto* const from =
        static_cast<const Compute<T>*>(params.coefficients) +
        config.ChannelOf(column);
    const int at = IndexInTile<T, kChannelsLast>(t / kVector, t, t % kVector);
    TFBN_UNROLL
    for (int i = 0; i < Formula::kNumCoefficients; ++i) {
      if (training || i >= Formula::kFirstFrozenCoefficient) {
        shared->k[i][at] = from[i * channels];
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
  constexpr int kInputs = Formula::kInputs;
  using Coefficients =
      ColumnCoefficients<Formula, T, kChannelsLast, 0,
                         kAligned ? kMaxHeldCoefficients : kMaxHeldMisaligned>;
  constexpr int kHeld = Coefficients::kHeld;
  const LaunchConfig& config = params.config;
  const int64_t index = config.GridSize() - 1 - block.Index();
  LoadCoefficients<Formula, T, kChannelsLast>(params, index, block, shared);

  block.LastPhase([&](int t) {
    BlockStrideLoop<T, kChannelsLast> loop(config, index, t);
    if (!loop.Active()) return;
    const auto tensors = Formula::TensorsOf(params.args);
    const bool training = params.args.is_training;
    const int count = training ? kInputs : int{Formula::kNumFrozenInputs};
    const Coefficients k(shared->k, loop);
    const VectorLoader<T, kInputs, kAligned, true> loader(tensors.in,
                                                          config.shift);
    const VectorWriter<T, Formula::kOutputs> writer(tensors.out, config.shift);
    const auto apply = [&](auto is_masked, int, bool present,
                           const VectorSlot& slot, const auto& in) {
      if (!present) return;
      ApplyVector<Formula, T, is_masked.value>(training, slot, in, k, writer);
    };
    for (; !loop.Done(); loop.NextGroup()) {
      ForEachItem<kHeld>(config, loop, loader, count, params.in_place, apply);
    }
  });
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_APPLY_H_
