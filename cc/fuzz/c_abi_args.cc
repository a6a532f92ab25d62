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
#include "cc/fuzz/c_abi_call.h"
#include "cc/fuzz/input.h"

namespace {

// Accepted arguments are run up to this many elements, to keep runs short.
constexpr int64_t kMaxElements = 1 << 14;

size_t BytesOf(int32_t dtype) {
  return dtype == TFBN_FLOAT64 ? 8 : dtype == TFBN_FLOAT32 ? 4 : 2;
}

// A vector for each array, so that AddressSanitizer sees accesses outside it.
// The first `in_view` have view shape, the others one element per channel.
class Arrays {
 public:
  Arrays(int in_view, size_t view_bytes, size_t channel_bytes, uint8_t fill,
         uint32_t nulls)
      : in_view_(in_view),
        view_bytes_(view_bytes),
        channel_bytes_(channel_bytes),
        fill_(fill),
        nulls_(nulls) {}

  // The next array; at least one byte, so that the pointer of an empty one is
  // not NULL.
  void* Next() {
    const int i = static_cast<int>(arrays_.size());
    arrays_.emplace_back(1 + (i < in_view_ ? view_bytes_ : channel_bytes_),
                         fill_);
    return nulls_ >> i & 1 ? nullptr : arrays_.back().data();
  }

 private:
  int in_view_;
  size_t view_bytes_, channel_bytes_;
  uint8_t fill_;
  uint32_t nulls_;
  std::vector<std::vector<uint8_t>> arrays_;
};

// The forward formula on the view and types of `like`, whose arrays are as
// large as `small` says.
void RunForward(const tfbn_batch_norm_grad_args& like, bool small, int threads,
                size_t error_size, tf_bn_ops::fuzz::Input& input) {
  tfbn_batch_norm_args args{};
  args.outer = like.outer;
  args.channels = like.channels;
  args.inner = like.inner;
  args.dtype = like.dtype;
  args.stat_dtype = like.stat_dtype;
  args.is_training = like.is_training;
  args.epsilon = like.epsilon;
  const uint8_t flags = input.Take<uint8_t>();
  args.bessel_correction = flags & 1;
  args.saves_rstd = flags >> 1 & 1;
  args.activation = flags & 4 ? input.Take<int32_t>() : flags >> 3 & 1;
  args.exponential_avg_factor = flags & 16 ? input.Take<double>() : 1;
  const uint32_t nulls = flags & 32 ? input.Take<uint16_t>() : 0;
  const uint8_t fill = input.Take<uint8_t>();
  const int64_t elements =
      small ? tf_bn_ops::NumElements({args.outer, args.channels, args.inner})
            : 0;
  const int64_t channels = small ? args.channels : 0;
  Arrays arrays(3, elements * BytesOf(args.dtype),
                channels * BytesOf(args.stat_dtype), fill, nulls);
  args.x = arrays.Next();
  args.y = arrays.Next();
  const void* const side_input = arrays.Next();
  args.side_input = flags & 64 ? side_input : nullptr;
  args.scale = arrays.Next();
  args.offset = arrays.Next();
  args.mean = arrays.Next();
  args.variance = arrays.Next();
  args.batch_mean = arrays.Next();
  args.batch_variance = arrays.Next();
  args.saved_mean = arrays.Next();
  args.saved_variance = arrays.Next();
  if (!small || threads > 8) {
    tf_bn_ops::BatchNormArgs unused;
    tf_bn_ops::c_api::ReadArgs(&args, &unused);
    return;
  }
  tf_bn_ops::fuzz::CheckCall(error_size, [&](char* error) {
    return tfbn_cpu_batch_norm(&args, nullptr, threads, error, error_size);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_bn_ops::fuzz::Input input(data, size);
  const uint8_t choices = input.Take<uint8_t>();
  tfbn_batch_norm_grad_args args{};
  // Any sizes, or sizes small enough to be run.
  const auto take_size = [&]() -> int64_t {
    return choices & 1 ? input.Take<int64_t>() : input.Take<uint16_t>() % 513;
  };
  args.outer = take_size();
  args.channels = take_size();
  args.inner = take_size();
  args.dtype = choices & 2 ? input.Take<int32_t>() : input.Take<uint8_t>() % 4;
  args.stat_dtype =
      choices & 2 ? input.Take<int32_t>() : input.Take<uint8_t>() % 4;
  args.is_training = input.Take<uint8_t>() & 1;
  args.variance_is_rstd = input.Take<uint8_t>() & 1;
  args.epsilon = input.Take<double>();
  const uint8_t nulls = choices & 4 ? input.Take<uint8_t>() : 0;
  const int threads = choices & 8 ? input.Take<int8_t>() : 2;
  char error[64];
  const size_t error_size = input.Take<uint8_t>() % (sizeof(error) + 1);
  std::memset(error, 'x', sizeof(error));

  tfbn_partition_info info{};
  const bool has_partition =
      tfbn_partition(args.outer, args.channels, args.inner, &info, error,
                     error_size) == 0;
  if (has_partition) {
    TFBN_FUZZ_CHECK(info.blocks >= 1 && info.fold >= 0);
    // The bound of CpuWorkspaceBytes.
    TFBN_FUZZ_CHECK(info.workspace_bytes >= 0 &&
                    info.workspace_bytes / 64 <= args.channels + (1 << 14));
  } else {
    TFBN_FUZZ_CHECK(error_size == 0 || std::memchr(error, 0, error_size));
  }

  // The plan of any view that is accepted, within the documented buffer.
  const tfbn_explain_args request{args.outer, args.channels,    args.inner,
                                  args.dtype, args.is_training, choices & 32,
                                  threads,    args.outer,       args.inner};
  char json[8192];
  char sentence[256];
  const bool has_plan =
      tfbn_explain(choices & 64 ? "batch_norm_grad" : "batch_norm_grad_grad",
                   &request, nullptr, json, sizeof(json), sentence,
                   sizeof(sentence)) == 0;
  TFBN_FUZZ_CHECK(std::memchr(has_plan ? json : sentence, 0,
                              has_plan ? sizeof(json) : sizeof(sentence)));
  TFBN_FUZZ_CHECK(!has_plan || has_partition);

  const bool small = has_partition && args.channels <= kMaxElements &&
                     tf_bn_ops::NumElements({args.outer, args.channels,
                                             args.inner}) <= kMaxElements;
  if (choices & 128) {
    RunForward(args, small, threads, error_size, input);
    return 0;
  }
  // A vector for each array, so that AddressSanitizer sees accesses outside it.
  const int64_t elements =
      small ? tf_bn_ops::NumElements({args.outer, args.channels, args.inner})
            : 0;
  const int64_t channels = small ? args.channels : 0;
  const size_t element_bytes = BytesOf(args.dtype);
  const size_t stat_bytes = BytesOf(args.stat_dtype);
  const uint8_t fill = input.Take<uint8_t>();
  std::vector<std::vector<uint8_t>> arrays;
  for (int i = 0; i < 8; ++i) {
    const bool per_channel = i != 0 && i != 1 && i != 5;
    // At least one byte, so that the pointer of an empty array is not NULL.
    arrays.emplace_back(
        1 + (per_channel ? channels * stat_bytes : elements * element_bytes),
        fill);
  }
  const auto pointer = [&](int i) -> void* {
    return nulls >> i & 1 ? nullptr : arrays[i].data();
  };
  args.y_backprop = pointer(0);
  args.x = pointer(1);
  args.scale = pointer(2);
  args.mean = pointer(3);
  args.variance = pointer(4);
  args.x_backprop = pointer(5);
  args.scale_backprop = pointer(6);
  args.offset_backprop = pointer(7);

  if (!small || threads > 8) {
    // Arguments without arrays of their size are checked, not run.
    tf_bn_ops::BatchNormGradArgs unused;
    tf_bn_ops::c_api::ReadArgs(&args, &unused);
    return 0;
  }
  const std::string name = input.Rest();
  tf_bn_ops::fuzz::CheckCall(error_size, [&](char* error) {
    return tfbn_cpu_batch_norm_grad(&args,
                                    choices & 16 ? name.c_str() : nullptr,
                                    threads, error, error_size);
  });
  return 0;
}
