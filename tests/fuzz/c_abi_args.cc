// Fuzz target: views and arguments of the C ABI, and the CPU backend behind it.
//
// Promised: no crash and no access outside the arrays for any arguments that
// are refused or whose arrays are as long as they say; one sentence, cut to the
// buffer, for those that are refused; a partition and a plan within their
// limits.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/c_api/read_call.h"
#include "cc/c_api/tf_bn_ops_c.h"
#include "cc/core/call.h"
#include "tests/fuzz/c_abi_call.h"
#include "tests/fuzz/input.h"

namespace {

using tf_bn_ops::Call;
using tf_bn_ops::FormulaKind;

// Accepted arguments are run up to this many elements, to keep runs short.
constexpr int64_t kMaxElements = 1 << 14;

size_t BytesOf(tf_bn_ops::DType dtype) {
  return dtype == tf_bn_ops::DType::kFloat64   ? 8
         : dtype == tf_bn_ops::DType::kFloat32 ? 4
                                               : 2;
}

// A vector for each array, so that AddressSanitizer sees accesses outside it.
class Arrays {
 public:
  // `nulls` has a bit for each array, in order: its pointer is NULL.
  Arrays(size_t view_bytes, size_t channel_bytes, uint8_t fill, uint32_t nulls)
      : view_bytes_(view_bytes),
        channel_bytes_(channel_bytes),
        fill_(fill),
        nulls_(nulls) {}

  // The next array, of view shape or with an element per channel.
  void* View() { return Next(view_bytes_); }
  void* PerChannel() { return Next(channel_bytes_); }

 private:
  // At least one byte, so that the pointer of an empty array is not NULL.
  void* Next(size_t bytes) {
    const size_t i = arrays_.size();
    arrays_.emplace_back(1 + bytes, fill_);
    return nulls_ >> i & 1 ? nullptr : arrays_.back().data();
  }

  size_t view_bytes_, channel_bytes_;
  uint8_t fill_;
  uint32_t nulls_;
  std::vector<std::vector<uint8_t>> arrays_;
};

// What the input says beside the call.
struct How {
  uint8_t choices;
  uint32_t nulls;
  int threads;
  size_t error_size;
};

// Sizes, types and attrs; any sizes, or sizes small enough to be run.
Call TakeCall(uint8_t choices, tf_bn_ops::fuzz::Input* input) {
  const auto take_size = [&]() -> int64_t {
    return choices & 1 ? input->Take<int64_t>() : input->Take<uint16_t>() % 513;
  };
  const auto take_dtype = [&]() {
    return static_cast<tf_bn_ops::DType>(
        choices & 2 ? input->Take<int32_t>() : input->Take<uint8_t>() % 4);
  };
  Call call;
  call.formula = FormulaKind::kGradient;
  call.view.outer = take_size();
  call.view.channels = take_size();
  call.view.inner = take_size();
  call.dtype = take_dtype();
  call.stat_dtype = take_dtype();
  call.is_training = input->Take<uint8_t>() & 1;
  call.variance_is_rstd = input->Take<uint8_t>() & 1;
  call.epsilon = input->Take<double>();
  return call;
}

// Whether the view is accepted; its partition is within the limits.
bool HasPartition(const Call& call, size_t error_size) {
  char error[tf_bn_ops::fuzz::kMaxErrorSize];
  std::memset(error, 'x', sizeof(error));
  tfbn_partition_info info{};
  if (tfbn_partition(call.view.outer, call.view.channels, call.view.inner,
                     &info, error, error_size) != 0) {
    TFBN_FUZZ_CHECK(error_size == 0 || std::memchr(error, 0, error_size));
    return false;
  }
  TFBN_FUZZ_CHECK(info.blocks >= 1 && info.fold >= 0);
  // The bound of CpuWorkspaceBytes.
  TFBN_FUZZ_CHECK(info.workspace_bytes >= 0 &&
                  info.workspace_bytes / 88 <= call.view.channels + (1 << 14));
  return true;
}

// The plan of any view that is accepted, within the documented buffer.
void CheckPlan(const Call& call, const How& how, bool has_partition) {
  const tfbn_explain_args request{
      call.view.outer,  call.view.channels,
      call.view.inner,  static_cast<int32_t>(call.dtype),
      call.is_training, how.choices & 32,
      how.threads,      call.view.outer,
      call.view.inner};
  char json[8192];
  char sentence[256];
  const bool has_plan = tfbn_explain(how.choices & 64 ? "batch_norm_grad"
                                                      : "batch_norm_grad_grad",
                                     &request, nullptr, json, sizeof(json),
                                     sentence, sizeof(sentence)) == 0;
  TFBN_FUZZ_CHECK(std::memchr(has_plan ? json : sentence, 0,
                              has_plan ? sizeof(json) : sizeof(sentence)));
  TFBN_FUZZ_CHECK(!has_plan || has_partition);
}

// Arrays of the sizes that `call` says if they are `small`, or else none.
Arrays ArraysOf(const Call& call, bool small, uint8_t fill, uint32_t nulls) {
  if (!small) return Arrays(0, 0, fill, nulls);
  return Arrays(tf_bn_ops::NumElements(call.view) * BytesOf(call.dtype),
                call.view.channels * BytesOf(call.stat_dtype), fill, nulls);
}

// Runs `call` if its arrays have their sizes, or else checks it alone.
void Run(const Call& call, bool small, const How& how, const char* name) {
  if (!small || how.threads > 8) {
    tf_bn_ops::c_api::CheckCall(&call);
    return;
  }
  tf_bn_ops::fuzz::CheckCall(how.error_size, [&](char* error) {
    return tfbn_cpu_run(&call, name, how.threads, error, how.error_size);
  });
}

// The forward formula on the view and types of `call`; any other number of a
// formula, too.
void RunForward(Call call, bool small, const How& how,
                tf_bn_ops::fuzz::Input* input) {
  const uint8_t flags = input->Take<uint8_t>();
  call.formula = static_cast<FormulaKind>(flags & 128 ? input->Take<int32_t>()
                                                      : TFBN_FORWARD);
  call.bessel_correction = flags & 1;
  call.saves_rstd = flags >> 1 & 1;
  call.activation = static_cast<tf_bn_ops::Activation>(
      flags & 4 ? input->Take<int32_t>() : flags >> 3 & 1);
  call.exponential_avg_factor = flags & 16 ? input->Take<double>() : 1;
  const uint32_t nulls = flags & 32 ? input->Take<uint16_t>() : 0;
  Arrays arrays = ArraysOf(call, small, input->Take<uint8_t>(), nulls);
  call.x = arrays.View();
  call.y = arrays.View();
  const void* const side_input = arrays.View();
  call.side_input = flags & 64 ? side_input : nullptr;
  call.scale = arrays.PerChannel();
  call.offset = arrays.PerChannel();
  call.mean = arrays.PerChannel();
  call.variance = arrays.PerChannel();
  call.batch_mean = arrays.PerChannel();
  call.batch_variance = arrays.PerChannel();
  call.saved_mean = arrays.PerChannel();
  call.saved_variance = arrays.PerChannel();
  Run(call, small, how, nullptr);
}

// The gradient itself.
void RunGradient(Call call, bool small, const How& how,
                 tf_bn_ops::fuzz::Input* input) {
  Arrays arrays = ArraysOf(call, small, input->Take<uint8_t>(), how.nulls);
  call.y_backprop = arrays.View();
  call.x = arrays.View();
  call.scale = arrays.PerChannel();
  call.mean = arrays.PerChannel();
  call.variance = arrays.PerChannel();
  call.x_backprop = arrays.View();
  call.scale_backprop = arrays.PerChannel();
  call.offset_backprop = arrays.PerChannel();
  const std::string name = input->Rest();
  Run(call, small, how, how.choices & 16 ? name.c_str() : nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  How how{};
  how.choices = input.Take<uint8_t>();
  const Call call = TakeCall(how.choices, &input);
  how.nulls = how.choices & 4 ? input.Take<uint8_t>() : 0;
  how.threads = how.choices & 8 ? input.Take<int8_t>() : 2;
  how.error_size = input.Take<uint8_t>() % (tf_bn_ops::fuzz::kMaxErrorSize + 1);

  const bool has_partition = HasPartition(call, how.error_size);
  CheckPlan(call, how, has_partition);
  const bool small = has_partition && call.view.channels <= kMaxElements &&
                     tf_bn_ops::NumElements(call.view) <= kMaxElements;
  const auto run = how.choices & 128 ? RunForward : RunGradient;
  run(call, small, how, &input);
  return 0;
}
