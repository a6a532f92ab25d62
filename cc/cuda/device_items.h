// The items of a thread: which vectors it reads, and their loads.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_ITEMS_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_ITEMS_H_

#include <cstdint>

#include "cc/core/host_device.h"
#include "cc/cuda/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// A vector of the tensors, at `element` on the grid of vectors. Elements
// [begin, end) of it belong to the thread, the others to neighbouring segments
// or to nobody; none where the item is absent.
struct VectorSlot {
  int64_t element;
  int begin, end;
  TFBN_HD bool Present() const { return begin < end; }
};

// `n`, about which the compiler of device code knows nothing: where it knows
// that the first item of a batch is present, it uses its vectors before it
// loads the next ones, to save registers.
TFBN_HD int Opaque(int n) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(n));
#endif
  return n;
}

// The items of a thread in its split, one after the other.
template <typename T, bool kChannelsLast>
class ThreadItems {
 public:
  static constexpr int kVector = kVectorOf<T>;

  TFBN_HD ThreadItems(const LaunchConfig& config, int64_t block, int thread)
      : config_(config) {
    const int64_t split = config.SplitOf(block), tile = config.TileOf(block);
    const int row = thread / config.threads_x;
    x_ = thread - row * config.threads_x;
    z_ = row / config.threads_y;
    y_ = row - z_ * config.threads_y;
    const int64_t first = Divide(config.items * split, config.splits) + z_;
    const int64_t end = Divide(config.items * (split + 1), config.splits);
    left_ = first < end
                ? static_cast<int>(Divide(end - first + config.threads_z - 1,
                                          config.threads_z))
                : 0;
    if constexpr (kChannelsLast) {
      column_ = tile * config.threads_x + x_;
      active_ = z_ < config.threads_z && column_ < config.row_vectors;
      at_ = (first * config.row_vectors + column_) * kVector;
    } else {
      column_ = tile * config.threads_y + y_;
      active_ = z_ < config.threads_z && column_ < config.view.channels;
      const int64_t outer = Divide(first, config.strides);
      stride_ = static_cast<int>(first - outer * config.strides);
      at_ = (outer * config.view.channels + column_) * config.view.inner;
    }
  }

  // False for threads outside the tile, which only take part in barriers.
  TFBN_HD bool Active() const { return active_; }
  TFBN_HD int x() const { return x_; }
  TFBN_HD int y() const { return y_; }
  TFBN_HD int z() const { return z_; }
  TFBN_HD bool Done() const { return left_ <= 0; }
  // Channels last: column of element `e` of the thread's vector. First: the
  // channel.
  TFBN_HD int64_t Column(int e) const {
    return kChannelsLast ? column_ * kVector + e : column_;
  }

  // Whether the vectors of the next `items` items are whole, or absent.
  TFBN_HD bool AreWhole(int items) const {
    if constexpr (kChannelsLast) {
      const int last = (items < left_ ? items : left_) - 1;
      return at_ + last * RowStride() + kVector <= config_.elements;
    } else {
      return config_.view.inner % kVector == 0;
    }
  }

  // The vector of the next item. kWhole: as AreWhole says.
  template <bool kWhole>
  TFBN_HD VectorSlot Next() {
    const bool present = Opaque(left_--) > 0;
    VectorSlot slot{at_, 0, kVector};
    if constexpr (kChannelsLast) {
      if (!kWhole) slot.end = Clamp(config_.elements - at_);
      at_ += RowStride();
    } else {
      const int64_t inner = config_.view.inner;
      slot.element =
          static_cast<int64_t>(static_cast<uint64_t>(at_) / kVector * kVector) +
          (int64_t{stride_} * config_.threads_x + x_) * kVector;
      const int64_t end = at_ + inner - slot.element;
      slot.begin = kWhole || slot.element >= at_
                       ? 0
                       : static_cast<int>(at_ - slot.element);
      slot.end = kWhole ? (end > 0 ? kVector : 0) : Clamp(end);
      NextSegment();
    }
    if (!present) slot.end = 0;
    return slot;
  }

 private:
  static TFBN_HD int Clamp(int64_t n) {
    return n < 0 ? 0 : n > kVector ? kVector : static_cast<int>(n);
  }
  // Channels last: elements between two items of the thread.
  TFBN_HD int64_t RowStride() const {
    return config_.threads_z * config_.row_vectors * kVector;
  }
  TFBN_HD void NextSegment() {
    const int strides = static_cast<int>(config_.strides);
    int segments = config_.item_segments;
    stride_ += config_.item_strides;
    if (stride_ >= strides) {
      stride_ -= strides;
      ++segments;
    }
    at_ += segments * (config_.view.channels * config_.view.inner);
  }

  const LaunchConfig& config_;
  int x_, y_, z_;
  bool active_;
  int left_;        // Items from the next one on.
  int64_t column_;  // Channels last: vector of a row. First: channel.
  // Element at which the next item's vector (channels last) or segment begins.
  int64_t at_;
  int stride_ = 0;  // Channels first: of the next item.
};

// Where the vector of a slot lies in a tensor.
template <typename T>
TFBN_HD uintptr_t AddressOf(const void* tensor, const VectorSlot& slot) {
  return reinterpret_cast<uintptr_t>(tensor) +
         static_cast<uintptr_t>(slot.element) * sizeof(T);
}

// Loads the vectors of the next kItems items from the first `count` of `in`,
// all of them before the first is used. kWhole: they are whole, or absent, and
// aligned. Otherwise those that reach beyond the tensors, are misaligned, or,
// in place, would read elements that another thread writes, are loaded element
// by element.
template <bool kWhole, int kItems, typename T, bool kChannelsLast, int kCount,
          int kInputs>
TFBN_HD void LoadItems(const void* const (&in)[kInputs], int count,
                       int64_t elements, bool aligned, bool in_place,
                       ThreadItems<T, kChannelsLast>* items,
                       VectorSlot (&slot)[kItems],
                       Words (&words)[kItems][kCount]) {
  static_assert(kCount <= kInputs, "as many tensors as there are");
  constexpr int kVector = kVectorOf<T>;
  bool by_element[kItems];
  TFBN_UNROLL
  for (int u = 0; u < kItems; ++u) {
    slot[u] = items->template Next<kWhole>();
    const bool partial = slot[u].begin > 0 || slot[u].end < kVector;
    by_element[u] = !kWhole && (!aligned || (partial && in_place) ||
                                slot[u].element + kVector > elements);
    const bool wanted = slot[u].Present() && !by_element[u];
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      words[u][i] =
          LoadWords(AddressOf<T>(in[i], slot[u]), wanted && i < count);
    }
  }
  if constexpr (!kWhole) {
    TFBN_UNROLL
    for (int u = 0; u < kItems; ++u) {
      TFBN_UNROLL
      for (int i = 0; i < kCount; ++i) {
        if (by_element[u] && i < count) {
          words[u][i] = LoadElements<T>(AddressOf<T>(in[i], slot[u]),
                                        slot[u].begin, slot[u].end);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_ITEMS_H_
