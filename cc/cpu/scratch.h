// Scratch memory of a thread that works through a pipeline.

#ifndef TF_BN_OPS_CC_CPU_SCRATCH_H_
#define TF_BN_OPS_CC_CPU_SCRATCH_H_

#include <cstddef>

namespace tf_bn_ops {

// A buffer of at least `bytes`, aligned to cache lines, that no other
// ScopedScratch has meanwhile. Buffers are kept for later calls, whose pages
// are mapped then: as many as were in use at once, each as large as the largest
// that it served.
class ScopedScratch {
 public:
  explicit ScopedScratch(size_t bytes);
  ~ScopedScratch();
  ScopedScratch(const ScopedScratch&) = delete;
  ScopedScratch& operator=(const ScopedScratch&) = delete;

  // nullptr: zero bytes, or the system has no memory.
  void* data() const { return buffer_.data; }

 private:
  friend class ScratchPool;
  struct Buffer {
    void* data = nullptr;
    size_t bytes = 0;
  };
  Buffer buffer_;
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_SCRATCH_H_
