// Memory bandwidth: the reads and writes of batch normalization without their
// arithmetic, the limit that `make bench` compares kernels with. The benchmark
// compiles it for the machine that it runs on (-O3 -march=native -fopenmp).

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
using Vector = __m512i;
void Stream(void* to, Vector v) { _mm512_stream_si512((Vector*)to, v); }
#elif defined(__AVX__)
using Vector = __m256i;
void Stream(void* to, Vector v) { _mm256_stream_si256((Vector*)to, v); }
#elif defined(__x86_64__)
using Vector = __m128i;
void Stream(void* to, Vector v) { _mm_stream_si128((Vector*)to, v); }
#endif

// Calls work(begin, end) on one contiguous range of pages per thread.
template <typename Work>
void Split(int64_t bytes, int threads, const Work& work) {
  const int64_t pages = (bytes + 4095) / 4096;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) {
    work(std::min(bytes, pages * t / threads * 4096),
         std::min(bytes, pages * (t + 1) / threads * 4096));
  }
}

// c = a ^ b, or c = b. c is aligned to 64 bytes.
template <bool kTwo>
void Write(const uint8_t* a, const uint8_t* b, uint8_t* c, int64_t bytes,
           bool non_temporal, int threads) {
  Split(bytes, threads, [&](int64_t i, int64_t end) {
#if defined(__x86_64__)
    for (; non_temporal && i + 64 <= end; i += sizeof(Vector)) {
      Vector v, w = {};
      std::memcpy(&v, b + i, sizeof(v));
      if (kTwo) std::memcpy(&w, a + i, sizeof(w));
      Stream(c + i, v ^ w);
    }
    if (non_temporal) _mm_sfence();
#endif
    const uint8_t* __restrict__ p = a + i;
    const uint8_t* __restrict__ q = b + i;
    uint8_t* __restrict__ r = c + i;
    const int64_t n = end - i;
    for (int64_t k = 0; k < n; ++k) r[k] = kTwo ? p[k] ^ q[k] : q[k];
  });
}

// The sum of a ^ b.
uint64_t Read(const uint64_t* a, const uint64_t* b, int64_t bytes,
              int threads) {
  uint64_t total = 0;
  Split(bytes, threads, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin / 8; i < end / 8; ++i) sum += a[i] ^ b[i];
#pragma omp atomic
    total += sum;
  });
  return total;
}

}  // namespace

// A pass that reads a and b, or b alone, and writes c or nothing. The sum is
// returned so that the compiler cannot drop the loads.
extern "C" uint64_t tfbn_bandwidth_pass(const uint8_t* a, const uint8_t* b,
                                        uint8_t* c, int64_t bytes, int reads,
                                        int writes, int threads,
                                        int non_temporal) {
  if (writes > 0) {
    (reads == 2 ? Write<true> : Write<false>)(a, b, c, bytes, non_temporal != 0,
                                              threads);
    return 0;
  }
  if (reads == 1) {  // As two halves.
    bytes /= 2;
    a = b + bytes;
  }
  return Read(reinterpret_cast<const uint64_t*>(a),
              reinterpret_cast<const uint64_t*>(b), bytes, threads);
}
