// Scratch memory of a thread that works through a pipeline.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <vector>

#include "cc/cpu/tuning.h"

namespace tf_bn_ops {

// A buffer of at least `bytes`, aligned to cache lines, that no other
// ScopedScratch has meanwhile. Buffers are kept for later calls, whose pages
// are mapped then: as many as were in use at once, each as large as the largest
// that it served.
class ScopedScratch {
 public:
  explicit ScopedScratch(size_t bytes) {
    if (bytes == 0) return;
    {
      std::lock_guard<std::mutex> lock(Pool().mutex);
      if (!Pool().free.empty()) {
        buffer_ = Pool().free.back();
        Pool().free.pop_back();
      }
    }
    if (buffer_.bytes >= bytes) return;
    std::free(buffer_.data);
    buffer_.bytes = (bytes / kCacheLineBytes + 1) * kCacheLineBytes;
    buffer_.data = std::aligned_alloc(kCacheLineBytes, buffer_.bytes);
  }
  ~ScopedScratch() {
    if (buffer_.data == nullptr) return;
    try {
      std::lock_guard<std::mutex> lock(Pool().mutex);
      Pool().free.push_back(buffer_);
    } catch (const std::exception&) {
      std::free(buffer_.data);
    }
  }
  ScopedScratch(const ScopedScratch&) = delete;
  ScopedScratch& operator=(const ScopedScratch&) = delete;

  // nullptr: zero bytes, or the system has no memory.
  void* data() const { return buffer_.data; }

 private:
  struct Buffer {
    void* data = nullptr;
    size_t bytes = 0;
  };
  struct FreeBuffers {
    std::mutex mutex;
    std::vector<Buffer> free;
  };
  static FreeBuffers& Pool() {
    // Never destroyed: threads may outlive static objects.
    static auto* const pool = new FreeBuffers;
    return *pool;
  }

  Buffer buffer_;
};

}  // namespace tf_bn_ops
