// The block-stride loop of a thread over the items of its split, in groups, and
// the loads in it.
//
// A group is up to kGroupItems items. Its vectors are loaded several items
// ahead of their use, by one of two paths:
//
//   whole    All vectors are whole and inside the tensors, or absent: no masks,
//            and addresses are a base plus 32-bit offsets.
//   masked   Vectors may reach into neighbouring runs or beyond the tensors.
//
// Which one is taken depends on the view and, for the first and last vectors of
// a tensor, on the alignment, and changes no result.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_LOOP_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_LOOP_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/host_device.h"
#include "cc/core/two_level_sum.h"
#include "cc/cuda/device/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// A multiple of the items of a run (device_reduce.h).
constexpr int kGroupItems = kTwoLevelRun;
static_assert(kGroupItems == kMaxGroupItems, "LaunchConfig::whole");

// Vectors that a thread loads before it uses the first: as many as fit into 128
// registers, and no fewer than hide the latency of DRAM (docs/gpu.md).
constexpr int kMaxVectorsAhead = 8;
constexpr int kMinVectorsAhead = 4;
// Registers for vectors and for what a thread holds of its columns.
constexpr int kHeldRegisters = 60;

// A vector of the tensors: `byte` from the vector that the grid of vectors
// starts with. Elements [begin, end) of it belong to the thread, the others to
// neighbouring runs; none where the item is absent.
struct VectorSlot {
  int64_t byte;
  int begin, end;
  TFBN_HD bool Present() const { return begin < end; }
};

template <typename T, bool kChannelsLast>
class BlockStrideLoop {
 public:
  static constexpr int kVector = VectorTraits<T>::kVector;

  TFBN_HD BlockStrideLoop(const LaunchConfig& config, int64_t block, int thread)
      : config_(config) {
    const int64_t split = config.SplitOf(block), tile = config.TileOf(block);
    const int row = thread / config.threads_x;
    x_ = thread - row * config.threads_x;
    z_ = row / config.threads_y;
    y_ = row - z_ * config.threads_y;
    const int64_t first = Divide(config.items * split, config.splits) + z_;
    const int64_t end = Divide(config.items * (split + 1), config.splits);
    remaining_ =
        first < end ? static_cast<int>(Divide(
                          end - first + config.threads_z - 1, config.threads_z))
                    : 0;
    if constexpr (kChannelsLast) {
      column_ = tile * config.threads_x + x_;
      active_ = z_ < config.threads_z && column_ < config.row_vectors;
      vector_ = first * config.row_vectors + column_;
    } else {
      column_ = tile * config.threads_y + y_;
      active_ = z_ < config.threads_z && column_ < config.view.channels;
      const int64_t outer = Divide(first, config.steps);
      step_ = static_cast<int>(first - outer * config.steps);
      run_ = (outer * config.view.channels + column_) * config.view.inner;
    }
  }

  // False for threads outside the tile, which only take part in barriers.
  TFBN_HD bool Active() const { return active_; }
  TFBN_HD int x() const { return x_; }
  TFBN_HD int y() const { return y_; }
  TFBN_HD int z() const { return z_; }

  TFBN_HD bool Done() const { return remaining_ <= 0; }
  TFBN_HD int GroupItems() const {
    return remaining_ < kGroupItems ? remaining_ : kGroupItems;
  }
  TFBN_HD void NextGroup() {
    remaining_ -= kGroupItems;
    if constexpr (kChannelsLast) {
      vector_ += int64_t{kGroupItems} * Stride();
    } else {
      Advance(config_.group_runs, config_.group_steps, &run_, &step_);
    }
  }

  // Whether loads of all vectors of the group lie inside the tensors. Exact for
  // channels-last, where it says that all vectors are whole too.
  template <bool kAligned>
  TFBN_HD bool Inside() const {
    // A misaligned vector lies in two aligned ones.
    constexpr int kBeside = kAligned ? 0 : kVector;
    if constexpr (kChannelsLast) {
      const int64_t first = vector_ * kVector - config_.shift;
      const int64_t last =
          first + int64_t{GroupItems() - 1} * Stride() * kVector;
      return first >= kBeside && last + kVector + kBeside <= config_.elements;
    } else {
      if (kAligned && config_.whole) return true;
      // Vectors lie less than one vector before, and behind, their elements.
      const int64_t first = run_ + StepElements(step_);
      const int steps = static_cast<int>(config_.steps);
      const int last_item = step_ + (GroupItems() - 1) * config_.threads_z;
      const int64_t last_run = run_ + last_item / steps * RunStride();
      const int last_step = last_item % steps;
      const int64_t last = StepElements(last_step) + kVector;
      const int64_t inner = config_.view.inner;
      return first >= kVector + kBeside &&
             last_run + (last < inner ? last : inner) + 2 * kVector + kBeside <=
                 config_.elements;
    }
  }

  // The slots of the group one after the other, by the masked path.
  class MaskedItems {
   public:
    TFBN_HD explicit MaskedItems(const BlockStrideLoop& loop)
        : loop_(loop), items_(loop.GroupItems()) {
      if constexpr (kChannelsLast) {
        run_ = loop.vector_;
      } else {
        run_ = loop.run_;
        step_ = loop.step_;
      }
    }
    TFBN_HD VectorSlot Next() {
      VectorSlot slot = Current();
      if (items_-- <= 0) slot.end = slot.begin;
      if constexpr (kChannelsLast) {
        run_ += loop_.Stride();
      } else {
        loop_.Advance(loop_.config_.item_runs, loop_.config_.item_steps, &run_,
                      &step_);
      }
      return slot;
    }

   private:
    TFBN_HD VectorSlot Current() const {
      const LaunchConfig& config = loop_.config_;
      int64_t vector = run_, first = 0, end = config.elements;
      if constexpr (!kChannelsLast) {
        vector = static_cast<int64_t>(
                     static_cast<uint64_t>(run_ + config.shift) / kVector) +
                 int64_t{step_} * config.threads_x + loop_.x_;
        first = run_;
        end = run_ + config.view.inner;
      }
      const int64_t at = vector * kVector - config.shift;
      return VectorSlot{vector * kVectorBytes,
                        at < first ? static_cast<int>(first - at) : 0,
                        Clamp(end - at)};
    }
    static TFBN_HD int Clamp(int64_t n) {
      return n < 0 ? 0 : n > kVector ? kVector : static_cast<int>(n);
    }

    const BlockStrideLoop& loop_;
    int64_t run_;  // Channels last: the vector.
    int step_ = 0;
    int items_;
  };

  // The vectors of the group one after the other, by the path for whole ones:
  // offsets from GroupByte() in vectors, and which of them are absent.
  class WholeItems {
   public:
    TFBN_HD explicit WholeItems(const BlockStrideLoop& loop) : loop_(loop) {
      if constexpr (!kChannelsLast) {
        const LaunchConfig& config = loop.config_;
        step_ = loop.step_;
        offset_ =
            static_cast<uint32_t>(static_cast<uint64_t>(loop.run_) / kVector) +
            step_ * config.threads_x + loop.x_;
        const int vectors = static_cast<int>(config.view.inner / kVector);
        const int steps = static_cast<int>(config.steps);
        present_steps_ = loop.x_ < vectors - (steps - 1) * config.threads_x
                             ? steps
                             : steps - 1;
      }
    }
    TFBN_HD bool Present() const {
      return kChannelsLast || step_ < present_steps_;
    }
    TFBN_HD uint32_t Offset() const { return offset_; }
    TFBN_HD void Next() {
      const LaunchConfig& config = loop_.config_;
      if constexpr (kChannelsLast) {
        offset_ += loop_.Stride();
      } else {
        const uint32_t run = static_cast<uint32_t>(loop_.RunStride() / kVector);
        const int steps = static_cast<int>(config.steps);
        step_ += config.item_steps;
        offset_ +=
            config.item_runs * run + config.item_steps * config.threads_x;
        if (step_ >= steps) {
          step_ -= steps;
          offset_ += run - steps * config.threads_x;
        }
      }
    }

   private:
    const BlockStrideLoop& loop_;
    uint32_t offset_ = 0;
    int step_ = 0, present_steps_ = 0;
  };

  TFBN_HD int64_t GroupByte() const {
    return kChannelsLast ? vector_ * kVectorBytes : 0;
  }

  // Channels last: column (element of a row) of element `e` of the thread; with
  // a shift the vector may begin in the row before.
  TFBN_HD int64_t Column(int e) const {
    const int64_t column = column_ * kVector - config_.shift + e;
    return column < 0 ? column + config_.row_vectors * kVector : column;
  }

  // Channels first.
  TFBN_HD int64_t Channel() const { return column_; }

 private:
  // Channels last: vectors between two items of the thread.
  TFBN_HD int64_t Stride() const {
    return config_.threads_z * config_.row_vectors;
  }
  // Channels first: elements of a run before vector x of a step.
  TFBN_HD int64_t StepElements(int step) const {
    return (int64_t{step} * config_.threads_x + x_) * kVector;
  }
  // Channels first: `runs` runs and `steps` steps further.
  TFBN_HD void Advance(int runs, int steps, int64_t* run, int* step) const {
    *run += runs * RunStride();
    *step += steps;
    if (*step >= config_.steps) {
      *step -= static_cast<int>(config_.steps);
      *run += RunStride();
    }
  }
  // Channels first: elements between two runs of a channel.
  TFBN_HD int64_t RunStride() const {
    return config_.view.channels * config_.view.inner;
  }

  const LaunchConfig& config_;
  int x_, y_, z_;
  bool active_;
  int remaining_;       // Items of the thread from this group on.
  int64_t column_;      // Channels last: vector of a row. First: channel.
  int64_t vector_ = 0;  // Channels last: that of the group's first item.
  int64_t run_ = 0;     // Channels first: where its run starts, and its step.
  int step_ = 0;
};

// Loads vectors of the first kCount of some tensors. They start `shift`
// elements behind the grid of vectors.
template <typename T, int kCount, bool kAligned, bool kEvictFirst>
class VectorLoader {
 public:
  using Loaded = LoadedVector<kAligned>;
  static constexpr int kTensors = kCount;

  template <int kInputs>
  TFBN_HD VectorLoader(const void* const (&in)[kInputs], int shift) {
    static_assert(kCount <= kInputs, "as many tensors as there are");
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      grid_[i] = reinterpret_cast<uintptr_t>(in[i]) - shift * sizeof(T);
    }
  }

  // The vectors `offset` vectors behind `byte` of the first `count` tensors,
  // if `wanted`.
  TFBN_HD void Load(int64_t byte, uint32_t offset, bool wanted, int count,
                    Loaded (&to)[kCount]) const {
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const bool load = wanted && i < count;
      const uintptr_t at =
          grid_[i] + static_cast<uintptr_t>(byte) +
          static_cast<uint64_t>(offset) * static_cast<uint32_t>(kVectorBytes);
      if constexpr (kAligned) {
        to[i].low = LoadWords<kEvictFirst>(at, load);
      } else {
        const unsigned bytes = MisalignedBytes(grid_[i]);
        to[i].low = LoadWords<false>(at - bytes, load);
        to[i].high =
            LoadWords<false>(at - bytes + kVectorBytes, load && bytes != 0);
      }
    }
  }

  // The elements of a slot alone.
  TFBN_HD void LoadOwned(const VectorSlot& slot, int count,
                         Words (&to)[kCount]) const {
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (i < count) {
        to[i] = LoadElements<T>(grid_[i] + slot.byte, slot.begin, slot.end);
      }
    }
  }

  // The vectors themselves.
  TFBN_HD void Align(const Loaded (&from)[kCount], Words (&to)[kCount]) const {
    TFBN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kAligned) {
        to[i] = from[i].low;
      } else {
        to[i] =
            ShiftBytes<T>(from[i].low, from[i].high, MisalignedBytes(grid_[i]));
      }
    }
  }

 private:
  uintptr_t grid_[kCount];
};

// Items whose vectors are loaded together. `held`: 32-bit registers that a
// thread holds of its columns meanwhile.
template <int kInputs, bool kAligned>
TFBN_HD constexpr int ItemsAhead(int held) {
  constexpr int kLoads = kInputs * (kAligned ? 1 : 2);
  int items = 1;
  while (items * kLoads < kMinVectorsAhead) items *= 2;
  while (items < kGroupItems && 2 * items * kLoads <= kMaxVectorsAhead &&
         4 * 2 * items * kLoads + held <= kHeldRegisters) {
    items *= 2;
  }
  return items;
}

// `n`, about which the compiler of device code knows nothing.
TFBN_HD int Opaque(int n) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(n));
#endif
  return n;
}

// f(i, slot, words) for every item i of the group, in order; absent ones too,
// whose words are undefined. `own_only`: only elements of the slots are loaded.
template <typename T, bool kChannelsLast, int kCount, bool kAligned,
          bool kEvictFirst, typename F>
TFBN_HD void ForEachMasked(
    const BlockStrideLoop<T, kChannelsLast>& loop,
    const VectorLoader<T, kCount, kAligned, kEvictFirst>& loader, int count,
    bool own_only, const F& f) {
  // Masks occupy registers too. Channels last, only the first and the last
  // vectors of a tensor take this path.
  constexpr int kItems =
      kChannelsLast ? 1 : ItemsAhead<kCount, kAligned>(kHeldRegisters);
  constexpr int kVector = VectorTraits<T>::kVector;
  typename BlockStrideLoop<T, kChannelsLast>::MaskedItems items(loop);
  TFBN_NO_UNROLL
  for (int i = 0; i < loop.GroupItems(); i += kItems) {
    VectorSlot slot[kItems];
    LoadedVector<kAligned> loaded[kItems][kCount];
    bool by_element[kItems];
    TFBN_UNROLL
    for (int u = 0; u < kItems; ++u) {
      slot[u] = items.Next();
      const bool partial = slot[u].begin > 0 || slot[u].end < kVector;
      by_element[u] = own_only && (partial || !kAligned);
      loader.Load(slot[u].byte, 0, slot[u].Present() && !by_element[u], count,
                  loaded[u]);
    }
    TFBN_UNROLL
    for (int u = 0; u < kItems; ++u) {
      Words words[kCount];
      if (by_element[u]) {
        loader.LoadOwned(slot[u], count, words);
      } else if (slot[u].Present()) {
        loader.Align(loaded[u], words);
      }
      f(i + u, slot[u], words);
    }
  }
}

// The same by the path for whole vectors, f(i, present, byte, words). The
// branch where an item is absent keeps the loads of all items before it: the
// compiler would otherwise move some behind it to save registers.
template <int kHeld, typename T, bool kChannelsLast, int kCount, bool kAligned,
          bool kEvictFirst, typename F>
TFBN_HD void ForEachWhole(
    const BlockStrideLoop<T, kChannelsLast>& loop,
    const VectorLoader<T, kCount, kAligned, kEvictFirst>& loader, int count,
    const F& f) {
  constexpr int kItems = ItemsAhead<kCount, kAligned>(kHeld);
  typename BlockStrideLoop<T, kChannelsLast>::WholeItems items(loop);
  const int64_t byte = loop.GroupByte();
  const int n = loop.GroupItems();
  // Channels first, whether an item is present is not known in advance.
  const int limit = kChannelsLast ? Opaque(n) : n;
  TFBN_NO_UNROLL
  for (int i = 0; i < n; i += kItems) {
    uint32_t offset[kItems];
    bool present[kItems];
    LoadedVector<kAligned> loaded[kItems][kCount];
    TFBN_UNROLL
    for (int u = 0; u < kItems; ++u) {
      offset[u] = items.Offset();
      present[u] = i + u < limit && items.Present();
      items.Next();
      loader.Load(byte, offset[u], present[u], count, loaded[u]);
    }
    TFBN_UNROLL
    for (int u = 0; u < kItems; ++u) {
      Words words[kCount];
      if (present[u]) loader.Align(loaded[u], words);
      f(i + u, present[u],
        byte + static_cast<int64_t>(offset[u]) * kVectorBytes, words);
    }
  }
}

// f(masked, i, present, slot, words) for every item i of the group, in order,
// by the path that it takes; the words of absent ones are undefined. `masked`
// is std::true_type where vectors may be partial, otherwise std::false_type.
// `own_only`: no element of a neighbouring run is loaded.
template <int kHeld, typename T, bool kChannelsLast, int kCount, bool kAligned,
          bool kEvictFirst, typename F>
TFBN_HD void ForEachItem(
    const LaunchConfig& config, const BlockStrideLoop<T, kChannelsLast>& loop,
    const VectorLoader<T, kCount, kAligned, kEvictFirst>& loader, int count,
    bool own_only, const F& f) {
  if (!(config.whole && loop.template Inside<kAligned>())) {
    ForEachMasked(loop, loader, count,
                  own_only || !loop.template Inside<kAligned>(),
                  [&](int i, const VectorSlot& slot, const Words(&in)[kCount]) {
                    f(std::true_type(), i, slot.Present(), slot, in);
                  });
  } else {
    ForEachWhole<kHeld>(
        loop, loader, count,
        [&](int i, bool present, int64_t byte, const Words(&in)[kCount]) {
          constexpr int kVector = VectorTraits<T>::kVector;
          f(std::false_type(), i, present, VectorSlot{byte, 0, kVector}, in);
        });
  }
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_LOOP_H_
