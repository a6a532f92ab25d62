/* A program of another language: the installed header and the core library
 * alone, in C99. */

#include <stdio.h>
#include <string.h>
#include <tf_bn_ops/tf_bn_ops_c.h>

static int fails(int status, const char* error) {
  if (status != 0) fprintf(stderr, "%s\n", error);
  return status;
}

int main(void) {
  /* [4, 1] in two channels; y is (x - mean) / sqrt(variance + epsilon), then
   * ReLU. */
  const float x[8] = {1, 10, 3, 10, 5, 30, 7, 30}, ones[2] = {1, 1},
              zeros[2] = {0, 0};
  float y[8], mean[2], variance[2], saved_mean[2], saved_variance[2],
      coefficients[10];
  char error[256] = "", json[8192];
  tfbn_call call;
  memset(&call, 0, sizeof call);
  call.view.outer = 4;
  call.view.channels = 2;
  call.view.inner = 1;
  call.formula = TFBN_FORWARD;
  call.dtype = call.stat_dtype = TFBN_FLOAT32;
  call.activation = TFBN_RELU;
  call.is_training = 1;
  call.exponential_avg_factor = 1;
  call.x = x;
  call.scale = ones;
  call.offset = zeros;
  call.y = y;
  call.batch_mean = mean;
  call.batch_variance = variance;
  call.saved_mean = saved_mean;
  call.saved_variance = saved_variance;
  call.forward_coefficients = coefficients;
  if (fails(tfbn_cpu_run(&call, NULL, 1, error, sizeof error), error)) return 1;
  printf("%g %g %g %g\n", mean[0], mean[1], y[1], y[5]);

  const double counts[2] = {1, 3}, means[2] = {0, 4}, m2s[2] = {0, 0};
  double count, gathered_mean, m2;
  tfbn_gather_stats stats = {2,   1,      counts,         means,
                             m2s, &count, &gathered_mean, &m2};
  if (fails(tfbn_cpu_gather_stats(&stats, error, sizeof error), error))
    return 1;
  printf("%g %g %g\n", count, gathered_mean, m2);

  tfbn_explain_args args;
  memset(&args, 0, sizeof args);
  args.outer = args.channels = args.inner = 8;
  args.threads = 1;
  if (fails(tfbn_explain("batch_norm", &args, NULL, json, sizeof json, error,
                         sizeof error),
            error))
    return 1;

  call.view.channels = -1; /* One sentence. */
  return tfbn_cpu_run(&call, tfbn_cpu_implementation(0, NULL), 1, error,
                      sizeof error) == 1 &&
                 strlen(error) > 10
             ? 0
             : 1;
}
