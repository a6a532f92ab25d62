// Ops in the style of another library, with names of its own, for the tests of
// candidates from elsewhere: a right batch-norm gradient, and one with a sign
// wrong. float, NHWC, training.

#include <cmath>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

namespace tf = ::tensorflow;

#define VENDOR_OP(name)                 \
  REGISTER_OP(name)                     \
      .Input("activations: float")      \
      .Input("grad: float")             \
      .Input("gamma: float")            \
      .Input("mu: float")               \
      .Input("var: float")              \
      .Output("dgamma: float")          \
      .Output("dbeta: float")           \
      .Output("dx: float")              \
      .Output("unused_1: float")        \
      .Output("unused_2: float")        \
      .Attr("eps: float = 1e-3")        \
      .Attr("data_format: string")      \
      .Attr("is_training: bool = true") \
      .SetShapeFn(tf::shape_inference::UnknownShape)

VENDOR_OP("Vendor>BnGrad");
VENDOR_OP("VendorBnGradWrongSign");

class BnGrad : public tf::OpKernel {
 public:
  explicit BnGrad(tf::OpKernelConstruction* context)
      : OpKernel(context),
        sign_(type_string() == "Vendor>BnGrad" ? 1.0 : -1.0) {
    OP_REQUIRES_OK(context, context->GetAttr("eps", &eps_));
    bool training;
    OP_REQUIRES_OK(context, context->GetAttr("is_training", &training));
    OP_REQUIRES(context, training, absl::UnimplementedError("training only"));
    std::string format;
    OP_REQUIRES_OK(context, context->GetAttr("data_format", &format));
    OP_REQUIRES(context, format == "NHWC",
                absl::InvalidArgumentError("data_format must be NHWC"));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& x = context->input(0);
    OP_REQUIRES(context,
                x.dims() == 4 && context->input(1).shape() == x.shape(),
                absl::InvalidArgumentError(
                    "activations and grad must be of one shape, NHWC"));
    const int64_t channels = x.dim_size(3);
    for (int i : {2, 3, 4}) {
      OP_REQUIRES(context,
                  context->input(i).shape() == tf::TensorShape({channels}),
                  absl::InvalidArgumentError(
                      "gamma, mu and var must have a number per channel"));
    }
    const int64_t rows = channels > 0 ? x.NumElements() / channels : 0;
    const auto at = [&](int i) { return context->input(i).flat<float>(); };
    tf::Tensor *dgamma, *dbeta, *dx, *unused;
    const tf::TensorShape vector({channels});
    OP_REQUIRES_OK(context, context->allocate_output(0, vector, &dgamma));
    OP_REQUIRES_OK(context, context->allocate_output(1, vector, &dbeta));
    OP_REQUIRES_OK(context, context->allocate_output(2, x.shape(), &dx));
    for (int i : {3, 4}) {
      OP_REQUIRES_OK(
          context, context->allocate_output(i, tf::TensorShape({0}), &unused));
    }
    for (int64_t c = 0; c < channels; ++c) {
      const double mean = at(3)(c);
      const double rstd = 1 / std::sqrt(static_cast<double>(at(4)(c)) + eps_);
      double sum = 0, product = 0;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t i = r * channels + c;
        sum += at(1)(i);
        product += at(1)(i) * (at(0)(i) - mean);
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t i = r * channels + c;
        const double slope = rstd * rstd * product / rows;
        dx->flat<float>()(i) = static_cast<float>(
            at(2)(c) * rstd *
            (at(1)(i) - sum / rows - sign_ * (at(0)(i) - mean) * slope));
      }
      dgamma->flat<float>()(c) = static_cast<float>(rstd * product);
      dbeta->flat<float>()(c) = static_cast<float>(sum);
    }
  }

 private:
  const double sign_;
  float eps_;
};

REGISTER_KERNEL_BUILDER(Name("Vendor>BnGrad").Device(tf::DEVICE_CPU), BnGrad);
REGISTER_KERNEL_BUILDER(Name("VendorBnGradWrongSign").Device(tf::DEVICE_CPU),
                        BnGrad);

// nGraph's gradient for (N, C, W).
REGISTER_OP("Vendor>TrainingGrad")
    .Input("activations: float")
    .Input("gamma: float")
    .Input("shift: float")
    .Input("mu: float")
    .Input("var: float")
    .Input("grad: float")
    .Output("dx: float")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Attr("eps: float")
    .SetShapeFn(tf::shape_inference::UnknownShape);

class TrainingGrad : public tf::OpKernel {
 public:
  explicit TrainingGrad(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("eps", &eps_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::TensorShape& shape = context->input(0).shape();
    OP_REQUIRES(context,
                shape.dims() == 3 && shape.dim_size(1) > 0 &&
                    context->input(5).shape() == shape,
                absl::InvalidArgumentError(
                    "activations and grad must be of one shape, (N, C, W)"));
    const tf::TensorShape vector({shape.dim_size(1)});
    for (int i : {1, 2, 3, 4}) {
      OP_REQUIRES(context, context->input(i).shape() == vector,
                  absl::InvalidArgumentError(
                      "gamma, shift, mu and var must have a number per "
                      "channel"));
    }
    tf::Tensor *dx, *dgamma, *dbeta;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, vector, &dgamma));
    OP_REQUIRES_OK(context, context->allocate_output(2, vector, &dbeta));
    const auto x = context->input(0).tensor<float, 3>();
    const auto grad = context->input(5).tensor<float, 3>();
    const auto at = [&](int i) { return context->input(i).flat<float>(); };
    const double rows = shape.dim_size(0) * shape.dim_size(2);
    for (int64_t c = 0; c < shape.dim_size(1); ++c) {
      const double mean = at(3)(c);
      const double rstd = 1 / std::sqrt(static_cast<double>(at(4)(c)) + eps_);
      double sum = 0, product = 0;
      const auto each = [&](auto&& element) {
        for (int64_t n = 0; n < shape.dim_size(0); ++n)
          for (int64_t w = 0; w < shape.dim_size(2); ++w) element(n, w);
      };
      each([&](int64_t n, int64_t w) {
        sum += grad(n, c, w);
        product += grad(n, c, w) * (x(n, c, w) - mean);
      });
      each([&](int64_t n, int64_t w) {
        const double slope = rstd * rstd * product / rows;
        dx->tensor<float, 3>()(n, c, w) = static_cast<float>(
            at(1)(c) * rstd *
            (grad(n, c, w) - sum / rows - (x(n, c, w) - mean) * slope));
      });
      dgamma->flat<float>()(c) = static_cast<float>(rstd * product);
      dbeta->flat<float>()(c) = static_cast<float>(sum);
    }
  }

 private:
  float eps_;
};

REGISTER_KERNEL_BUILDER(Name("Vendor>TrainingGrad").Device(tf::DEVICE_CPU),
                        TrainingGrad);

}  // namespace
