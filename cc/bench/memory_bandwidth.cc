// Memory bandwidth: the reads and writes of batch normalization and of its
// gradient without their arithmetic, the limit that `make bench` compares
// kernels with. A library of its own, which the wheel does not contain.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Granularity of the split over threads, in bytes: a page.
constexpr int64_t kPieceBytes = 4096;

// A thread pool, started on first use and never joined: its threads block on a
// condition variable between calls.
class Team {
 public:
  static Team& Get() {
    static Team* const team = new Team;
    return *team;
  }

  // Calls work(t) for t in [0, threads), one thread each; the caller runs t =
  // 0.
  void Run(int threads, const std::function<void(int)>& work) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (static_cast<int>(members_.size()) < threads - 1) {
        const int id = static_cast<int>(members_.size()) + 1;
        members_.emplace_back([this, id, seen = call_] { Work(id, seen); });
      }
      work_ = &work;
      threads_ = threads;
      running_ = static_cast<int>(members_.size());
      ++call_;
    }
    start_.notify_all();
    work(0);
    std::unique_lock<std::mutex> lock(mutex_);
    end_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void Work(int id, int64_t seen) {
    for (;;) {
      const std::function<void(int)>* work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        start_.wait(lock, [&] { return call_ != seen; });
        seen = call_;
        work = id < threads_ ? work_ : nullptr;
      }
      if (work != nullptr) (*work)(id);
      std::lock_guard<std::mutex> lock(mutex_);
      if (--running_ == 0) end_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable start_, end_;
  std::vector<std::thread> members_;
  const std::function<void(int)>* work_ = nullptr;
  int threads_ = 0;
  int running_ = 0;
  int64_t call_ = 0;
};

// Scalar loops: the tail of a piece, and processors that are not x86-64.
void MixPlain(const uint8_t* a, const uint8_t* b, uint8_t* c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i] ^ b[i];
}
void CopyPlain(const uint8_t* a, uint8_t* c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i];
}
uint64_t SumPlain(const uint8_t* a, const uint8_t* b, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] ^ b[i];
  return sum;
}

#if defined(__x86_64__)

// Three functions per vector width. Mix is 2 reads + 1 write, Copy 1 read + 1
// write, with non-temporal stores if `non_temporal`; c is aligned to the width.
// Sum is 2 reads, with four accumulators to hide the latency of the additions.
// `n` is a multiple of 256.
#define BANDWIDTH(NAME, TARGET, V, WIDTH, LOAD, STORE, NON_TEMPORAL, XOR, ADD, \
                  ZERO)                                                        \
  __attribute__((target(TARGET))) void Mix_##NAME(                             \
      const uint8_t* a, const uint8_t* b, uint8_t* c, int64_t n,               \
      bool non_temporal) {                                                     \
    if (non_temporal) {                                                        \
      for (int64_t i = 0; i < n; i += WIDTH)                                   \
        NON_TEMPORAL((V*)(c + i),                                              \
                     XOR(LOAD((const V*)(a + i)), LOAD((const V*)(b + i))));   \
      _mm_sfence();                                                            \
    } else {                                                                   \
      for (int64_t i = 0; i < n; i += WIDTH)                                   \
        STORE((V*)(c + i),                                                     \
              XOR(LOAD((const V*)(a + i)), LOAD((const V*)(b + i))));          \
    }                                                                          \
  }                                                                            \
  __attribute__((target(TARGET))) void Copy_##NAME(                            \
      const uint8_t* a, uint8_t* c, int64_t n, bool non_temporal) {            \
    if (non_temporal) {                                                        \
      for (int64_t i = 0; i < n; i += WIDTH)                                   \
        NON_TEMPORAL((V*)(c + i), LOAD((const V*)(a + i)));                    \
      _mm_sfence();                                                            \
    } else {                                                                   \
      for (int64_t i = 0; i < n; i += WIDTH)                                   \
        STORE((V*)(c + i), LOAD((const V*)(a + i)));                           \
    }                                                                          \
  }                                                                            \
  __attribute__((target(TARGET))) uint64_t Sum_##NAME(                         \
      const uint8_t* a, const uint8_t* b, int64_t n) {                         \
    V s[4] = {ZERO(), ZERO(), ZERO(), ZERO()};                                 \
    for (int64_t i = 0; i < n; i += 4 * WIDTH)                                 \
      for (int k = 0; k < 4; ++k)                                              \
        s[k] = ADD(s[k], XOR(LOAD((const V*)(a + i + k * WIDTH)),              \
                             LOAD((const V*)(b + i + k * WIDTH))));            \
    const V total = ADD(ADD(s[0], s[1]), ADD(s[2], s[3]));                     \
    return static_cast<uint64_t>(total[0]);                                    \
  }

BANDWIDTH(Sse2, "sse2", __m128i, 16, _mm_loadu_si128, _mm_storeu_si128,
          _mm_stream_si128, _mm_xor_si128, _mm_add_epi64, _mm_setzero_si128)
BANDWIDTH(Avx2, "avx2", __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256,
          _mm256_stream_si256, _mm256_xor_si256, _mm256_add_epi64,
          _mm256_setzero_si256)
BANDWIDTH(Avx512, "avx512f", __m512i, 64, _mm512_loadu_si512,
          _mm512_storeu_si512, _mm512_stream_si512, _mm512_xor_si512,
          _mm512_add_epi64, _mm512_setzero_si512)
#undef BANDWIDTH

// The bytes of a range that vectors take: c has to be aligned.
int64_t Vectorized(const uint8_t* c, int64_t n) {
  return reinterpret_cast<uintptr_t>(c) % 64 == 0 ? n / 256 * 256 : 0;
}

void Mix(const uint8_t* a, const uint8_t* b, uint8_t* c, int64_t n,
         bool non_temporal) {
  const int64_t whole = Vectorized(c, n);
  if (__builtin_cpu_supports("avx512f")) {
    Mix_Avx512(a, b, c, whole, non_temporal);
  } else if (__builtin_cpu_supports("avx2")) {
    Mix_Avx2(a, b, c, whole, non_temporal);
  } else {
    Mix_Sse2(a, b, c, whole, non_temporal);
  }
  MixPlain(a + whole, b + whole, c + whole, n - whole);
}

void Copy(const uint8_t* a, uint8_t* c, int64_t n, bool non_temporal) {
  const int64_t whole = Vectorized(c, n);
  if (__builtin_cpu_supports("avx512f")) {
    Copy_Avx512(a, c, whole, non_temporal);
  } else if (__builtin_cpu_supports("avx2")) {
    Copy_Avx2(a, c, whole, non_temporal);
  } else {
    Copy_Sse2(a, c, whole, non_temporal);
  }
  CopyPlain(a + whole, c + whole, n - whole);
}

uint64_t Sum(const uint8_t* a, const uint8_t* b, int64_t n) {
  const int64_t whole = n / 256 * 256;
  const uint64_t sum = __builtin_cpu_supports("avx512f")
                           ? Sum_Avx512(a, b, whole)
                       : __builtin_cpu_supports("avx2") ? Sum_Avx2(a, b, whole)
                                                        : Sum_Sse2(a, b, whole);
  return sum + SumPlain(a + whole, b + whole, n - whole);
}

#else

void Mix(const uint8_t* a, const uint8_t* b, uint8_t* c, int64_t n, bool) {
  MixPlain(a, b, c, n);
}
void Copy(const uint8_t* a, uint8_t* c, int64_t n, bool) { CopyPlain(a, c, n); }
uint64_t Sum(const uint8_t* a, const uint8_t* b, int64_t n) {
  return SumPlain(a, b, n);
}

#endif

// Calls work(begin, end) on one contiguous range of bytes per thread.
void Split(int64_t bytes, int threads,
           const std::function<void(int64_t, int64_t)>& work) {
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto part = [&](int t) {
    work(std::min(bytes, pieces * t / threads * kPieceBytes),
         std::min(bytes, pieces * (t + 1) / threads * kPieceBytes));
  };
  if (threads == 1) return part(0);
  Team::Get().Run(threads, part);
}

}  // namespace

extern "C" {

// c = a ^ b: 2 reads + 1 write; with non-temporal stores if `non_temporal` and
// the processor has them. c is aligned to 64 bytes.
__attribute__((visibility("default"))) void tfbn_bandwidth_mix(
    const void* a, const void* b, void* c, int64_t bytes, int non_temporal,
    int threads) {
  Split(bytes, threads, [&](int64_t begin, int64_t end) {
    Mix(static_cast<const uint8_t*>(a) + begin,
        static_cast<const uint8_t*>(b) + begin,
        static_cast<uint8_t*>(c) + begin, end - begin, non_temporal != 0);
  });
}

// c = a: 1 read + 1 write, as above.
__attribute__((visibility("default"))) void tfbn_bandwidth_copy(
    const void* a, void* c, int64_t bytes, int non_temporal, int threads) {
  Split(bytes, threads, [&](int64_t begin, int64_t end) {
    Copy(static_cast<const uint8_t*>(a) + begin,
         static_cast<uint8_t*>(c) + begin, end - begin, non_temporal != 0);
  });
}

// 2 reads; the sum is returned so that the compiler cannot drop the loads.
__attribute__((visibility("default"))) uint64_t
tfbn_bandwidth_sum(const void* a, const void* b, int64_t bytes, int threads) {
  std::atomic<uint64_t> total(0);
  Split(bytes, threads, [&](int64_t begin, int64_t end) {
    total += Sum(static_cast<const uint8_t*>(a) + begin,
                 static_cast<const uint8_t*>(b) + begin, end - begin);
  });
  return total;
}
}
