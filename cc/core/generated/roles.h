// clang-format off
/* The struct of a call, which the C ABI, XLA's custom call, the core and ctypes share, and
 * the roles of its arrays.
 * Written by tools/generate_ops from tf_bn_ops/spec (call.py, activations.py): edit those, then
 * make format. */

#pragma once

#include <stdint.h>

#ifdef __cplusplus
#include "cc/core/view.h"
namespace tf_bn_ops {
// The kinds of formulas; cc/core/formulas has the arithmetic. What a call leaves out decides which
// sums, masks and outputs there are (all_formulas.h).
enum class FormulaKind : int32_t { kForward, kGradient, kSecondOrder };
constexpr int kNumFormulaKinds = 3;
inline constexpr const char* kDirections[kNumFormulaKinds] = {"forward", "backward",
    "second order"};
enum class DType : int32_t;
enum class Activation : int32_t { kIdentity, kRelu, kRelu6, kSilu, kHardSilu, kLeakyRelu };
constexpr int kNumActivations = 6, kNumClamps = 3;
#define TFBN_FOR_EACH_SMOOTH_ACTIVATION(X) X(Silu) X(HardSilu) X(LeakyRelu)
// The values of the attr activation_mode.
inline constexpr const char* kActivationModes[kNumActivations] = {"Identity", "Relu", "Relu6",
    "Silu", "HardSilu", "LeakyRelu"};
}  // namespace tf_bn_ops
#define TFBN_CPP(cpp, c) tf_bn_ops::cpp
#else
typedef struct tfbn_view { int64_t outer, channels, inner; } tfbn_view;
#define TFBN_CPP(cpp, c) c
#endif

/* What is computed: docs/math.md. */
enum { TFBN_FORWARD, TFBN_GRADIENT, TFBN_SECOND_ORDER };

/* What is applied to y; NaN stays NaN. tf_bn_ops/spec/activations.py has the formulas, and
 * cc/core/formulas/smooth_activation.h the text of the smooth ones that kernels compute. */
enum { TFBN_IDENTITY, TFBN_RELU, TFBN_RELU6, TFBN_SILU, TFBN_HARD_SILU, TFBN_LEAKY_RELU };

/* Arrays are borrowed, of these shapes: the view of x; [channels] of stat_dtype (vector), or of
 * stat_dtype or float64 (statistics), or of float64 (wide); one element of float64 (scalar);
 * [8, channels] of float, of double for TFBN_FLOAT64 (coefficients). NULL: there is none. An output
 * may be the buffer of an input where the formula says so, element for element. */
typedef struct tfbn_call {
  TFBN_CPP(View, tfbn_view) view;
  TFBN_CPP(FormulaKind, int32_t) formula;  /* TFBN_FORWARD, ... */
  TFBN_CPP(DType, int32_t) dtype;  /* TFBN_FLOAT32, ...: of arrays of the shape of x. */
  TFBN_CPP(DType, int32_t) stat_dtype;  /* Of arrays of shape [channels]. */
  TFBN_CPP(Activation, int32_t) activation;  /* TFBN_IDENTITY, ... */
  int32_t is_training;  /* 0: mean and variance are constants (frozen). */
  int32_t float64_statistics;  /* mean and variance are float64, whatever stat_dtype is. */
  int32_t saves_rstd;  /* saved_variance holds rstd in training, as cuDNN has it. */
  int32_t variance_is_rstd;  /* variance holds rstd. */
  int32_t bessel_correction;  /* Of batch_variance in training. */
  float leakyrelu_alpha;  /* With TFBN_LEAKY_RELU the slope below 0; else not read. */
  double epsilon;  /* Added to the variance. */
  double exponential_avg_factor;  /* Weight of this batch in batch_mean, ... */
  const void* x;  /* view */
  const void* side_input;  /* view. Added before the activation. */
  const void* y_backprop;  /* view */
  const void* x_backprop_grad;  /* view */
  const void* scale;  /* vector */
  const void* offset;  /* vector */
  const void* mean;  /* statistics. Not read in training with an exponential_avg_factor of 1. */
  const void* variance;  /* statistics. The same. */
  const void* scale_backprop_grad;  /* vector */
  const void* offset_backprop_grad;  /* vector */
  const void* sum_dy;  /* wide. Over the batches of all replicas. */
  const void* sum_dy_xmu;  /* wide. The same. */
  const void* count;  /* scalar. The same: elements of a channel. */
  void* y;  /* view. Of the forward formula; an input of its gradient. Behind a smooth activation
      the gradient takes side_input in its place, where side_input_backprop is given. */
  void* forward_coefficients;  /* coefficients. The same: what y was computed with, and what
      saved_mean and saved_variance lose; in training it is read where it is of the mean, variance
      and epsilon that are given. Where it is given with offset, and side_input_backprop is not, the
      mask of an activation is computed from x, and y is not read. */
  void* x_backprop;  /* view */
  void* side_input_backprop;  /* view */
  void* y_backprop_grad;  /* view */
  void* x_grad;  /* view */
  void* batch_mean;  /* vector */
  void* batch_variance;  /* vector */
  void* saved_mean;  /* vector */
  void* saved_variance;  /* vector */
  void* scale_backprop;  /* vector */
  void* offset_backprop;  /* vector */
  void* scale_grad;  /* vector */
  void* local_mean;  /* wide. Of this batch. */
  void* local_m2;  /* wide. The same: sum((x - mean)^2). */
  void* local_count;  /* scalar. The same: elements of a channel; in host memory on every device. */
  void* local_sum_dy;  /* wide. Over this batch. */
  void* local_sum_dy_xmu;  /* wide. The same. */
} tfbn_call;

/* Statistics of a batch from those of its parts, by the formula of Chan et al. No output may
 * overlap an input. */
typedef struct tfbn_gather_stats {
  int64_t parts, channels;
  const double* counts;  /* [parts]. Elements of a channel in each part. */
  const double* means;  /* [parts, channels]. Their means. */
  const double* m2s;  /* [parts, channels]. Their sums of (x - mean)^2. */
  double* count;  /* scalar. Elements of a channel in all parts. */
  double* mean;  /* wide. Their mean. */
  double* m2;  /* wide. Their sum of (x - mean)^2. */
} tfbn_gather_stats;

#ifdef __cplusplus
namespace tf_bn_ops {

// In the order of the fields.
enum class Role : int32_t { kX, kSideInput, kYBackprop, kXBackpropGrad, kScale, kOffset, kMean,
    kVariance, kScaleBackpropGrad, kOffsetBackpropGrad, kSumDy, kSumDyXmu, kCount, kY,
    kForwardCoefficients, kXBackprop, kSideInputBackprop, kYBackpropGrad, kXGrad, kBatchMean,
    kBatchVariance, kSavedMean, kSavedVariance, kScaleBackprop, kOffsetBackprop, kScaleGrad,
    kLocalMean, kLocalM2, kLocalCount, kLocalSumDy, kLocalSumDyXmu, kNone };
constexpr int kNumRoles = 31, kNumInputRoles = 13;

enum class ArrayKind : int32_t { kView, kVector, kStatistics, kWide, kScalar, kCoefficients };
struct RoleInfo { const char* name; ArrayKind kind; };
inline constexpr RoleInfo kRoles[kNumRoles] = {{"x", ArrayKind::kView},
    {"side_input", ArrayKind::kView}, {"y_backprop", ArrayKind::kView},
    {"x_backprop_grad", ArrayKind::kView}, {"scale", ArrayKind::kVector},
    {"offset", ArrayKind::kVector}, {"mean", ArrayKind::kStatistics},
    {"variance", ArrayKind::kStatistics}, {"scale_backprop_grad", ArrayKind::kVector},
    {"offset_backprop_grad", ArrayKind::kVector}, {"sum_dy", ArrayKind::kWide},
    {"sum_dy_xmu", ArrayKind::kWide}, {"count", ArrayKind::kScalar}, {"y", ArrayKind::kView},
    {"forward_coefficients", ArrayKind::kCoefficients}, {"x_backprop", ArrayKind::kView},
    {"side_input_backprop", ArrayKind::kView}, {"y_backprop_grad", ArrayKind::kView},
    {"x_grad", ArrayKind::kView}, {"batch_mean", ArrayKind::kVector},
    {"batch_variance", ArrayKind::kVector}, {"saved_mean", ArrayKind::kVector},
    {"saved_variance", ArrayKind::kVector}, {"scale_backprop", ArrayKind::kVector},
    {"offset_backprop", ArrayKind::kVector}, {"scale_grad", ArrayKind::kVector},
    {"local_mean", ArrayKind::kWide}, {"local_m2", ArrayKind::kWide},
    {"local_count", ArrayKind::kScalar}, {"local_sum_dy", ArrayKind::kWide},
    {"local_sum_dy_xmu", ArrayKind::kWide}};

}  // namespace tf_bn_ops
#endif  /* __cplusplus */

#undef TFBN_CPP
