// How the libraries for TensorFlow call the CPU backend: by the functions that
// libtf_bn_ops_core.so exports as one table. The kernels, nine tenths of all
// code, are then in one library, which is the same for every TensorFlow.

#ifndef TF_BN_OPS_CC_SHARED_CORE_ENTRY_POINTS_H_
#define TF_BN_OPS_CC_SHARED_CORE_ENTRY_POINTS_H_

#include "cc/core/gather_stats.h"
#include "cc/cpu/dispatch.h"
#include "cc/cpu/driver.h"

namespace tf_bn_ops {

struct EntryPoints {
  decltype(&CpuWorkspaceBytes) workspace_bytes;
  decltype(&RunOnCpu) run;
  decltype(&SelectedImplementation) selected_implementation;
  decltype(&GatherStats) gather_stats;
  decltype(&FindInvalidCount) find_invalid_count;
};

}  // namespace tf_bn_ops

// The build defines this name, with the version of the package in it: C++ types
// pass through the table, and the dynamic loader refuses a library that would
// call the table of another version.
extern "C" const tf_bn_ops::EntryPoints* TFBN_ENTRY_POINTS();

#endif  // TF_BN_OPS_CC_SHARED_CORE_ENTRY_POINTS_H_
