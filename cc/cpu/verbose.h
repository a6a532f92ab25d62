// TF_BN_OPS_VERBOSE=1: one line on stderr for each call, with its plan and
// time, and before the first one a line about the machine.
// docs/troubleshooting.md documents the fields. As JSON, with a sentence for
// each reason, the same is the answer of tfbn_explain.

#pragma once

#include <string>

#include "cc/cpu/plan.h"

namespace tf_bn_ops {

constexpr char kVerboseVariable[] = "TF_BN_OPS_VERBOSE";

// Whether kVerboseVariable is set to anything but 0 or false, in any case, and
// not empty, as tf_bn_ops/_startup.py reads TF_BN_OPS; read once per process.
bool VerboseEnabled();

// Prints the line of a call that took `milliseconds`, in one write, so that
// lines of concurrent calls do not mix. `isa`: the implementation that ran.
void PrintCall(const PlanRequest& request, const Plan& plan, const char* isa,
               double milliseconds);

// The plan that `isa` would execute, as one JSON object:
//   {"machine": {name: value, ...}, "call": {name: value, ...},
//    "plan": [{"name", "value"[, "reason", "why"]}, ...]}
std::string PlanAsJson(const PlanRequest& request, const Plan& plan,
                       const char* isa);

}  // namespace tf_bn_ops
