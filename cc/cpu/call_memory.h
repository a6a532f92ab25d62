// Memory of calls: the scratch of a thread that works through a pipeline, and
// huge pages for what a call writes.

#ifndef TF_BN_OPS_CC_CPU_CALL_MEMORY_H_
#define TF_BN_OPS_CC_CPU_CALL_MEMORY_H_

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

// Switched on (environment.h): AdviseHugePages does something.
constexpr char kHugePagesVariable[] = "TF_BN_OPS_HUGE_PAGES";

// Advises the system to map the whole huge pages of [data, data + bytes), an
// output that is about to be written, as such (madvise). Memory that malloc has
// just got from the system is mapped at the first store to each page, and with
// pages of 4 KiB that takes 70% of a call of 100 MB (docs/troubleshooting.md).
// Opt-in, since the memory is the caller's, and stays advised.
void AdviseHugePages(void* data, size_t bytes);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_CALL_MEMORY_H_
