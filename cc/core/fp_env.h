// The floating-point state that kernels compute in: round to nearest, subnormal
// inputs and results of float arithmetic flushed to zero.
//
// TensorFlow's worker threads run with this state; the thread that calls an op
// may not. Setting it for every task makes the bits independent of which thread
// a task lands on.

#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tf_bn_ops {

class ScopedFpState {
 public:
  ScopedFpState() : saved_(Get()) { Set(Wanted(saved_)); }
  ~ScopedFpState() { Set(saved_); }
  ScopedFpState(const ScopedFpState&) = delete;
  ScopedFpState& operator=(const ScopedFpState&) = delete;

 private:
#if defined(__SSE2__)
  using State = unsigned int;
  // MXCSR: bit 15 flush-to-zero, bits 13-14 rounding (0 = nearest), bit 6
  // denormals-are-zero.
  static State Get() { return _mm_getcsr(); }
  static void Set(State s) { _mm_setcsr(s); }
  static State Wanted(State s) { return (s & ~0x6000u) | 0x8040u; }
#elif defined(__aarch64__)
  using State = uint64_t;
  // FPCR: bit 24 FZ, flush-to-zero of operands and results; bits 22-23 rounding
  // (0 = nearest). Cleared: bit 26 AHP, halves without infinity and NaN; bit 25
  // DN, one NaN for all; bit 19 FZ16; bits 0 to 2 FIZ, AH and NEP of FEAT_AFP,
  // under which instructions compute otherwise.
  static State Get() {
    State s;
    asm volatile("mrs %0, fpcr" : "=r"(s) : : "memory");
    return s;
  }
  static void Set(State s) {
    asm volatile("msr fpcr, %0" : : "r"(s) : "memory");
  }
  static State Wanted(State s) { return (s & ~State{0x6c80007}) | 0x1000000; }
#else
  using State = int;
  static State Get() { return 0; }
  static void Set(State) {}
  static State Wanted(State s) { return s; }
#endif
  State saved_;
};

}  // namespace tf_bn_ops
