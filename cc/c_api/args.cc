// Checks the arguments of the C ABI and translates them to the core's.

#include "cc/c_api/args.h"

#include <cstdio>

namespace tf_bn_ops {
namespace c_api {

int Fail(const std::string& message, char* error, size_t error_size) {
  if (error != nullptr && error_size > 0) {
    std::snprintf(error, error_size, "%s", message.c_str());
  }
  return 1;
}

bool IsDType(int32_t value) { return value >= 0 && value < kNumDTypes; }

std::string CheckActivation(int32_t value) {
  if (value >= 0 && value < kNumActivations) return "";
  return "activation must be TFBN_IDENTITY, TFBN_RELU or TFBN_RELU6";
}

namespace {

// Limit on the elements of a view: more than any memory holds, and small enough
// that no size that the core computes from it overflows.
constexpr int64_t kMaxElements = int64_t{1} << 47;

}  // namespace

std::string CheckView(const View& view) {
  if (view.outer < 0 || view.channels < 0 || view.inner < 0) {
    return "outer, channels and inner must not be negative";
  }
  int64_t elements;
  if (__builtin_mul_overflow(view.outer, view.channels, &elements) ||
      __builtin_mul_overflow(elements, view.inner, &elements) ||
      elements > kMaxElements) {
    return "outer * channels * inner is larger than any memory";
  }
  // Also where there are no elements: sums are per channel.
  if (view.channels > kMaxElements) {
    return "channels is larger than any memory";
  }
  return "";
}

namespace {

std::string CheckForward(const Call& args) {
  if (args.view.channels > 0 &&
      (args.scale == nullptr || args.offset == nullptr ||
       args.batch_mean == nullptr || args.batch_variance == nullptr ||
       args.saved_mean == nullptr || args.saved_variance == nullptr)) {
    return "scale, offset, batch_mean, batch_variance, saved_mean and "
           "saved_variance must not be NULL";
  }
  if (args.view.channels > 0 &&
      !(args.is_training && args.exponential_avg_factor == 1) &&
      (args.mean == nullptr || args.variance == nullptr)) {
    return "mean and variance must not be NULL unless in training with an "
           "exponential_avg_factor of 1";
  }
  if (NumElements(args.view) > 0 && (args.x == nullptr || args.y == nullptr)) {
    return "x and y must not be NULL";
  }
  return "";
}

std::string CheckGradient(const Call& args) {
  if (args.view.channels > 0 &&
      (args.scale == nullptr || args.mean == nullptr ||
       args.variance == nullptr || args.scale_backprop == nullptr ||
       args.offset_backprop == nullptr)) {
    return "scale, mean, variance, scale_backprop and offset_backprop must not "
           "be NULL";
  }
  if (NumElements(args.view) > 0 &&
      (args.y_backprop == nullptr || args.x == nullptr ||
       args.x_backprop == nullptr)) {
    return "y_backprop, x and x_backprop must not be NULL";
  }
  return "";
}

std::string CheckSecondOrder(const Call& args) {
  if (args.view.channels > 0 &&
      (args.scale_backprop_grad == nullptr ||
       args.offset_backprop_grad == nullptr || args.scale == nullptr ||
       args.mean == nullptr || args.variance == nullptr ||
       args.scale_grad == nullptr)) {
    return "scale_backprop_grad, offset_backprop_grad, scale, mean, variance "
           "and scale_grad must not be NULL";
  }
  if (NumElements(args.view) > 0 &&
      (args.x_backprop_grad == nullptr || args.y_backprop == nullptr ||
       args.x == nullptr || args.y_backprop_grad == nullptr ||
       args.x_grad == nullptr)) {
    return "x_backprop_grad, y_backprop, x, y_backprop_grad and x_grad must "
           "not be NULL";
  }
  return "";
}

// The fields that the calls of whole ops have.
template <typename CArgs>
std::string ReadCommonArgs(const CArgs* c_args, Call* args) {
  const std::string error = ReadStatistics(c_args, args);
  if (error.empty()) args->is_training = c_args->is_training != 0;
  return error;
}

// Those of the first-order gradient, with and without an activation.
template <typename CArgs>
void ReadFirstOrderArgs(const CArgs* c_args, Call* args) {
  args->formula = FormulaKind::kGradient;
  args->variance_is_rstd = c_args->variance_is_rstd != 0;
  args->y_backprop = c_args->y_backprop;
  args->x_backprop = c_args->x_backprop;
  args->scale_backprop = c_args->scale_backprop;
  args->offset_backprop = c_args->offset_backprop;
}

}  // namespace

std::string ReadArgs(const tfbn_batch_norm_args* c_args, Call* args) {
  std::string error = ReadCommonArgs(c_args, args);
  if (error.empty()) error = CheckActivation(c_args->activation);
  if (!error.empty()) return error;
  args->formula = FormulaKind::kForward;
  args->exponential_avg_factor = c_args->exponential_avg_factor;
  args->bessel_correction = c_args->bessel_correction != 0;
  args->saves_rstd = c_args->saves_rstd != 0;
  args->activation = static_cast<Activation>(c_args->activation);
  args->side_input = c_args->side_input;
  args->offset = c_args->offset;
  args->y = c_args->y;
  args->batch_mean = c_args->batch_mean;
  args->batch_variance = c_args->batch_variance;
  args->saved_mean = c_args->saved_mean;
  args->saved_variance = c_args->saved_variance;
  args->forward_coefficients = c_args->forward_coefficients;
  return CheckForward(*args);
}

std::string ReadArgs(const tfbn_batch_norm_grad_args* c_args, Call* args) {
  const std::string error = ReadCommonArgs(c_args, args);
  if (!error.empty()) return error;
  ReadFirstOrderArgs(c_args, args);
  return CheckGradient(*args);
}

std::string ReadArgs(const tfbn_batch_norm_grad_ex_args* c_args, Call* args) {
  std::string error = ReadCommonArgs(c_args, args);
  if (error.empty()) error = CheckActivation(c_args->activation);
  if (!error.empty()) return error;
  ReadFirstOrderArgs(c_args, args);
  args->activation = static_cast<Activation>(c_args->activation);
  args->y = const_cast<void*>(c_args->y);
  args->offset = c_args->offset;
  args->forward_coefficients = const_cast<void*>(c_args->forward_coefficients);
  args->side_input_backprop = c_args->side_input_backprop;
  if (NumElements(args->view) > 0 && args->y == nullptr) {
    return "y must not be NULL";
  }
  return CheckGradient(*args);
}

std::string ReadArgs(const tfbn_batch_norm_grad_grad_args* c_args, Call* args) {
  const std::string error = ReadCommonArgs(c_args, args);
  if (!error.empty()) return error;
  args->formula = FormulaKind::kSecondOrder;
  args->x_backprop_grad = c_args->x_backprop_grad;
  args->scale_backprop_grad = c_args->scale_backprop_grad;
  args->offset_backprop_grad = c_args->offset_backprop_grad;
  args->y_backprop = c_args->y_backprop;
  args->y_backprop_grad = c_args->y_backprop_grad;
  args->x_grad = c_args->x_grad;
  args->scale_grad = c_args->scale_grad;
  return CheckSecondOrder(*args);
}

}  // namespace c_api
}  // namespace tf_bn_ops
