// A second copy of a library in a process, beside a model for instance,
// registers nothing: TensorFlow would find two kernels for every op, and no
// call of any of them would run any more.

#pragma once

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

// Of libtf_bn_ops.so: whether the ops have no kernels from another copy; to be
// asked before this copy's own are registered. Logs a sentence if they have.
bool IsFirstCopy();

}  // namespace tf_bn_ops
