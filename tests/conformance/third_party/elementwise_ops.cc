// Ops in the style of another library that are not batch norm, with names of
// their own, for the tests of mapping files that describe any op: a softplus
// that is right, and one that overflows.

#include <cmath>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

namespace tf = ::tensorflow;

#define SOFTPLUS_OP(name)       \
  REGISTER_OP(name)             \
      .Input("x: T")            \
      .Output("y: T")           \
      .Attr("T: {float, half}") \
      .SetShapeFn(tf::shape_inference::UnchangedShape)

SOFTPLUS_OP("Vendor>Softplus");
SOFTPLUS_OP("VendorSoftplusOverflows");

// log(1 + exp(x)), as it is written down.
double Naive(double x) { return std::log(1 + std::exp(x)); }

// The same without overflow, and without losing small results.
double Stable(double x) {
  return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x)));
}

template <typename T>
class Softplus : public tf::OpKernel {
 public:
  explicit Softplus(tf::OpKernelConstruction* context)
      : OpKernel(context), naive_(type_string() != "Vendor>Softplus") {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& input = context->input(0);
    tf::Tensor* output;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, input.shape(), &output));
    const auto x = input.flat<T>();
    auto y = output->flat<T>();
    for (int64_t i = 0; i < x.size(); ++i) {
      const double value = static_cast<double>(x(i));
      const double result = std::isnan(value) ? value
                            : naive_          ? Naive(value)
                                              : Stable(value);
      // Through float, as TensorFlow rounds.
      y(i) = static_cast<T>(static_cast<float>(result));
    }
  }

 private:
  const bool naive_;
};

#define KERNELS(name)                                                     \
  REGISTER_KERNEL_BUILDER(                                                \
      Name(name).Device(tf::DEVICE_CPU).TypeConstraint<float>("T"),       \
      Softplus<float>);                                                   \
  REGISTER_KERNEL_BUILDER(                                                \
      Name(name).Device(tf::DEVICE_CPU).TypeConstraint<Eigen::half>("T"), \
      Softplus<Eigen::half>)

KERNELS("Vendor>Softplus");
KERNELS("VendorSoftplusOverflows");

}  // namespace
