// The side of libtf_bn_ops_core.so: fills the table.

#include "cc/shared_core/entry_points.h"

extern "C" __attribute__((visibility("default"))) const tf_bn_ops::EntryPoints*
TFBN_ENTRY_POINTS() {
  static constexpr tf_bn_ops::EntryPoints table = {
      &tf_bn_ops::CpuWorkspaceBytes, &tf_bn_ops::RunOnCpu,
      &tf_bn_ops::SelectedImplementation, &tf_bn_ops::GatherStats,
      &tf_bn_ops::FindInvalidCount};
  return &table;
}
