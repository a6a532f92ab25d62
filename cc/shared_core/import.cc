// The side of the libraries for TensorFlow: defines the functions of the CPU
// backend by calls through the table. Linked in the place of cc/cpu.

#include "cc/shared_core/entry_points.h"

namespace tf_bn_ops {
namespace {

const EntryPoints& Core() {
  static const EntryPoints& table = *TFBN_ENTRY_POINTS();
  return table;
}

template <typename F>
const FormulaEntryPoints<F>& CoreOf() {
  return std::get<FormulaEntryPoints<F>>(Core().formulas);
}

}  // namespace

template <typename F>
size_t CpuWorkspaceBytes(const View& view, DType dtype) {
  return CoreOf<F>().workspace_bytes(view, dtype);
}

template <typename F>
void RunOnCpu(const typename F::Args& args,
              const Implementation& implementation, Executor& executor,
              void* workspace) {
  CoreOf<F>().run(args, implementation, executor, workspace);
}

#define TFBN_INSTANTIATE(unused, F, name)                                     \
  template size_t CpuWorkspaceBytes<F>(const View&, DType);                   \
  template void RunOnCpu<F>(const F::Args&, const Implementation&, Executor&, \
                            void*);
TFBN_FOR_EACH_FORMULA(TFBN_INSTANTIATE, )
#undef TFBN_INSTANTIATE

const Implementation* SelectedImplementation(std::string* error) {
  return Core().selected_implementation(error);
}

void GatherStats(const GatherStatsArgs& args) { Core().gather_stats(args); }

int64_t FindInvalidCount(const GatherStatsArgs& args) {
  return Core().find_invalid_count(args);
}

}  // namespace tf_bn_ops
