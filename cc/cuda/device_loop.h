// The block-stride loop of a thread over the items of its split, and the
// unrolled vectorized loads in it.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_LOOP_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_LOOP_H_

#include <cstdint>

#include "cc/core/host_device.h"
#include "cc/cuda/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// A vector of the tensors and its mask: elements [begin, end) of those at
// offset `at` belong to the thread, the others to neighbouring runs.
struct VectorSlot {
  int64_t at;
  int begin, end;
};

template <typename T, bool kChannelsLast>
class BlockStrideLoop {
 public:
  static constexpr int kVector = VectorTraits<T>::kVector;

  TFBN_HD BlockStrideLoop(const LaunchConfig& config, int64_t block, int thread)
      : config_(config),
        tile_(config.TileOf(block)),
        x_(thread % config.threads_x),
        y_(thread / config.threads_x % config.threads_y),
        z_(thread / (config.threads_x * config.threads_y)) {
    const int64_t split = config.SplitOf(block);
    item_ = config.items * split / config.splits + z_;
    end_ = config.items * (split + 1) / config.splits;
    if (kChannelsLast) {
      column_vector_ = tile_ * config.threads_x + x_;
      active_ = z_ < config.threads_z && column_vector_ < config.row_vectors;
    } else {
      channel_ = tile_ * config.threads_y + y_;
      active_ = z_ < config.threads_z && channel_ < config.view.channels;
      outer_ = item_ / config.steps;
      step_ = item_ % config.steps;
    }
  }

  // False for threads outside the tile, which only take part in barriers.
  TFBN_HD bool Active() const { return active_; }
  TFBN_HD int x() const { return x_; }
  TFBN_HD int y() const { return y_; }
  TFBN_HD int z() const { return z_; }

  TFBN_HD int64_t RemainingItems() const {
    return item_ < end_
               ? (end_ - item_ + config_.threads_z - 1) / config_.threads_z
               : 0;
  }

  TFBN_HD void Next() {
    item_ += config_.threads_z;
    if (!kChannelsLast) {
      // Without a division: threads_z > 1 and steps > 1 rarely coincide.
      step_ += config_.threads_z;
      while (step_ >= config_.steps) {
        step_ -= config_.steps;
        ++outer_;
      }
    }
  }

  // The vector of this item; end <= 0 where the run ends before it.
  TFBN_HD VectorSlot Current() const {
    const int64_t elements = config_.elements, shift = config_.shift;
    if (kChannelsLast) {
      const int64_t at =
          (item_ * config_.row_vectors + column_vector_) * kVector - shift;
      return VectorSlot{at, at < 0 ? config_.shift : 0, Clamp(elements - at)};
    }
    const int64_t inner = config_.view.inner;
    const int64_t run = (outer_ * config_.view.channels + channel_) * inner;
    const int64_t vector =
        static_cast<int64_t>(static_cast<uint64_t>(run + shift) / kVector) +
        step_ * config_.threads_x + x_;
    const int64_t at = vector * kVector - shift;
    return VectorSlot{at, at < run ? static_cast<int>(run - at) : 0,
                      Clamp(run + inner - at)};
  }

  // Channels last: column (element of a row) of element `e` of the thread; with
  // a shift the vector may begin in the row before.
  TFBN_HD int64_t Column(int e) const {
    const int64_t column = column_vector_ * kVector - config_.shift + e;
    return column < 0 ? column + config_.row_vectors * kVector : column;
  }

  // Channel of element `e` (channels first: of all elements).
  TFBN_HD int64_t Channel(int e = 0) const {
    return kChannelsLast ? Column(e) % config_.view.channels : channel_;
  }

  // Channels last: the channel of the column after one of channel `c`.
  TFBN_HD int64_t NextChannel(int64_t c) const {
    return c + 1 == config_.view.channels ? 0 : c + 1;
  }

 private:
  static TFBN_HD int Clamp(int64_t n) {
    return n < 0 ? 0 : n > kVector ? kVector : static_cast<int>(n);
  }

  const LaunchConfig& config_;
  int64_t tile_;
  int x_, y_, z_;
  bool active_ = false;
  int64_t item_ = 0, end_ = 0;
  int64_t column_vector_ = 0;                   // Channels last.
  int64_t channel_ = 0, outer_ = 0, step_ = 0;  // Channels first.
};

// Runs the loop to its end: f(slot, vectors) with the vectors of the first
// `count` of the `in` tensors; the others are uninitialized. Loads of kUnroll
// items are issued before the first is used, to hide DRAM latency.
template <bool kAligned, bool kEvictFirst, int kInputs, typename T,
          bool kChannelsLast, typename F>
TFBN_HD void ForEachVector(BlockStrideLoop<T, kChannelsLast>* loop,
                           const void* const (&in)[kInputs], int count,
                           int64_t elements, const F& f) {
  // The same bytes in flight for formulas of one and of two inputs; misaligned
  // vectors take twice the registers.
  constexpr int kUnroll =
      VectorTraits<T>::kUnroll * (kInputs == 1 && kAligned ? 2 : 1);
  const auto load = [&](int64_t at, Vector<T>(&vectors)[kInputs]) {
    TFBN_UNROLL
    for (int i = 0; i < kInputs; ++i) {
      if (i < count) {
        vectors[i] = LoadVector<kAligned, kEvictFirst>(
            static_cast<const T*>(in[i]), at, elements);
      }
    }
  };
  int64_t remaining = loop->RemainingItems();
  for (; remaining >= kUnroll; remaining -= kUnroll) {
    VectorSlot slot[kUnroll];
    Vector<T> vectors[kUnroll][kInputs];
    TFBN_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      slot[u] = loop->Current();
      loop->Next();
      // Behind the end of the array, so that nothing is loaded, where the run
      // has ended.
      load(slot[u].end > 0 ? slot[u].at : elements, vectors[u]);
    }
    TFBN_UNROLL
    for (int u = 0; u < kUnroll; ++u) f(slot[u], vectors[u]);
  }
  for (; remaining > 0; --remaining) {
    const VectorSlot slot = loop->Current();
    loop->Next();
    if (slot.end <= 0) continue;
    Vector<T> vectors[kInputs];
    load(slot.at, vectors);
    f(slot, vectors);
  }
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_LOOP_H_
