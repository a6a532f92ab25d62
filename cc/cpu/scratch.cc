// A list of free buffers.

#include "cc/cpu/scratch.h"

#include <cstdlib>
#include <exception>
#include <mutex>
#include <vector>

namespace tf_bn_ops {

class ScratchPool {
 public:
  using Buffer = ScopedScratch::Buffer;

  static ScratchPool& Instance() {
    // Never destroyed: threads may outlive static objects.
    static ScratchPool* const pool = new ScratchPool;
    return *pool;
  }

  Buffer Take(size_t bytes) {
    Buffer buffer;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        buffer = free_.back();
        free_.pop_back();
      }
    }
    if (buffer.bytes >= bytes) return buffer;
    std::free(buffer.data);
    const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* const data = std::aligned_alloc(kAlignment, whole);
    return {data, data == nullptr ? 0 : whole};
  }

  void Return(const Buffer& buffer) try {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(buffer);
  } catch (const std::exception&) {
    std::free(buffer.data);
  }

 private:
  static constexpr size_t kAlignment = 64;

  std::mutex mutex_;
  std::vector<Buffer> free_;
};

ScopedScratch::ScopedScratch(size_t bytes) {
  if (bytes > 0) buffer_ = ScratchPool::Instance().Take(bytes);
}

ScopedScratch::~ScopedScratch() {
  if (buffer_.data != nullptr) ScratchPool::Instance().Return(buffer_);
}

}  // namespace tf_bn_ops
