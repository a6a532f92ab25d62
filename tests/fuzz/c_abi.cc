// Fuzz target: calls of the C ABI, and the CPU backend behind it.
//
// Promised: no crash and no access outside the arrays for any numbers in them,
// and any arguments that are refused; one sentence, cut to the buffer, for
// those that are; a workspace and a plan within their limits. Of what is
// accepted every output that is given is written, whatever else is given, and
// the results are bitwise identical with one thread, in place, and with the
// mask of an activation from x and from y; statistics that are gathered from
// one part are those of the part.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cc/c_api/read_call.h"
#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/call.h"
#include "tests/fuzz/call_arrays.h"

namespace {

// A test wants the opposite, which has to be noticed.
const bool kOpposite = std::getenv("TFBN_FUZZ_OPPOSITE") != nullptr;
// Ends the process where a check fails; the fuzzer keeps the input.
#define TFBN_FUZZ_CHECK(condition) \
  if (static_cast<bool>(condition) == kOpposite) __builtin_trap()

using tf_bn_ops::Activation;
using tf_bn_ops::Call;
using tf_bn_ops::DType;
using tf_bn_ops::FormulaKind;
using tf_bn_ops::Role;
using tf_bn_ops::fuzz::Arrays;
using tf_bn_ops::fuzz::Bits;
using tf_bn_ops::fuzz::IsOutput;
using tf_bn_ops::fuzz::kParts;
using tf_bn_ops::fuzz::Part;

// Accepted calls are run up to this many elements, to keep runs short.
constexpr int64_t kMaxElements = 1 << 14;
constexpr size_t kMaxErrorSize = 64;
constexpr Role kTensors[] = {Role::kX,
                             Role::kSideInput,
                             Role::kYBackprop,
                             Role::kXBackpropGrad,
                             Role::kY,
                             Role::kXBackprop,
                             Role::kYBackpropGrad,
                             Role::kXGrad,
                             Role::kSideInputBackprop};

// Values from the bytes that a fuzzer generates. Past the end, every value is
// 0.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : next_(data), left_(size) {}

  template <typename T>
  T Take() {
    T value{};
    const size_t bytes = left_ < sizeof(T) ? left_ : sizeof(T);
    if (bytes > 0) std::memcpy(&value, next_, bytes);
    next_ += bytes;
    left_ -= bytes;
    return value;
  }

  std::string Rest() {
    std::string rest(reinterpret_cast<const char*>(next_), left_);
    left_ = 0;
    return rest;
  }

 private:
  const uint8_t* next_;
  size_t left_;
};

// What the first byte of an input chooses.
enum Choice {
  kAnySizes = 1,
  kAnyTypes = 2,
  kOtherArrays = 4,
  kThreads = 8,
  kNamed = 16,
  kAnyAttrs = 32,
  kInPlaceOver = 64
};

struct How {
  uint8_t choices;
  int threads;
  std::string name;  // Of an implementation, or empty.
  size_t error_size;
};

// The status of run(error): one sentence within the buffer where it fails, and
// nothing behind it.
template <typename Run>
int Checked(size_t error_size, const Run& run) {
  char error[kMaxErrorSize];
  std::memset(error, 'x', sizeof(error));
  const int status = run(error);
  TFBN_FUZZ_CHECK(status == 0 || status == 1);
  TFBN_FUZZ_CHECK(status == 0 || error_size == 0 ||
                  std::memchr(error, 0, error_size));
  for (size_t i = error_size; i < sizeof(error); ++i) {
    TFBN_FUZZ_CHECK(error[i] == 'x');
  }
  return status;
}

int Run(const Call& call, const How& how, int threads) {
  const char* const name = how.name.empty() ? nullptr : how.name.c_str();
  return Checked(how.error_size, [&](char* error) {
    return tfbn_cpu_run(&call, name, threads, error, how.error_size);
  });
}

// Any sizes, types and attrs, or those that can be run.
Call TakeCall(uint8_t choices, const Part& part, Input* input) {
  Call call;
  call.formula = part.formula;
  for (int64_t* size :
       {&call.view.outer, &call.view.channels, &call.view.inner}) {
    *size = choices & kAnySizes ? input->Take<int64_t>()
                                : input->Take<uint16_t>() % 513;
  }
  for (DType* dtype : {&call.dtype, &call.stat_dtype}) {
    *dtype = static_cast<DType>(
        choices & kAnyTypes ? input->Take<int32_t>()
                            : input->Take<uint8_t>() % tf_bn_ops::kNumDTypes);
  }
  const uint8_t flags = input->Take<uint8_t>();
  call.is_training = part.trains && (!part.freezes || (flags & 1));
  call.float64_statistics = part.float64_statistics;
  call.variance_is_rstd = flags >> 1 & 1;
  call.saves_rstd = flags >> 2 & 1;
  call.bessel_correction = flags >> 3 & 1;
  call.activation =
      static_cast<Activation>((flags >> 4) % tf_bn_ops::kNumActivations);
  call.epsilon = input->Take<double>();
  if (choices & kAnyAttrs) {
    call.exponential_avg_factor = input->Take<double>();
    call.activation = static_cast<Activation>(input->Take<int32_t>());
    call.is_training = input->Take<uint8_t>();
    call.float64_statistics = input->Take<uint8_t>() & 1;
    call.formula = static_cast<FormulaKind>(input->Take<int32_t>());
  }
  return call;
}

// The plan of any view that is accepted, within the documented buffer.
void CheckPlan(const Call& call, const How& how, bool is_view) {
  const tfbn_explain_args request{
      call.view.outer,  call.view.channels,
      call.view.inner,  static_cast<int32_t>(call.dtype),
      call.is_training, how.choices & kInPlaceOver,
      how.threads,      static_cast<int32_t>(call.activation),
      call.view.outer,  call.view.inner};
  char json[8192];
  char sentence[256];
  const bool has_plan =
      tfbn_explain(call.saves_rstd ? "batch_norm_grad" : "batch_norm_grad_grad",
                   &request, nullptr, json, sizeof(json), sentence,
                   sizeof(sentence)) == 0;
  TFBN_FUZZ_CHECK(std::memchr(has_plan ? json : sentence, 0,
                              has_plan ? sizeof(json) : sizeof(sentence)));
  if (!has_plan) return;
  TFBN_FUZZ_CHECK(is_view);
  // The bound of driver.h.
  constexpr char kField[] = "\"workspace_bytes\", \"value\": \"";
  const char* const field = std::strstr(json, kField);
  TFBN_FUZZ_CHECK(field != nullptr);
  const int64_t bytes = std::atoll(field + sizeof(kField) - 1);
  TFBN_FUZZ_CHECK(bytes >= 0 && bytes / 160 <= call.view.channels + (1 << 15));
}

bool IsMasked(const Call& call) {
  return call.formula == FormulaKind::kGradient &&
         call.activation != Activation::kIdentity &&
         !tf_bn_ops::IsSmooth(call.activation) && call.y != nullptr;
}

// The y of the forward call that a masked gradient belongs to, its coefficients
// and, in training, its statistics; whether there is such a call.
bool FillForward(const Call& gradient, Arrays* arrays) {
  Call forward = gradient;
  forward.formula = FormulaKind::kForward;
  const bool is_whole = !gradient.float64_statistics;
  if (!is_whole) forward.is_training = 0;
  for (int i = 0; i < tf_bn_ops::kNumRoles; ++i) {
    const auto role = static_cast<Role>(i);
    if (IsOutput(gradient, role)) ArrayOf(forward, role) = nullptr;
  }
  forward.sum_dy = forward.sum_dy_xmu = forward.count = nullptr;
  std::vector<uint8_t> saved[2] = {arrays->Bytes(Role::kScale),
                                   arrays->Bytes(Role::kScale)};
  std::vector<uint8_t> batch[2] = {saved[0], saved[1]};
  if (is_whole) {
    forward.variance_is_rstd = forward.saves_rstd = 0;
    forward.exponential_avg_factor = 1;
    forward.saved_mean = saved[0].data();
    forward.saved_variance = saved[1].data();
    forward.batch_mean = batch[0].data();
    forward.batch_variance = batch[1].data();
  }
  char error[256];
  if (tfbn_cpu_run(&forward, nullptr, 2, error, sizeof(error)) != 0) {
    return false;
  }
  if (is_whole) {
    std::copy(saved[0].begin(), saved[0].end(),
              arrays->Bytes(Role::kMean).begin());
    std::copy(saved[1].begin(), saved[1].end(),
              arrays->Bytes(Role::kVariance).begin());
  }
  return true;
}

// The view outputs over inputs of view shape, from the chosen one on.
Call InPlace(Call call, int first) {
  std::vector<Role> inputs, outputs;
  for (const Role role : kTensors) {
    if (ArrayOf(call, role) != nullptr) {
      (IsOutput(call, role) ? outputs : inputs).push_back(role);
    }
  }
  // side_input_backprop without an activation is y_backprop, which may be
  // overwritten first.
  const bool copies = call.activation == Activation::kIdentity &&
                      call.side_input_backprop != nullptr;
  void* over[2] = {};
  for (size_t i = 0; i < outputs.size() && i < inputs.size() && i < 2; ++i) {
    over[i] = ArrayOf(call, inputs[(first + i) % inputs.size()]);
  }
  for (size_t i = 0; i < outputs.size() && i < 2; ++i) {
    const bool stays = copies && outputs[i] == Role::kSideInputBackprop;
    if (over[i] != nullptr && !stays) ArrayOf(call, outputs[i]) = over[i];
  }
  return call;
}

// Statistics that are gathered from one part, and from parts of any counts.
void CheckGathered(const Call& stats, const How& how, Input* input) {
  const int64_t channels = stats.view.channels;
  std::vector<double> mean(1 + channels), m2(1 + channels);
  double count = -1;
  const auto run = [&](int64_t parts, const double* counts, const double* means,
                       const double* m2s) {
    const tfbn_gather_stats args = {parts, channels, counts,      means,
                                    m2s,   &count,   mean.data(), m2.data()};
    return Checked(how.error_size, [&](char* error) {
      return tfbn_cpu_gather_stats(&args, error, how.error_size);
    });
  };
  const auto* const of_mean = static_cast<const double*>(stats.local_mean);
  const auto* const of_m2 = static_cast<const double*>(stats.local_m2);
  const auto* const counted = static_cast<const double*>(stats.local_count);
  TFBN_FUZZ_CHECK(run(1, counted, of_mean, of_m2) == 0 && count == *counted);
  const auto same = [](double a, double b) {
    return a == b || (a != a && b != b);
  };
  for (int64_t c = 0; c < channels; ++c) {
    TFBN_FUZZ_CHECK(same(mean[c], of_mean[c]) && same(m2[c], of_m2[c]));
  }
  const int64_t parts = input->Take<uint8_t>() % 5;
  std::vector<double> counts(1 + parts), means(1 + parts * channels);
  for (auto* array : {&counts, &means}) {
    for (double& value : *array) value = input->Take<double>();
  }
  run(parts, counts.data(), means.data(), means.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  How how{};
  how.choices = input.Take<uint8_t>();
  const Part& part =
      kParts[input.Take<uint8_t>() % (sizeof(kParts) / sizeof(kParts[0]))];
  Call call = TakeCall(how.choices, part, &input);
  const uint32_t options = input.Take<uint32_t>();
  uint32_t roles = part.roles | (part.options & options);
  if (how.choices & kOtherArrays) roles ^= input.Take<uint32_t>();
  roles &= (uint64_t{1} << tf_bn_ops::kNumRoles) - 1;
  how.threads = how.choices & kThreads ? input.Take<int8_t>() : 2;
  how.error_size = input.Take<uint8_t>() % (kMaxErrorSize + 1);
  for (int left = how.choices & kNamed ? input.Take<uint8_t>() % 16 : 0;
       left > 0; --left) {
    how.name += input.Take<char>();
  }
  const int first = input.Take<uint8_t>();

  const bool is_view = tf_bn_ops::c_api::CheckView(call.view).empty();
  CheckPlan(call, how, is_view);
  if (!is_view || !tf_bn_ops::c_api::CheckDType(call.dtype, "").empty() ||
      !tf_bn_ops::c_api::CheckDType(call.stat_dtype, "").empty() ||
      call.view.channels > kMaxElements || how.threads > 8 ||
      tf_bn_ops::NumElements(call.view) > kMaxElements) {
    double element = 0;
    for (int i = 0; i < tf_bn_ops::kNumRoles; ++i) {
      if (roles >> i & 1) ArrayOf(call, static_cast<Role>(i)) = &element;
    }
    tf_bn_ops::c_api::CheckCall(&call);
    return 0;
  }
  Input of_parts = input;
  const std::string bytes = input.Rest();
  size_t next = 0;
  const auto fill = [&](uint8_t* array, int64_t count, DType dtype) {
    for (size_t i = 0; i < 1 + count * SizeOf(dtype); ++i) {
      array[i] = bytes.empty() ? 0x3f : bytes[next++ % bytes.size()];
    }
  };
  Arrays arrays(call, roles, fill);
  const Call given = arrays.Of(call);
  // No forward is given rstd in place of the variance.
  const bool has_forward = IsMasked(given) && how.name.empty() &&
                           !given.variance_is_rstd &&
                           FillForward(given, &arrays);
  const Arrays original = arrays;
  if (Run(given, how, how.threads) != 0) return 0;
  const int activation = static_cast<int>(call.activation);
  const int formula = static_cast<int>(call.formula);
  TFBN_FUZZ_CHECK(0 <= activation && activation < tf_bn_ops::kNumActivations);
  TFBN_FUZZ_CHECK(0 <= formula && formula < tf_bn_ops::kNumFormulaKinds);
  TFBN_FUZZ_CHECK(how.threads >= 1);
  TFBN_FUZZ_CHECK(given.x != nullptr || NumElements(call.view) == 0);
  const auto check = [&](const auto& change) {
    Arrays copy = original;
    copy.SpoilOutputs(call);
    const Call changed = change(copy.Of(call));
    TFBN_FUZZ_CHECK(Run(changed, how, 1) == 0);
    TFBN_FUZZ_CHECK(Arrays::AreEqual(given, changed));
  };
  check([](Call c) { return c; });
  if (how.choices & kOtherArrays) return 0;  // Other outputs, maybe, in place.
  check([&](Call c) { return InPlace(c, first); });
  if (has_forward && given.side_input_backprop == nullptr) {
    const bool is_part =
        given.sum_dy != nullptr || given.local_sum_dy != nullptr;
    check([&](Call c) {
      ArrayOf(c, is_part ? Role::kY : Role::kOffset) = nullptr;
      return c;
    });
  }
  if (given.local_mean != nullptr) CheckGathered(given, how, &of_parts);
  return 0;
}
