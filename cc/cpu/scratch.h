// Scratch memory of a thread that works through a pipeline.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>

#include "cc/cpu/tuning.h"

namespace tf_bn_ops {

// A buffer of at least `bytes`, aligned to cache lines, that no other
// ScopedScratch has meanwhile. Buffers are kept for later calls, whose pages
// are mapped then: as many as were in use at once, up to kMostKept, each as
// large as the largest that it served. Without a lock, which another thread
// might hold while this one forks: the child would wait for it for ever.
class ScopedScratch {
 public:
  explicit ScopedScratch(size_t bytes) {
    if (bytes == 0) return;
    for (std::atomic<Buffer*>& kept : kept_) {
      if (kept.load(std::memory_order_relaxed) == nullptr) continue;
      buffer_ = kept.exchange(nullptr, std::memory_order_acquire);
      if (buffer_ != nullptr) break;
    }
    if (buffer_ != nullptr && buffer_->bytes >= bytes) return;
    std::free(buffer_);
    bytes = (bytes / kCacheLineBytes + 1) * kCacheLineBytes;
    buffer_ = static_cast<Buffer*>(
        std::aligned_alloc(kCacheLineBytes, sizeof(Buffer) + bytes));
    if (buffer_ != nullptr) buffer_->bytes = bytes;
  }
  ~ScopedScratch() {
    if (buffer_ == nullptr) return;
    for (std::atomic<Buffer*>& kept : kept_) {
      Buffer* none = nullptr;
      if (kept.load(std::memory_order_relaxed) == nullptr &&
          kept.compare_exchange_strong(none, buffer_, std::memory_order_release,
                                       std::memory_order_relaxed)) {
        return;
      }
    }
    std::free(buffer_);
  }
  ScopedScratch(const ScopedScratch&) = delete;
  ScopedScratch& operator=(const ScopedScratch&) = delete;

  // nullptr: zero bytes, or the system has no memory.
  void* data() const { return buffer_ == nullptr ? nullptr : buffer_ + 1; }

 private:
  // What stands before the data, a cache line.
  struct alignas(kCacheLineBytes) Buffer {
    size_t bytes;
  };
  static constexpr int kMostKept = 256;
  static inline std::atomic<Buffer*> kept_[kMostKept] = {};

  Buffer* buffer_ = nullptr;
};

}  // namespace tf_bn_ops
