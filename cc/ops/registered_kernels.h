// What a copy of a library asks before it registers kernels: of two kernels for
// one op and device none runs.

#ifndef TF_BN_OPS_CC_OPS_REGISTERED_KERNELS_H_
#define TF_BN_OPS_CC_OPS_REGISTERED_KERNELS_H_

#include "absl/algorithm/container.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_bn_ops {

inline bool HasKernel(const char* op, const char* device_type) {
  const auto registered = tensorflow::GetRegisteredKernelsForOp(op);
  return absl::c_any_of(registered.kernel(),
                        [&](const tensorflow::KernelDef& kernel) {
                          return kernel.device_type() == device_type;
                        });
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_OPS_REGISTERED_KERNELS_H_
