// Checks the arguments of the parts of a synchronised batch normalization and
// translates them to the core's.

#include <cstdint>
#include <string>

#include "cc/c_api/args.h"

namespace tf_bn_ops {
namespace c_api {
namespace {

// Those of parts that take statistics, which are float64, beside their outputs.
template <typename CArgs>
std::string ReadInputs(const CArgs* c_args, Call* args) {
  std::string error = ReadStatistics(c_args, args);
  if (error.empty()) error = CheckActivation(c_args->activation);
  if (!error.empty()) return error;
  args->float64_statistics = true;
  args->activation = static_cast<Activation>(c_args->activation);
  args->offset = c_args->offset;
  if (args->view.channels > 0 &&
      (args->scale == nullptr || args->offset == nullptr ||
       args->mean == nullptr || args->variance == nullptr)) {
    return "scale, offset, mean and variance must not be NULL";
  }
  if (NumElements(args->view) > 0 && args->x == nullptr) {
    return "x must not be NULL";
  }
  return "";
}

}  // namespace

std::string ReadArgs(const tfbn_batch_norm_stats_args* c_args, Call* args) {
  const std::string error = ReadView(c_args, args);
  if (!error.empty()) return error;
  args->float64_statistics = true;
  args->x = c_args->x;
  args->mean64 = c_args->mean;
  args->m2 = c_args->m2;
  // Not read: that of every output is float64.
  args->stat_dtype = DType::kFloat64;
  if (c_args->count == nullptr ||
      (args->view.channels > 0 &&
       (c_args->mean == nullptr || c_args->m2 == nullptr))) {
    return "count, mean and m2 must not be NULL";
  }
  // CheckAlignment does not see it.
  if (reinterpret_cast<uintptr_t>(c_args->count) % sizeof(double) != 0) {
    return "count must be aligned to its element type";
  }
  if (NumElements(args->view) > 0 && args->x == nullptr) {
    return "x must not be NULL";
  }
  return "";
}

std::string ReadArgs(const tfbn_batch_norm_gather_stats_args* c_args,
                     GatherStatsArgs* args) {
  if (c_args == nullptr) return "args must not be NULL";
  if (c_args->parts < 0) return "parts must not be negative";
  if (c_args->channels < 0) return "channels must not be negative";
  const std::string error = CheckView(View{0, c_args->channels, 1});
  if (!error.empty()) return error;
  // CheckView would name fields that these arguments do not have.
  if (!CheckView(View{c_args->parts, c_args->channels, 1}).empty()) {
    return "parts * channels is larger than any memory";
  }
  *args = {c_args->parts, c_args->channels, c_args->counts, c_args->means,
           c_args->m2s,   c_args->count,    c_args->mean,   c_args->m2};
  if (c_args->count == nullptr ||
      (c_args->channels > 0 &&
       (c_args->mean == nullptr || c_args->m2 == nullptr))) {
    return "count, mean and m2 must not be NULL";
  }
  if (c_args->parts > 0 &&
      (c_args->counts == nullptr ||
       (c_args->channels > 0 &&
        (c_args->means == nullptr || c_args->m2s == nullptr)))) {
    return "counts, means and m2s must not be NULL";
  }
  return "";
}

std::string ReadArgs(const tfbn_batch_norm_elemt_args* c_args, Call* args) {
  const std::string error = ReadInputs(c_args, args);
  if (!error.empty()) return error;
  args->is_training = false;
  args->side_input = c_args->side_input;
  args->y = c_args->y;
  if (NumElements(args->view) > 0 && args->y == nullptr) {
    return "y must not be NULL";
  }
  return "";
}

std::string ReadArgs(const tfbn_batch_norm_backward_reduce_args* c_args,
                     Call* args) {
  const std::string error = ReadInputs(c_args, args);
  if (!error.empty()) return error;
  args->formula = FormulaKind::kGradient;
  args->y_backprop = c_args->y_backprop;
  args->y = const_cast<void*>(c_args->y);
  args->sum_dy = c_args->sum_dy;
  args->sum_dy_xmu = c_args->sum_dy_xmu;
  args->scale_backprop = c_args->scale_backprop;
  args->offset_backprop = c_args->offset_backprop;
  if (args->view.channels > 0 &&
      (args->sum_dy == nullptr || args->sum_dy_xmu == nullptr ||
       args->scale_backprop == nullptr || args->offset_backprop == nullptr)) {
    return "sum_dy, sum_dy_xmu, scale_backprop and offset_backprop must not be "
           "NULL";
  }
  if (NumElements(args->view) > 0 && args->y_backprop == nullptr) {
    return "y_backprop must not be NULL";
  }
  return "";
}

std::string ReadArgs(const tfbn_batch_norm_backward_elemt_args* c_args,
                     Call* args) {
  const std::string error = ReadInputs(c_args, args);
  if (!error.empty()) return error;
  args->is_training = false;
  args->formula = FormulaKind::kGradient;
  args->y_backprop = c_args->y_backprop;
  args->y = const_cast<void*>(c_args->y);
  args->total_count_value = c_args->count;
  args->total_dy = c_args->sum_dy;
  args->total_dy_xmu = c_args->sum_dy_xmu;
  args->x_backprop = c_args->x_backprop;
  args->side_input_backprop = c_args->side_input_backprop;
  if (args->view.channels > 0 &&
      (args->total_dy == nullptr || args->total_dy_xmu == nullptr)) {
    return "sum_dy and sum_dy_xmu must not be NULL";
  }
  if (NumElements(args->view) == 0) return "";
  if (args->y_backprop == nullptr || args->x_backprop == nullptr) {
    return "y_backprop and x_backprop must not be NULL";
  }
  if (args->side_input_backprop != nullptr && args->y == nullptr &&
      args->activation != Activation::kIdentity) {
    return "y must not be NULL with an activation and side_input_backprop";
  }
  return "";
}

}  // namespace c_api
}  // namespace tf_bn_ops
