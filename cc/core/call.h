// One call: formula, view, element types, attributes and arrays, as a plain
// struct. Op kernels, XLA's custom calls and the C ABI fill it in; it goes
// through the table of libtf_bn_ops_core.so, and plan, driver, kernels and the
// formulas read it.

#ifndef TF_BN_OPS_CC_CORE_CALL_H_
#define TF_BN_OPS_CC_CORE_CALL_H_

#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// The three formulas; cc/core/formulas has the arithmetic. What a call leaves
// out decides which sums, masks and outputs there are (all_formulas.h).
enum class FormulaKind : int32_t { kForward, kGradient, kSecondOrder };

// What is applied to y; the values are part of the C ABI. NaN stays NaN.
enum class Activation : int32_t {
  kIdentity = 0,
  kRelu = 1,   // max(y, 0)
  kRelu6 = 2,  // min(max(y, 0), 6)
};
constexpr int kNumActivations = 3;

// Arrays are borrowed, of three shapes: [outer, channels, inner] of `dtype`,
// [channels] of `stat_dtype` unless it says float64, and one element. nullptr:
// there is none. An output may be the buffer of an input where the formula says
// so, element for element.
struct Call {
  FormulaKind formula = FormulaKind::kForward;
  View view;
  DType dtype = DType::kFloat32;
  DType stat_dtype = DType::kFloat32;
  Activation activation = Activation::kIdentity;
  // Training, where results depend on sums over the view, or frozen, where mean
  // and variance are constants.
  bool is_training = true;
  // mean and variance are float64, whatever stat_dtype is.
  bool float64_statistics = false;
  // cuDNN's convention on the GPU in training: saved_variance, or variance,
  // holds rstd.
  bool saves_rstd = false;
  bool variance_is_rstd = false;
  bool bessel_correction = true;
  double epsilon = 0;
  double exponential_avg_factor = 1;
  // Elements of a channel in the batches of all replicas, where there is no
  // array total_count.
  double total_count_value = 0;

  // ---- Inputs of the shape of the view.
  const void* x = nullptr;
  const void* side_input = nullptr;
  const void* y_backprop = nullptr;
  const void* x_backprop_grad = nullptr;
  // ---- Inputs of shape [channels].
  const void* scale = nullptr;
  const void* offset = nullptr;
  const void* mean = nullptr;
  const void* variance = nullptr;
  const void* scale_backprop_grad = nullptr;
  const void* offset_backprop_grad = nullptr;
  const void* total_dy = nullptr;      // float64
  const void* total_dy_xmu = nullptr;  // float64
  const void* total_count = nullptr;   // One element of float64.

  // ---- Outputs of the forward pass, inputs of its gradient.
  void* y = nullptr;  // The shape of the view.
  // [kNumForwardCoefficients, channels] of the compute type (float; double for
  // float64): those by which the gradient of an activation finds the x that
  // pass.
  void* forward_coefficients = nullptr;

  // ---- Outputs of the shape of the view.
  void* x_backprop = nullptr;
  void* side_input_backprop = nullptr;
  void* y_backprop_grad = nullptr;
  void* x_grad = nullptr;
  // ---- Outputs of shape [channels].
  void* batch_mean = nullptr;
  void* batch_variance = nullptr;
  void* saved_mean = nullptr;
  void* saved_variance = nullptr;
  void* mean64 = nullptr;  // float64
  void* m2 = nullptr;      // float64
  void* scale_backprop = nullptr;
  void* offset_backprop = nullptr;
  void* sum_dy = nullptr;      // float64
  void* sum_dy_xmu = nullptr;  // float64
  void* scale_grad = nullptr;
};

static TFBN_HD DType StatisticsDTypeOf(const Call& call) {
  return call.float64_statistics ? DType::kFloat64 : call.stat_dtype;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_CALL_H_
