/* The C ABI of the TensorFlow-free core, for ctypes and for programs in other
 * languages.
 *
 * All functions return 0 on success. On failure they return 1 and write one
 * NUL-terminated sentence to `error` (cut to `error_size` bytes). Calls share
 * no state but scratch memory, which is kept for later calls. Arrays are
 * aligned to their element type.
 */

#ifndef TF_BN_OPS_CC_C_API_TF_BN_OPS_C_H_
#define TF_BN_OPS_CC_C_API_TF_BN_OPS_C_H_

#include <stddef.h>
#include <stdint.h>

#define TFBN_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Element types; the values of tf_bn_ops::DType. */
enum {
  TFBN_FLOAT32 = 0,
  TFBN_FLOAT16 = 1,
  TFBN_BFLOAT16 = 2,
  TFBN_FLOAT64 = 3
};

/* One batch-norm gradient on the contiguous view [outer, channels, inner]; see
 * cc/core/formulas/gradient.h for the formulas. Arrays of view shape
 * have `dtype`, arrays of length `channels` have `stat_dtype`. x_backprop is
 * computed in float, unless dtype is TFBN_FLOAT64: there a mean of float64 is
 * rounded to float, also in the second order, but not in
 * tfbn_cpu_batch_norm_backward_elemt. */
typedef struct tfbn_batch_norm_grad_args {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype;
  int32_t is_training;
  int32_t variance_is_rstd;
  double epsilon;
  const void *y_backprop, *x, *scale, *mean, *variance;
  void *x_backprop, *scale_backprop, *offset_backprop;
} tfbn_batch_norm_grad_args;

/* Runs on the CPU with `threads` threads (the caller's included).
 * `implementation` is a name from tfbn_cpu_implementation, or NULL for the one
 * that the op kernels would use. */
TFBN_EXPORT int tfbn_cpu_batch_norm_grad(const tfbn_batch_norm_grad_args* args,
                                         const char* implementation,
                                         int threads, char* error,
                                         size_t error_size);

/* One gradient behind an activation, see cc/core/formulas/gradient.h.
 */
typedef struct tfbn_batch_norm_grad_ex_args {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype;
  int32_t is_training;
  int32_t variance_is_rstd;
  int32_t activation; /* One of TFBN_IDENTITY, ... */
  double epsilon;
  const void *y_backprop, *x, *scale, *mean, *variance;
  const void* y; /* Must be given, if there are elements. */
  /* If both are given, and side_input_backprop is not, the mask is computed
   * from x, and y is not read unless by the reference. */
  const void *offset, *forward_coefficients;
  void *x_backprop, *scale_backprop, *offset_backprop;
  void* side_input_backprop; /* NULL: the forward had no side input. */
} tfbn_batch_norm_grad_ex_args;

/* As tfbn_cpu_batch_norm_grad. */
TFBN_EXPORT int tfbn_cpu_batch_norm_grad_ex(
    const tfbn_batch_norm_grad_ex_args* args, const char* implementation,
    int threads, char* error, size_t error_size);

/* One second-order gradient, see cc/core/formulas/second_order.h. */
typedef struct tfbn_batch_norm_grad_grad_args {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype;
  int32_t is_training;
  double epsilon;
  const void *x_backprop_grad, *scale_backprop_grad, *offset_backprop_grad;
  const void *y_backprop, *x, *scale, *mean, *variance;
  void *y_backprop_grad, *x_grad, *scale_grad;
} tfbn_batch_norm_grad_grad_args;

/* As tfbn_cpu_batch_norm_grad. */
TFBN_EXPORT int tfbn_cpu_batch_norm_grad_grad(
    const tfbn_batch_norm_grad_grad_args* args, const char* implementation,
    int threads, char* error, size_t error_size);

/* Values of tf_bn_ops::Activation. */
enum { TFBN_IDENTITY = 0, TFBN_RELU = 1, TFBN_RELU6 = 2 };

/* One batch normalization, see cc/core/formulas/forward.h. */
typedef struct tfbn_batch_norm_args {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype;
  int32_t is_training;
  int32_t bessel_correction;
  int32_t saves_rstd;
  int32_t activation; /* One of TFBN_IDENTITY, ... */
  double epsilon, exponential_avg_factor;
  const void *x, *side_input; /* side_input: added before the activation; NULL:
                                 there is none. */
  const void *scale, *offset;
  const void *mean, *variance; /* Not read, and may be NULL, in training with a
                                  factor of 1. */
  void *y, *batch_mean, *batch_variance, *saved_mean, *saved_variance;
  void* forward_coefficients; /* [3, channels] of float, of double for
                                 TFBN_FLOAT64: for tfbn_cpu_batch_norm_grad_ex;
                                 may be NULL. */
} tfbn_batch_norm_args;

/* As tfbn_cpu_batch_norm_grad. */
TFBN_EXPORT int tfbn_cpu_batch_norm(const tfbn_batch_norm_args* args,
                                    const char* implementation, int threads,
                                    char* error, size_t error_size);

/* The parts of a synchronised batch normalization, in which statistics and sums
 * travel between replicas as float64. */

/* Statistics of one batch, see cc/core/formulas/forward.h; zeros without
 * elements. */
typedef struct tfbn_batch_norm_stats_args {
  int64_t outer, channels, inner;
  int32_t dtype;
  const void* x;
  double *count, *mean, *m2; /* One element, [channels], [channels]. */
} tfbn_batch_norm_stats_args;

/* As tfbn_cpu_batch_norm_grad. */
TFBN_EXPORT int tfbn_cpu_batch_norm_stats(
    const tfbn_batch_norm_stats_args* args, const char* implementation,
    int threads, char* error, size_t error_size);

/* Statistics of a batch from those of its parts, see cc/core/gather_stats.h.
 * No output may overlap an input. */
typedef struct tfbn_batch_norm_gather_stats_args {
  int64_t parts, channels;
  const double *counts, *means, *m2s; /* [parts], [parts, channels] twice. */
  double *count, *mean, *m2;          /* One element, [channels], [channels]. */
} tfbn_batch_norm_gather_stats_args;

/* As tfbn_cpu_batch_norm_grad, on the calling thread. */
TFBN_EXPORT int tfbn_cpu_batch_norm_gather_stats(
    const tfbn_batch_norm_gather_stats_args* args, char* error,
    size_t error_size);

/* The second pass of a batch normalization: y from statistics. */
typedef struct tfbn_batch_norm_elemt_args {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype; /* stat_dtype: that of scale and offset. */
  int32_t activation;
  double epsilon;
  const void *x, *side_input; /* side_input: NULL: there is none. */
  const void *scale, *offset;
  const double *mean, *variance;
  void* y;
} tfbn_batch_norm_elemt_args;

/* As tfbn_cpu_batch_norm_grad. */
TFBN_EXPORT int tfbn_cpu_batch_norm_elemt(
    const tfbn_batch_norm_elemt_args* args, const char* implementation,
    int threads, char* error, size_t error_size);

/* The first pass of the gradient: the sums over one batch, see
 * cc/core/formulas/gradient.h. */
typedef struct tfbn_batch_norm_backward_reduce_args {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype; /* stat_dtype: that of scale, offset and theirs. */
  int32_t activation;
  double epsilon;
  const void *y_backprop, *x;
  const void* y; /* NULL: the mask of the activation is computed from x. */
  const void *scale, *offset;
  const double *mean, *variance;
  double *sum_dy, *sum_dy_xmu;
  void *scale_backprop, *offset_backprop;
} tfbn_batch_norm_backward_reduce_args;

/* As tfbn_cpu_batch_norm_grad. */
TFBN_EXPORT int tfbn_cpu_batch_norm_backward_reduce(
    const tfbn_batch_norm_backward_reduce_args* args,
    const char* implementation, int threads, char* error, size_t error_size);

/* The second pass of the gradient, from sums over all batches, see
 * cc/core/formulas/gradient.h. */
typedef struct tfbn_batch_norm_backward_elemt_args {
  int64_t outer, channels, inner;
  int32_t dtype, stat_dtype;
  int32_t activation;
  double epsilon;
  double count; /* Elements of a channel in all batches. */
  const void *y_backprop, *x;
  const void* y; /* NULL: the mask is computed from x; not with an activation
                    and side_input_backprop. */
  const void *scale, *offset;
  const double *mean, *variance, *sum_dy, *sum_dy_xmu;
  void* x_backprop;
  void* side_input_backprop; /* NULL: the forward had no side input. */
} tfbn_batch_norm_backward_elemt_args;

/* As tfbn_cpu_batch_norm_grad. */
TFBN_EXPORT int tfbn_cpu_batch_norm_backward_elemt(
    const tfbn_batch_norm_backward_elemt_args* args, const char* implementation,
    int threads, char* error, size_t error_size);

/* LLC size in bytes that the plans of the CPU backend count on. */
TFBN_EXPORT int64_t tfbn_last_level_cache_bytes(void);

/* Name of the i-th CPU implementation, fastest first; NULL past the end.
 * `supported` (may be NULL) is set to whether this processor can run it. */
TFBN_EXPORT const char* tfbn_cpu_implementation(int i, int* supported);

/* The fixed partition of a view: blocks per channel, outer indices per row (0:
 * rows are segments of a channel), and bytes of workspace of one first-order
 * gradient of float64. */
typedef struct tfbn_partition_info {
  int64_t blocks, fold, workspace_bytes;
} tfbn_partition_info;
TFBN_EXPORT int tfbn_partition(int64_t outer, int64_t channels, int64_t inner,
                               tfbn_partition_info* info, char* error,
                               size_t error_size);

/* A call without its data. */
typedef struct tfbn_explain_args {
  int64_t outer, channels, inner;
  int32_t dtype;
  int32_t is_training;
  int32_t in_place; /* Outputs of view shape are the buffers of inputs. */
  int32_t threads;  /* That the executor offers, the caller's included. */
  int64_t l2_bytes, llc_bytes; /* Cache sizes; 0: those of this machine. */
} tfbn_explain_args;

/* Writes the plan of a CPU call to `json`, as one NUL-terminated JSON object:
 * how it is cut into tiles, scheduled, stored and prefetched, each decision
 * with its reason and a sentence. Computes nothing else. Fails if the object
 * does not fit `json_size` bytes; 8192 are always enough.
 * `formula`: "batch_norm", "batch_norm_add", "batch_norm_grad",
 * "batch_norm_grad_ex", "batch_norm_grad_ex_from_y", "batch_norm_grad_ex_add",
 * "batch_norm_backward_elemt", "batch_norm_backward_elemt_from_x",
 * "batch_norm_backward_elemt_from_y", "batch_norm_backward_elemt_add" or
 * "batch_norm_grad_grad". `implementation`: as in tfbn_cpu_batch_norm_grad.
 *
 *   {"machine": {NAME: VALUE, ...}, "call": {NAME: VALUE, ...},
 *    "plan": [{"name": NAME, "value": VALUE[, "reason": NAME,
 *              "why": SENTENCE]}, ...]}
 *
 * All values are strings, those that TF_BN_OPS_VERBOSE=1 prints. */
TFBN_EXPORT int tfbn_explain(const char* formula, const tfbn_explain_args* args,
                             const char* implementation, char* json,
                             size_t json_size, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* TF_BN_OPS_CC_C_API_TF_BN_OPS_C_H_ */
