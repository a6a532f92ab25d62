// exp of every float, or of each STEP-th, from 0 down to where the result is
// subnormal, and of doubles: prints the largest error in units in the last
// place, float and double, and how many lanes of a vector differ from scalars.

#include "cc/core/formulas/exponential.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace {

typedef float Floats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(32)));

template <typename V, typename C>
long LanesThatDiffer(C x) {
  const V result = tf_bn_ops::ExpOfMinusAbs(V{} + x);
  const C want = tf_bn_ops::ExpOfMinusAbs(x);
  long count = 0;
  for (unsigned i = 0; i < sizeof(V) / sizeof(C); ++i) {
    const C lane = result[i];
    count += std::memcmp(&lane, &want, sizeof(C)) != 0;
  }
  return count;
}

template <typename Bits, typename C, typename Wide>
double Error(C x, C least) {
  const Wide want = std::exp(static_cast<Wide>(x));
  if (want < 1.001 * least) return 0;  // Subnormal, or 0 in its place.
  // The power of two below it: frexp and ldexp took a fifth of the time.
  C power = static_cast<C>(want);
  Bits bits;
  std::memcpy(&bits, &power, sizeof(bits));
  bits &= ~Bits{0} << (std::numeric_limits<C>::digits - 1);
  std::memcpy(&power, &bits, sizeof(bits));
  const Wide ulp = power * Wide{std::numeric_limits<C>::epsilon()};
  return static_cast<double>(std::fabs(tf_bn_ops::ExpOfMinusAbs(x) - want) /
                             ulp);
}

}  // namespace

int main(int, char** argv) {
  const uint32_t step = static_cast<uint32_t>(std::atoi(argv[1]));
  double of_float = 0, of_double = 0;
  long differ = 0;
  const float last = -90;
  uint32_t end;
  std::memcpy(&end, &last, sizeof(end));
  for (uint32_t bits = 0x80000000u; bits < end; bits += step) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    of_float =
        std::max(of_float, Error<uint32_t, float, double>(x, 1.17549435e-38f));
    if (bits % 997 == 0) differ += LanesThatDiffer<Floats>(x);
  }
  for (double x = 0; x > -708; x -= 0.000317 * (1 + step / 1000)) {
    of_double = std::max(of_double, Error<uint64_t, double, long double>(
                                        x, 2.2250738585072014e-308));
    differ += LanesThatDiffer<Doubles>(x);
  }
  const float nan = tf_bn_ops::ExpOfMinusAbs(std::nanf(""));
  const float nothing = tf_bn_ops::ExpOfMinusAbs(-INFINITY);
  std::printf("%.3f %.3f %ld %d\n", of_float, of_double, differ,
              nan == 0 && nothing == 0);
  return 0;
}
