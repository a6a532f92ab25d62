// How fast memory is, for the benchmark alone: the traffic of a batch-norm
// gradient without its arithmetic. Built by `make bench` into a library of its
// own; the shipped ones know nothing of it.

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

// Pieces start at a multiple of this many bytes.
constexpr int64_t kPiece = 4096;

// Threads that wait between calls; started on first use and never ended.
class Team {
 public:
  static Team& Get() {
    static Team* const team = new Team;
    return *team;
  }

  // Calls work(t) for t in [0, threads), each in a thread of its own, 0 here.
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

// Plain loops, also for the rest of a piece.
void MixPlain(const uint8_t* a, const uint8_t* b, uint8_t* c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i] ^ b[i];
}
uint64_t SumPlain(const uint8_t* a, const uint8_t* b, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] ^ b[i];
  return sum;
}

#if defined(__x86_64__)

// One pair of functions per vector width. Mix is 2 reads + 1 write, past the
// cache if `around`; c is aligned to the width. Sum is 2 reads, with four sums
// to keep the loads apart. `n` is a multiple of 256.
#define STREAM(NAME, TARGET, V, WIDTH, LOAD, STORE, AROUND, XOR, ADD, ZERO) \
  __attribute__((target(TARGET))) void Mix_##NAME(                          \
      const uint8_t* a, const uint8_t* b, uint8_t* c, int64_t n,            \
      bool around) {                                                        \
    if (around) {                                                           \
      for (int64_t i = 0; i < n; i += WIDTH)                                \
        AROUND((V*)(c + i),                                                 \
               XOR(LOAD((const V*)(a + i)), LOAD((const V*)(b + i))));      \
      _mm_sfence();                                                         \
    } else {                                                                \
      for (int64_t i = 0; i < n; i += WIDTH)                                \
        STORE((V*)(c + i),                                                  \
              XOR(LOAD((const V*)(a + i)), LOAD((const V*)(b + i))));       \
    }                                                                       \
  }                                                                         \
  __attribute__((target(TARGET))) uint64_t Sum_##NAME(                      \
      const uint8_t* a, const uint8_t* b, int64_t n) {                      \
    V s[4] = {ZERO(), ZERO(), ZERO(), ZERO()};                              \
    for (int64_t i = 0; i < n; i += 4 * WIDTH)                              \
      for (int k = 0; k < 4; ++k)                                           \
        s[k] = ADD(s[k], XOR(LOAD((const V*)(a + i + k * WIDTH)),           \
                             LOAD((const V*)(b + i + k * WIDTH))));         \
    const V total = ADD(ADD(s[0], s[1]), ADD(s[2], s[3]));                  \
    return static_cast<uint64_t>(total[0]);                                 \
  }

STREAM(Sse2, "sse2", __m128i, 16, _mm_loadu_si128, _mm_storeu_si128,
       _mm_stream_si128, _mm_xor_si128, _mm_add_epi64, _mm_setzero_si128)
STREAM(Avx2, "avx2", __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256,
       _mm256_stream_si256, _mm256_xor_si256, _mm256_add_epi64,
       _mm256_setzero_si256)
STREAM(Avx512, "avx512f", __m512i, 64, _mm512_loadu_si512, _mm512_storeu_si512,
       _mm512_stream_si512, _mm512_xor_si512, _mm512_add_epi64,
       _mm512_setzero_si512)
#undef STREAM

void Mix(const uint8_t* a, const uint8_t* b, uint8_t* c, int64_t n,
         bool around) {
  const int64_t whole =
      reinterpret_cast<uintptr_t>(c) % 64 == 0 ? n / 256 * 256 : 0;
  if (__builtin_cpu_supports("avx512f")) {
    Mix_Avx512(a, b, c, whole, around);
  } else if (__builtin_cpu_supports("avx2")) {
    Mix_Avx2(a, b, c, whole, around);
  } else {
    Mix_Sse2(a, b, c, whole, around);
  }
  MixPlain(a + whole, b + whole, c + whole, n - whole);
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
uint64_t Sum(const uint8_t* a, const uint8_t* b, int64_t n) {
  return SumPlain(a, b, n);
}

#endif

// Calls work(begin, end) for one contiguous part per thread.
void Split(int64_t bytes, int threads,
           const std::function<void(int64_t, int64_t)>& work) {
  const int64_t pieces = (bytes + kPiece - 1) / kPiece;
  const auto part = [&](int t) {
    work(std::min(bytes, pieces * t / threads * kPiece),
         std::min(bytes, pieces * (t + 1) / threads * kPiece));
  };
  if (threads == 1) return part(0);
  Team::Get().Run(threads, part);
}

}  // namespace

extern "C" {

// c = a ^ b: 2 reads + 1 write; past the cache where the processor can, if
// `around`. c starts at a multiple of 64 bytes.
__attribute__((visibility("default"))) void tfbn_stream_mix(
    const void* a, const void* b, void* c, int64_t bytes, int around,
    int threads) {
  Split(bytes, threads, [&](int64_t begin, int64_t end) {
    Mix(static_cast<const uint8_t*>(a) + begin,
        static_cast<const uint8_t*>(b) + begin,
        static_cast<uint8_t*>(c) + begin, end - begin, around != 0);
  });
}

// 2 reads; the result keeps the compiler from leaving them out.
__attribute__((visibility("default"))) uint64_t tfbn_stream_sum(const void* a,
                                                                const void* b,
                                                                int64_t bytes,
                                                                int threads) {
  std::atomic<uint64_t> total(0);
  Split(bytes, threads, [&](int64_t begin, int64_t end) {
    total += Sum(static_cast<const uint8_t*>(a) + begin,
                 static_cast<const uint8_t*>(b) + begin, end - begin);
  });
  return total;
}
}
