// The attribute string of a block: "epsilon_=0.001;data_format_=NCHW", read
// without TensorFlow, so that it can be fuzzed by itself (tests/fuzz).

#ifndef TF_BN_OPS_CC_CLIENT_ATTRIBUTE_STRING_H_
#define TF_BN_OPS_CC_CLIENT_ATTRIBUTE_STRING_H_

#include <map>
#include <string>
#include <vector>

namespace tf_bn_ops {

// What an op says of one of its attributes (types of tensors excluded).
struct AttributeDef {
  enum Type { kBool, kString, kFloat, kDouble };
  std::string name;
  Type type = kBool;
  std::vector<std::string> allowed;  // of a kString
  bool has_default = false;
};

// The value of an attribute; the member of its type is set.
struct AttributeValue {
  bool boolean = false;  // kBool
  std::string text;      // kString, one of the allowed
  double number = 0;     // kFloat, kDouble; finite in that type
};

// "a", "a or b", "a, b or c"
std::string Listed(const std::vector<std::string>& words,
                   const char* conjunction);

// Reads `text`, the attributes of the op called `op` as name=value separated by
// semicolons, into `values`, by name. Names may have an underscore at the end.
// One sentence, or empty when all of `text` was understood and every attribute
// without a default is there.
std::string ParseAttributes(const std::string& op,
                            const std::vector<AttributeDef>& defs,
                            const std::string& text,
                            std::map<std::string, AttributeValue>* values);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CLIENT_ATTRIBUTE_STRING_H_
