// The side of the libraries for TensorFlow: defines the functions of the CPU
// backend by calls through the table. Linked in the place of cc/cpu.

#include "cc/shared_core/entry_points.h"

namespace tf_bn_ops {
namespace {

const EntryPoints& Core() {
  static const EntryPoints& table = *TFBN_ENTRY_POINTS();
  return table;
}

}  // namespace

size_t CpuWorkspaceBytes(FormulaKind formula, const View& view, DType dtype) {
  return Core().workspace_bytes(formula, view, dtype);
}

void RunOnCpu(const Call& call, const Implementation& implementation,
              Executor& executor, void* workspace) {
  Core().run(call, implementation, executor, workspace);
}

const Implementation* SelectedImplementation(std::string* error) {
  return Core().selected_implementation(error);
}

void GatherStats(const GatherStatsArgs& args) { Core().gather_stats(args); }

int64_t FindInvalidCount(const GatherStatsArgs& args) {
  return Core().find_invalid_count(args);
}

}  // namespace tf_bn_ops
