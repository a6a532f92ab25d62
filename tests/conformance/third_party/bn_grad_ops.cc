// Ops in the style of another library: a batch-norm gradient that is right, and
// the same with one fault each that a call on its own does not show, with the
// OpDef of FusedBatchNormGradV2, for the tests of execution modes that look for
// state. And, with names and an order of its own, a right one
// and one with a sign wrong, for the tests of mappings. float, NHWC and NCHW.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

namespace tf = ::tensorflow;

// Channels that a global of a faulty kernel has room for.
constexpr int64_t kMostChannels = 1 << 16;

// Where element (outer, channel, inner) lies.
struct View {
  int64_t outer, channels, inner;
  int64_t At(int64_t o, int64_t c, int64_t i) const {
    return (o * channels + c) * inner + i;
  }
};

class BnGrad : public tf::OpKernel {
 public:
  explicit BnGrad(tf::OpKernelConstruction* context)
      : OpKernel(context), fault_(type_string()) {
    const bool is_vendors = fault_.rfind("Vendor", 0) == 0;
    if (is_vendors) dy_ = 1, x_ = 0, dx_ = 2, dscale_ = 0, doffset_ = 1;
    OP_REQUIRES_OK(context,
                   context->GetAttr(is_vendors ? "eps" : "epsilon", &epsilon_));
    OP_REQUIRES_OK(context, context->GetAttr("is_training", &training_));
    OP_REQUIRES_OK(context, context->GetAttr("data_format", &format_));
    OP_REQUIRES(context, format_ == "NHWC" || format_ == "NCHW",
                absl::InvalidArgumentError("data_format is unknown"));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& x = context->input(x_);
    OP_REQUIRES(context,
                x.dims() == 4 && context->input(dy_).shape() == x.shape(),
                absl::InvalidArgumentError("y_backprop and x differ in shape"));
    const View view = ViewOf(x);
    const tf::TensorShape vector({view.channels});
    tf::Tensor *dx, *dscale, *doffset, *unused, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(dx_, x.shape(), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(dscale_, vector, &dscale));
    OP_REQUIRES_OK(context,
                   context->allocate_output(doffset_, vector, &doffset));
    for (int i : {3, 4}) {
      OP_REQUIRES_OK(
          context, context->allocate_output(i, tf::TensorShape({0}), &unused));
    }
    for (int i : {2, 3, 4}) {
      OP_REQUIRES(context, context->input(i).shape() == vector,
                  absl::InvalidArgumentError("a vector has other channels"));
    }
    OP_REQUIRES(
        context,
        view.channels <= kMostChannels || fault_ != "MeansInAGlobalBnGrad",
        absl::InvalidArgumentError("too many channels"));
    OP_REQUIRES_OK(
        context,
        context->allocate_temp(tf::DT_FLOAT,
                               tf::TensorShape({2 * view.channels}), &scratch));
    float* sums = scratch.flat<float>().data();
    const bool locks = fault_ == "LocksEachPassBnGrad";
    if (fault_ == "MemberInComputeBnGrad" || locks) {
      std::lock_guard<std::mutex> lock(mutex_);
      member_.resize(2 * view.channels);
      sums = member_.data();
    }
    const auto run_pass = [&](const auto& pass) {
      std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
      if (locks) lock.lock();
      pass();
    };
    run_pass([&] { Reduce(context, view, sums); });
    run_pass([&] { Apply(context, view, sums, dx, dscale, doffset); });
  }

 private:
  View ViewOf(const tf::Tensor& x) const {
    View view{x.dim_size(0) * x.dim_size(1) * x.dim_size(2), x.dim_size(3), 1};
    if (format_ == "NCHW") {
      view = {x.dim_size(0), x.dim_size(1), x.dim_size(2) * x.dim_size(3)};
    }
    if (fault_ != "CachesByDimensionsBnGrad") return view;
    static std::mutex mutex;
    static auto* views = new std::map<std::vector<int64_t>, View>;
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<int64_t> dimensions;
    for (int i = 0; i < 4; ++i) dimensions.push_back(x.dim_size(i));
    return views->emplace(dimensions, view).first->second;
  }

  // The means, or what a faulty kernel takes for them.
  const float* MeansOf(tf::OpKernelContext* context, bool first_pass) const {
    const auto given = context->input(3).flat<float>();
    if (fault_ != "MeansInAGlobalBnGrad") return given.data();
    static float means[kMostChannels];
    if (first_pass) std::copy_n(given.data(), given.size(), means);
    return means;
  }

  double RstdOf(const float* variance, int64_t c) const {
    const double rstd =
        1 / std::sqrt(static_cast<double>(variance[c]) + epsilon_);
    if (fault_ != "KeepsRstdByAddressBnGrad") return rstd;
    static std::mutex mutex;
    static auto* kept = new std::map<const float*, double>;
    std::lock_guard<std::mutex> lock(mutex);
    return kept->emplace(variance + c, rstd).first->second;
  }

  // Whether another path is taken.
  bool IsTuned() {
    return fault_ == "TunesItselfBnGrad" && calls_.fetch_add(1) >= 2;
  }

  void Reduce(tf::OpKernelContext* context, const View& view, float* sums) {
    const auto at = [&](int i) { return context->input(i).flat<float>(); };
    const auto dy = at(dy_), x = at(x_);
    const float* const mean = MeansOf(context, true);
    const bool is_tuned = IsTuned();
    for (int64_t c = 0; c < view.channels; ++c) {
      const float garbage =
          fault_ == "ScratchNotClearedBnGrad" ? sums[2 * c] : 0;
      double sum = garbage, product = 0;
      for (int64_t o = 0; o < view.outer; ++o) {
        for (int64_t i = 0; i < view.inner; ++i) {
          const int64_t k = view.At(o, c, i);
          sum += dy(k);
          product += dy(k) * (static_cast<double>(x(k)) - mean[c]);
        }
      }
      // As if another order of summation had cost the last digit.
      if (is_tuned) sum *= 1 + 1e-7;
      if (fault_ == "ReadsBehindTheTensorBnGrad" && c + 1 == view.channels) {
        for (int64_t k = x.size(); k % 4 != 0; ++k) sum += dy.data()[k];
      }
      sums[2 * c] = static_cast<float>(sum);
      sums[2 * c + 1] = static_cast<float>(product);
    }
  }

  void Apply(tf::OpKernelContext* context, const View& view, const float* sums,
             tf::Tensor* dx, tf::Tensor* dscale, tf::Tensor* doffset) const {
    const auto at = [&](int i) { return context->input(i).flat<float>(); };
    const auto dy = at(dy_), x = at(x_), scale = at(2), var = at(4);
    const float* const mean = MeansOf(context, false);
    const int64_t rows = view.outer * view.inner;
    for (int64_t c = 0; c < view.channels; ++c) {
      const double rstd = RstdOf(var.data(), c);
      const double m = training_ ? sums[2 * c] / static_cast<double>(rows) : 0;
      double k = training_
                     ? rstd * rstd * sums[2 * c + 1] / static_cast<double>(rows)
                     : 0;
      if (fault_ == "VendorBnGradWrongSign") k = -k;
      for (int64_t o = 0; o < view.outer; ++o) {
        for (int64_t i = 0; i < view.inner; ++i) {
          const int64_t e = view.At(o, c, i);
          if (fault_ == "UnwrittenTailBnGrad" && e >= x.size() / 4 * 4)
            continue;
          dx->flat<float>()(e) = static_cast<float>(
              scale(c) * rstd *
              (dy(e) - m - (static_cast<double>(x(e)) - mean[c]) * k));
        }
      }
      float& scale_backprop = dscale->flat<float>()(c);
      const double before =
          fault_ == "AddsToItsOutputBnGrad" ? scale_backprop : 0;
      scale_backprop = static_cast<float>(before + rstd * sums[2 * c + 1]);
      const bool is_last_of_odd = view.channels % 2 && c + 1 == view.channels;
      if (fault_ == "UnwrittenChannelBnGrad" && is_last_of_odd) continue;
      doffset->flat<float>()(c) = sums[2 * c];
    }
  }

  const std::string fault_;
  // Positions of inputs and outputs.
  int dy_ = 0, x_ = 1, dx_ = 0, dscale_ = 1, doffset_ = 2;
  float epsilon_;
  bool training_;
  std::string format_;
  std::mutex mutex_;
  std::vector<float> member_;
  std::atomic<int> calls_{0};
};

#define STATEFUL(name)                                           \
  REGISTER_OP(name)                                              \
      .Input("y_backprop: T")                                    \
      .Input("x: T")                                             \
      .Input("scale: float")                                     \
      .Input("reserve_space_1: U")                               \
      .Input("reserve_space_2: U")                               \
      .Output("x_backprop: T")                                   \
      .Output("scale_backprop: U")                               \
      .Output("offset_backprop: U")                              \
      .Output("reserve_space_3: U")                              \
      .Output("reserve_space_4: U")                              \
      .Attr("T: {half, bfloat16, float}")                        \
      .Attr("U: {float}")                                        \
      .Attr("epsilon: float = 0.0001")                           \
      .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")            \
      .Attr("is_training: bool = true")                          \
      .SetShapeFn(tf::shape_inference::FusedBatchNormGradShape); \
  REGISTER_KERNEL_BUILDER(                                       \
      Name(name).Device(tf::DEVICE_CPU).TypeConstraint<float>("T"), BnGrad)

STATEFUL("StatelessBnGrad");          // Right.
STATEFUL("UnwrittenTailBnGrad");      // Leaves elements unwritten.
STATEFUL("ScratchNotClearedBnGrad");  // Adds to memory that is not cleared.
// Keeps strides by the dimensions alone.
STATEFUL("CachesByDimensionsBnGrad");
STATEFUL("MemberInComputeBnGrad");  // Keeps sums in the kernel, in Compute.
// Leaves offset_backprop of the last channel unwritten where channels are odd.
STATEFUL("UnwrittenChannelBnGrad");
STATEFUL("AddsToItsOutputBnGrad");  // Adds to an output that is not cleared.
// Sums up to the next multiple of four elements, behind the tensor.
STATEFUL("ReadsBehindTheTensorBnGrad");
// Keeps rstd by the address of the variance, as if that were a constant.
STATEFUL("KeepsRstdByAddressBnGrad");
// Tunes itself: from its third call on sums have another last digit.
STATEFUL("TunesItselfBnGrad");
STATEFUL("MeansInAGlobalBnGrad");  // Keeps the means of the call in a global.
// Locks the sums that it keeps in each pass, but not from one to the other.
STATEFUL("LocksEachPassBnGrad");

#define VENDOR(name)                                  \
  REGISTER_OP(name)                                   \
      .Input("activations: float")                    \
      .Input("grad: float")                           \
      .Input("gamma: float")                          \
      .Input("mu: float")                             \
      .Input("var: float")                            \
      .Output("dgamma: float")                        \
      .Output("dbeta: float")                         \
      .Output("dx: float")                            \
      .Output("unused_1: float")                      \
      .Output("unused_2: float")                      \
      .Attr("eps: float = 1e-3")                      \
      .Attr("data_format: string")                    \
      .Attr("is_training: bool = true")               \
      .SetShapeFn(tf::shape_inference::UnknownShape); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), BnGrad)

VENDOR("Vendor>BnGrad");
VENDOR("VendorBnGradWrongSign");

}  // namespace
