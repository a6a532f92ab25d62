// Registers XLA's GPU target with a TensorFlow that was built without one, so
// that tests compile programs by the XLA_GPU_JIT kernels on a machine without
// GPU. Compiled and loaded by tools/gpu/xla_gpu_target.py; part of no library
// of the package.

#include <string>

#include "absl/types/span.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/types.h"

namespace tensorflow {
// The one function of this class that is called here. Its header,
// tensorflow/compiler/tf2xla/xla_op_registry.h, takes most of a minute.
class XlaOpRegistry {
 public:
  static void RegisterBackend(const std::string& compilation_device_name,
                              absl::Span<const DataType> supported_types,
                              bool (*op_filter)(KernelDef* kernel));
};
}  // namespace tensorflow

// To be called before the first use of XLA in the process.
extern "C" __attribute__((visibility("default"))) void
tfbn_register_gpu_target() {
  namespace tf = ::tensorflow;
  static const tf::DataType types[] = {
      tf::DT_HALF,  tf::DT_BFLOAT16, tf::DT_FLOAT, tf::DT_DOUBLE,
      tf::DT_INT32, tf::DT_INT64,    tf::DT_BOOL};
  tf::XlaOpRegistry::RegisterBackend("XLA_GPU_JIT", types,
                                     [](tf::KernelDef*) { return true; });
}
