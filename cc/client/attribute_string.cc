// Splits the attribute string of a block and checks each value against its
// attribute.

#include "cc/client/attribute_string.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <sstream>

namespace tf_bn_ops {
namespace {

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// A decimal number, whatever the locale of the process; false for anything
// else, and for numbers that no double holds.
bool ReadNumber(const std::string& text, double* number) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  return (stream >> std::noskipws >> *number) &&
         stream.peek() == std::istringstream::traits_type::eof();
}

// What `value` should be, or empty when it is read.
std::string ParseValue(const AttributeDef& def, const std::string& value,
                       AttributeValue* parsed) {
  switch (def.type) {
    case AttributeDef::kBool:
      if (value != "true" && value != "false") return "true or false";
      parsed->boolean = value == "true";
      return "";
    case AttributeDef::kString:
      if (std::count(def.allowed.begin(), def.allowed.end(), value) == 0) {
        return Listed(def.allowed, "or");
      }
      parsed->text = value;
      return "";
    case AttributeDef::kFloat:
    case AttributeDef::kDouble:
      if (!ReadNumber(value, &parsed->number)) return "a number";
      if (def.type == AttributeDef::kFloat &&
          !std::isfinite(static_cast<float>(parsed->number))) {
        return "a number that a float can hold";
      }
      return "";
  }
  return "of a type that blocks know";
}

}  // namespace

std::string Listed(const std::vector<std::string>& words,
                   const char* conjunction) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0 && i + 1 < words.size()) text += ", ";
    if (i > 0 && i + 1 == words.size()) {
      text += std::string(" ") + conjunction + " ";
    }
    text += words[i];
  }
  return text;
}

std::string ParseAttributes(const std::string& op,
                            const std::vector<AttributeDef>& defs,
                            const std::string& text,
                            std::map<std::string, AttributeValue>* values) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(';', begin), text.size());
    const std::string part = Trimmed(text.substr(begin, end - begin));
    const bool last = end == text.size();
    begin = end + 1;
    if (part.empty() && last) break;  // blanks at the end
    const size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      return "attributes must be name=value, separated by semicolons, as in "
             "epsilon_=0.001;data_format_=NCHW;is_training_=true, but one is "
             "\"" +
             part + "\"";
    }
    const std::string given = Trimmed(part.substr(0, equals));
    const std::string value = Trimmed(part.substr(equals + 1));
    const auto found =
        std::find_if(defs.begin(), defs.end(), [&](const AttributeDef& def) {
          return given == def.name || given == def.name + "_";
        });
    if (found == defs.end()) {
      std::vector<std::string> known;
      for (const AttributeDef& def : defs) known.push_back(def.name + "_");
      return op + " has no attribute \"" + given + "\": it has " +
             Listed(known, "and");
    }
    if (values->count(found->name) > 0) {
      return "the attribute " + given + " is given twice";
    }
    const std::string wanted =
        ParseValue(*found, value, &(*values)[found->name]);
    if (!wanted.empty()) {
      return "the attribute " + given + " must be " + wanted + ", but is \"" +
             value + "\"";
    }
  }
  for (const AttributeDef& def : defs) {
    if (def.has_default || values->count(def.name) > 0) continue;
    return "the attribute " + def.name + "_ of " + op +
           " is missing: it has no default";
  }
  return "";
}

}  // namespace tf_bn_ops
