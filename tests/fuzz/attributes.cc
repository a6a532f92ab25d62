// Fuzz target: the attribute string of a block.
//
// Promised: no crash; either one sentence, or values of the types and choices
// that the op allows, for each attribute without a default at least.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cc/client/attribute_string.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tf_bn_ops::AttributeDef;
  // The attributes of FusedBatchNormGradV3 and of BatchNormTrainingBackprop.
  static const auto* const kOps = new std::vector<std::vector<AttributeDef>>{
      {{"epsilon", AttributeDef::kFloat, {}, true},
       {"data_format",
        AttributeDef::kString,
        {"NHWC", "NCHW", "NDHWC", "NCDHW"},
        true},
       {"is_training", AttributeDef::kBool, {}, true}},
      {{"epsilon", AttributeDef::kDouble, {}, false}},
  };
  tf_bn_ops::fuzz::Input input(data, size);
  const auto& defs = (*kOps)[input.Take<uint8_t>() % kOps->size()];
  std::map<std::string, tf_bn_ops::AttributeValue> values;
  const std::string wrong =
      tf_bn_ops::ParseAttributes("Op", defs, input.Rest(), &values);
  if (!wrong.empty()) return 0;
  size_t known = 0;
  for (const AttributeDef& def : defs) {
    const auto value = values.find(def.name);
    TFBN_FUZZ_CHECK(value != values.end() || def.has_default);
    if (value == values.end()) continue;
    ++known;
    TFBN_FUZZ_CHECK(std::isfinite(value->second.number));
    bool allowed = def.allowed.empty();
    for (const std::string& one : def.allowed) {
      allowed |= one == value->second.text;
    }
    TFBN_FUZZ_CHECK(allowed);
  }
  TFBN_FUZZ_CHECK(known == values.size());
  return 0;
}
