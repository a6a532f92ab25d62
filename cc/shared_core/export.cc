// The side of libtf_bn_ops_core.so: fills the table.

#include "cc/shared_core/entry_points.h"

extern "C" __attribute__((visibility("default"))) const tf_bn_ops::EntryPoints*
TFBN_ENTRY_POINTS() {
#define TFBN_ENTRY_POINTS_OF(unused, F, name)                  \
  std::make_tuple(tf_bn_ops::FormulaEntryPoints<tf_bn_ops::F>{ \
      &tf_bn_ops::CpuWorkspaceBytes<tf_bn_ops::F>,             \
      &tf_bn_ops::RunOnCpu<tf_bn_ops::F>}),
  static const tf_bn_ops::EntryPoints table = {
      std::tuple_cat(TFBN_FOR_EACH_FORMULA(TFBN_ENTRY_POINTS_OF, )
                         std::tuple<>()),
      &tf_bn_ops::SelectedImplementation, &tf_bn_ops::GatherStats,
      &tf_bn_ops::FindInvalidCount};
#undef TFBN_ENTRY_POINTS_OF
  return &table;
}
