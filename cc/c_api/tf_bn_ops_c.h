/* The C ABI of the TensorFlow-free core, for ctypes and for programs in other
 * languages.
 *
 * All functions return 0 on success. On failure they return 1 and write one
 * NUL-terminated sentence to `error` (cut to `error_size` bytes). Calls share
 * no state but scratch memory, which is kept for later calls. Arrays are
 * aligned to their element type. Kernels have large arrays on the stack: the
 * calling thread needs TFBN_STACK_BYTES of it. A call on less ends the process
 * at the stack's guard page, and overwrites nothing.
 */

#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cc/core/generated/roles.h"

/* What is left of the stack of the thread that calls, in bytes. */
#define TFBN_STACK_BYTES (256 * 1024)

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

/* Computes one call, whose arguments are in tfbn_call, on the CPU with
 * `threads` threads, the caller's included. `implementation` is a name from
 * tfbn_cpu_implementation, or NULL for the one that the op kernels would use.
 *
 * Which arrays a call has says which part of a formula it wants:
 *   forward      all outputs; without batch_* and saved_*, frozen and with
 *                float64_statistics, y alone; with local_mean, local_m2,
 *                local_count the statistics of x alone
 *   gradient     all outputs; with local_sum_dy, local_sum_dy_xmu, in training,
 *                those, too, and without x_backprop the sums alone; with
 *                sum_dy, sum_dy_xmu, count and is_training = 0 the elements
 *                alone, from sums over the batches of several replicas
 *
 * The gradient of an activation takes y, or, in these two parts, offset in
 * place of it: then the mask is computed from x. They have no smooth
 * activation. An output that is given is written, or the call is refused in a
 * sentence; so is one that no op makes, as with TFBN_FLOAT64 behind an
 * activation. Results of view shape are computed in float, unless dtype is
 * TFBN_FLOAT64. */
TFBN_EXPORT int tfbn_cpu_run(const tfbn_call* call, const char* implementation,
                             int threads, char* error, size_t error_size);

/* Combines the statistics of the parts of a batch on the calling thread. */
TFBN_EXPORT int tfbn_cpu_gather_stats(const tfbn_gather_stats* args,
                                      char* error, size_t error_size);

/* Name of the i-th CPU implementation, fastest first; NULL past the end.
 * `supported` (may be NULL) is set to whether this processor can run it. */
TFBN_EXPORT const char* tfbn_cpu_implementation(int i, int* supported);

/* A call without its data. */
typedef struct tfbn_explain_args {
  int64_t outer, channels, inner;
  int32_t dtype;
  int32_t is_training;
  int32_t in_place;   /* Outputs of view shape are the buffers of inputs. */
  int32_t threads;    /* That the executor offers, the caller's included. */
  int32_t activation; /* TFBN_SILU, ..., of the formulas of smooth ones. */
  int64_t l2_bytes, llc_bytes; /* Sizes of caches; 0: this machine's. */
} tfbn_explain_args;

/* Writes the plan of a CPU call to `json`, as one NUL-terminated JSON object:
 * how it is cut into tiles, scheduled, stored and prefetched, each decision
 * with its reason and a sentence. Computes nothing else. Fails if the object
 * does not fit `json_size` bytes; 8192 are always enough.
 * `formula`: "batch_norm", "batch_norm_add", "batch_norm_grad",
 * "batch_norm_grad_ex", "batch_norm_grad_ex_from_y", "batch_norm_grad_ex_add",
 * "batch_norm_smooth", "batch_norm_smooth_add", "batch_norm_grad_smooth",
 * "batch_norm_grad_smooth_add" or "batch_norm_grad_grad". `implementation`: as
 * in tfbn_cpu_run.
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
