// Formats plans as verbose lines and as JSON.

#include "cc/cpu/verbose.h"

#include <strings.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/dtype.h"
#include "cc/cpu/dispatch.h"
#include "cc/cpu/driver.h"
#include "cc/cpu/plan_reasons.h"

#ifndef TF_BN_OPS_VERSION
#error "TF_BN_OPS_VERSION is set by the build from tf_bn_ops/_version.py"
#endif

namespace tf_bn_ops {
namespace {

// The version of the format is the second field: v1 stays v1 while fields are
// only added at the end.
constexpr char kPrefix[] = "tf_bn_ops_verbose,v1,";

// Names of the values of enumerations, in their order.
constexpr const char* kSchedules[] = {"small_outputs",   "elements_alone",
                                      "frozen_one_pass", "reduce_only",
                                      "channel_groups",  "two_passes"};
constexpr const char* kPipelines[] = {"none", "direct", "packed"};
constexpr const char* kStores[] = {"none", "temporal", "non_temporal"};
constexpr const char* kPrefetches[] = {"none", "fixed_distance", "next_tile"};

struct ReasonText {
  const char* name;
  const char* sentence;
};
constexpr ReasonText kReasons[] = {
#define X(enumerator, name, sentence) {name, sentence},
    TFBN_PLAN_REASONS(X)
#undef X
};

const ReasonText& ReasonOf(const Why& why) {
  return kReasons[static_cast<int>(why.reason)];
}

template <typename Enum, size_t kValues>
const char* NameOf(Enum value, const char* const (&names)[kValues]) {
  return names[static_cast<int>(value)];
}

std::string SentenceOf(const Why& why) {
  std::string sentence = ReasonOf(why).sentence;
  const auto replace = [&](const std::string& slot, int64_t number) {
    const size_t at = sentence.find(slot);
    if (at != std::string::npos) {
      sentence.replace(at, slot.size(), std::to_string(number));
    }
  };
  replace("{found}", why.found);
  replace("{limit}", why.limit);
  return sentence;
}

// `why` is nullptr for what is no decision, or follows from others.
struct Field {
  const char* name;
  std::string value;
  const Why* why = nullptr;
};
using Fields = std::vector<Field>;

// The fields of a plan in a fixed order, the same ones for every plan. They
// point into `plan`.
Fields PlanFields(const PlanRequest& request, const Plan& plan) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  const bool rows = plan.partition.kind == Partition::kRows;
  // Of the pass that stores what is stored last.
  const LoopPlan& last =
      plan.loops[plan.schedule == Schedule::kFrozenOnePass ? 0 : 1];
  return {
      {"schedule", NameOf(plan.schedule, kSchedules), &plan.schedule_why},
      {"threads", number(plan.threads), &plan.threads_why},
      {"partition", rows ? "rows" : "segments", &plan.partition_why},
      {"fold", number(plan.partition.fold)},
      {"blocks", number(NumBlocks(plan.partition))},
      {"tile_channels", number(plan.tile_channels), &plan.tile_why},
      {"tiles", number(plan.tiles)},
      {"group_channels", number(plan.group_channels), &plan.group_why},
      {"groups", number(plan.groups)},
      {"tasks", number(plan.num_tasks), &plan.tasks_why},
      {"store", NameOf(plan.store_policy, kStores), &plan.store_why},
      {"first_prefetch", NameOf(plan.prefetch[0], kPrefetches),
       &plan.prefetch_why[0]},
      {"second_prefetch", NameOf(plan.prefetch[1], kPrefetches),
       &plan.prefetch_why[1]},
      {"pipeline", NameOf(plan.pipeline, kPipelines), &plan.pipeline_why},
      {"scratch_bytes", number(plan.scratch_bytes)},
      {"early_output", plan.early_output ? "yes" : "no",
       &plan.early_output_why},
      {"workspace_bytes",
       number(static_cast<int64_t>(CpuWorkspaceBytes(
           request.formula.kind, request.view, request.dtype)))},
      {"early_store",
       NameOf(plan.early_output ? plan.loops[0].stores : StorePolicy::kNone,
              kStores),
       &plan.early_store_why},
      {"sum_rows", number(plan.loops[0].sum_rows), &plan.sum_rows_why},
      {"store_rows", number(last.store_rows), &plan.store_rows_why},
      {"loops", plan.loops[0].two_loops ? "two" : "one", &plan.two_loops_why},
      {"packs", last.packs ? "yes" : "no", &plan.packs_why},
  };
}

// The implementations in front of the selected one, and why each was skipped.
std::string Skipped(const Implementation* selected) {
  std::string skipped;
  for (const Implementation& one : Implementations()) {
    if (&one == selected) break;
    if (!skipped.empty()) skipped += ";";
    skipped += one.name;
    skipped += one.supported() ? "=not_named" : "=unsupported";
  }
  return skipped.empty() ? "none" : skipped;
}

Fields MachineFields() {
  std::string error;
  const Implementation* const selected = SelectedImplementation(&error);
  const char* const forced = std::getenv(kIsaVariable);
  const bool is_forced = forced != nullptr && *forced != '\0';
  const CacheSizes& caches = MachineCacheSizes();
  return {
      {"version", TF_BN_OPS_VERSION},
      {"isa", selected == nullptr ? "none" : selected->name},
      {"isa_reason", is_forced ? kIsaVariable : "first_supported"},
      {"skipped", Skipped(selected)},
      {"l2_bytes", std::to_string(caches.l2_bytes)},
      {"llc_bytes", std::to_string(caches.llc_bytes)},
      {"cpus", std::to_string(std::thread::hardware_concurrency())},
  };
}

Fields CallFields(const PlanRequest& request, const char* isa) {
  const View& view = request.view;
  return {
      {"backend", "cpu"},
      {"isa", isa},
      {"formula", request.formula.name},
      {"mode", request.is_training ? "training" : "frozen"},
      {"dtype", NameOf(request.dtype, kDTypeTexts)},
      {"view", std::to_string(view.outer) + "x" +
                   std::to_string(view.channels) + "x" +
                   std::to_string(view.inner)},
      {"in_place", request.in_place ? "yes" : "no"},
      {"threads_offered", std::to_string(request.threads)},
      {"l2_bytes", std::to_string(request.caches.l2_bytes)},
      {"llc_bytes", std::to_string(request.caches.llc_bytes)},
  };
}

std::string AsLine(const char* event, const Fields& fields) {
  std::string line = std::string(kPrefix) + event;
  for (const auto& [name, value, why] : fields) {
    line += std::string(",") + name + ":" + value;
    if (why == nullptr) continue;
    line += std::string(",") + name + "_reason:" + ReasonOf(*why).name;
  }
  return line + "\n";
}

// One write for each line. What cannot be written is lost: a call does not fail
// over it.
void Write(const std::string& lines) {
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, lines.data(), lines.size());
}

std::string AsJson(const Fields& fields) {
  std::string json = "{";
  for (const auto& [name, value, why] : fields) {
    json += json.size() > 1 ? ", \"" : "\"";
    json += name + ("\": \"" + value) + "\"";
  }
  return json + "}";
}

}  // namespace

bool VerboseEnabled() {
  static const bool enabled = [] {
    const char* const value = std::getenv(kVerboseVariable);
    return value != nullptr && *value != '\0' && strcasecmp(value, "0") != 0 &&
           strcasecmp(value, "false") != 0;
  }();
  return enabled;
}

void PrintCall(const PlanRequest& request, const Plan& plan, const char* isa,
               double milliseconds) {
  Fields fields = CallFields(request, isa);
  for (Field& field : PlanFields(request, plan)) {
    fields.push_back(std::move(field));
  }
  char time[32];
  std::snprintf(time, sizeof(time), "%.4f", milliseconds);
  fields.push_back({"time_ms", time});
  static const bool once = (Write(AsLine("info", MachineFields())), true);
  static_cast<void>(once);
  Write(AsLine("exec", fields));
}

std::string PlanAsJson(const PlanRequest& request, const Plan& plan,
                       const char* isa) {
  std::string json = "{\"machine\": " + AsJson(MachineFields()) +
                     ", \"call\": " + AsJson(CallFields(request, isa)) +
                     ", \"plan\": ";
  const char* separator = "[";
  for (const auto& [name, value, why] : PlanFields(request, plan)) {
    Fields fields = {{"name", name}, {"value", value}};
    if (why != nullptr) {
      fields.push_back({"reason", ReasonOf(*why).name});
      fields.push_back({"why", SentenceOf(*why)});
    }
    json += separator + AsJson(fields);
    separator = ", ";
  }
  return json + "]}";
}

}  // namespace tf_bn_ops
