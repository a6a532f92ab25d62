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

#include "cc/c_api/args.h"
#include "cc/c_api/tf_bn_ops_c.h"
#include "tests/fuzz/c_abi_call.h"
#include "tests/fuzz/input.h"

namespace {

// Accepted arguments are run up to this many elements, to keep runs short.
constexpr int64_t kMaxElements = 1 << 14;

size_t BytesOf(int32_t dtype) {
  return dtype == TFBN_FLOAT64 ? 8 : dtype == TFBN_FLOAT32 ? 4 : 2;
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

// What the input says beside the arguments of a formula.
struct Call {
  uint8_t choices;
  uint32_t nulls;
  int threads;
  size_t error_size;
};

// Sizes, types and attrs; any sizes, or sizes small enough to be run.
tfbn_batch_norm_grad_args TakeArgs(uint8_t choices,
                                   tf_bn_ops::fuzz::Input* input) {
  const auto take_size = [&]() -> int64_t {
    return choices & 1 ? input->Take<int64_t>() : input->Take<uint16_t>() % 513;
  };
  const auto take_dtype = [&]() -> int32_t {
    return choices & 2 ? input->Take<int32_t>() : input->Take<uint8_t>() % 4;
  };
  tfbn_batch_norm_grad_args args{};
  args.outer = take_size();
  args.channels = take_size();
  args.inner = take_size();
  args.dtype = take_dtype();
  args.stat_dtype = take_dtype();
  args.is_training = input->Take<uint8_t>() & 1;
  args.variance_is_rstd = input->Take<uint8_t>() & 1;
  args.epsilon = input->Take<double>();
  return args;
}

// Whether the view is accepted; its partition is within the limits.
bool HasPartition(const tfbn_batch_norm_grad_args& args, size_t error_size) {
  char error[tf_bn_ops::fuzz::kMaxErrorSize];
  std::memset(error, 'x', sizeof(error));
  tfbn_partition_info info{};
  if (tfbn_partition(args.outer, args.channels, args.inner, &info, error,
                     error_size) != 0) {
    TFBN_FUZZ_CHECK(error_size == 0 || std::memchr(error, 0, error_size));
    return false;
  }
  TFBN_FUZZ_CHECK(info.blocks >= 1 && info.fold >= 0);
  // The bound of CpuWorkspaceBytes.
  TFBN_FUZZ_CHECK(info.workspace_bytes >= 0 &&
                  info.workspace_bytes / 88 <= args.channels + (1 << 14));
  return true;
}

// The plan of any view that is accepted, within the documented buffer.
void CheckPlan(const tfbn_batch_norm_grad_args& args, const Call& call,
               bool has_partition) {
  const tfbn_explain_args request{
      args.outer,   args.channels,    args.inner,
      args.dtype,   args.is_training, call.choices & 32,
      call.threads, args.outer,       args.inner};
  char json[8192];
  char sentence[256];
  const bool has_plan = tfbn_explain(call.choices & 64 ? "batch_norm_grad"
                                                       : "batch_norm_grad_grad",
                                     &request, nullptr, json, sizeof(json),
                                     sentence, sizeof(sentence)) == 0;
  TFBN_FUZZ_CHECK(std::memchr(has_plan ? json : sentence, 0,
                              has_plan ? sizeof(json) : sizeof(sentence)));
  TFBN_FUZZ_CHECK(!has_plan || has_partition);
}

// Arrays of the sizes that `args` says if they are `small`, or else none.
template <typename Args>
Arrays ArraysOf(const Args& args, bool small, uint8_t fill, uint32_t nulls) {
  if (!small) return Arrays(0, 0, fill, nulls);
  const int64_t elements =
      tf_bn_ops::NumElements({args.outer, args.channels, args.inner});
  return Arrays(elements * BytesOf(args.dtype),
                args.channels * BytesOf(args.stat_dtype), fill, nulls);
}

// Arguments without arrays of their size are checked, not run.
template <typename Formula, typename Args>
void CheckOnly(const Args& args) {
  Formula unused;
  tf_bn_ops::c_api::ReadArgs(&args, &unused);
}

// The forward formula on the view and types of `like`.
void RunForward(const tfbn_batch_norm_grad_args& like, bool small,
                const Call& call, tf_bn_ops::fuzz::Input* input) {
  tfbn_batch_norm_args args{};
  args.outer = like.outer;
  args.channels = like.channels;
  args.inner = like.inner;
  args.dtype = like.dtype;
  args.stat_dtype = like.stat_dtype;
  args.is_training = like.is_training;
  args.epsilon = like.epsilon;
  const uint8_t flags = input->Take<uint8_t>();
  args.bessel_correction = flags & 1;
  args.saves_rstd = flags >> 1 & 1;
  args.activation = flags & 4 ? input->Take<int32_t>() : flags >> 3 & 1;
  args.exponential_avg_factor = flags & 16 ? input->Take<double>() : 1;
  const uint32_t nulls = flags & 32 ? input->Take<uint16_t>() : 0;
  Arrays arrays = ArraysOf(args, small, input->Take<uint8_t>(), nulls);
  args.x = arrays.View();
  args.y = arrays.View();
  const void* const side_input = arrays.View();
  args.side_input = flags & 64 ? side_input : nullptr;
  args.scale = arrays.PerChannel();
  args.offset = arrays.PerChannel();
  args.mean = arrays.PerChannel();
  args.variance = arrays.PerChannel();
  args.batch_mean = arrays.PerChannel();
  args.batch_variance = arrays.PerChannel();
  args.saved_mean = arrays.PerChannel();
  args.saved_variance = arrays.PerChannel();
  if (!small || call.threads > 8) {
    return CheckOnly<tf_bn_ops::Call>(args);
  }
  tf_bn_ops::fuzz::CheckCall(call.error_size, [&](char* error) {
    return tfbn_cpu_batch_norm(&args, nullptr, call.threads, error,
                               call.error_size);
  });
}

// The gradient itself.
void RunGradient(const tfbn_batch_norm_grad_args& like, bool small,
                 const Call& call, tf_bn_ops::fuzz::Input* input) {
  tfbn_batch_norm_grad_args args = like;
  Arrays arrays = ArraysOf(args, small, input->Take<uint8_t>(), call.nulls);
  args.y_backprop = arrays.View();
  args.x = arrays.View();
  args.scale = arrays.PerChannel();
  args.mean = arrays.PerChannel();
  args.variance = arrays.PerChannel();
  args.x_backprop = arrays.View();
  args.scale_backprop = arrays.PerChannel();
  args.offset_backprop = arrays.PerChannel();
  if (!small || call.threads > 8) {
    return CheckOnly<tf_bn_ops::Call>(args);
  }
  const std::string name = input->Rest();
  tf_bn_ops::fuzz::CheckCall(call.error_size, [&](char* error) {
    return tfbn_cpu_batch_norm_grad(&args,
                                    call.choices & 16 ? name.c_str() : nullptr,
                                    call.threads, error, call.error_size);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  Call call{};
  call.choices = input.Take<uint8_t>();
  const tfbn_batch_norm_grad_args args = TakeArgs(call.choices, &input);
  call.nulls = call.choices & 4 ? input.Take<uint8_t>() : 0;
  call.threads = call.choices & 8 ? input.Take<int8_t>() : 2;
  call.error_size =
      input.Take<uint8_t>() % (tf_bn_ops::fuzz::kMaxErrorSize + 1);

  const bool has_partition = HasPartition(args, call.error_size);
  CheckPlan(args, call, has_partition);
  const bool small = has_partition && args.channels <= kMaxElements &&
                     tf_bn_ops::NumElements({args.outer, args.channels,
                                             args.inner}) <= kMaxElements;
  const auto run = call.choices & 128 ? RunForward : RunGradient;
  run(args, small, call, &input);
  return 0;
}
