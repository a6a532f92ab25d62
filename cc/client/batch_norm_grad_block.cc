// tf_bn_ops/batch_norm_grad_block.h: the op's OpDef says which pins and
// attributes there are; what does not fit together TensorFlow finds.

#include "tf_bn_ops/batch_norm_grad_block.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// A decimal number that a float can hold, whatever the locale of the process.
bool ReadNumber(const std::string& text, double* number) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  return (stream >> std::noskipws >> *number) && stream.peek() == EOF &&
         std::isfinite(static_cast<float>(*number));
}

// Reads the value of an attribute. What it must be, or empty when it is read.
std::string ReadValue(const tf::OpDef::AttrDef& attr, const std::string& text,
                      tf::AttrValue* value) {
  if (attr.type() == "bool") {
    value->set_b(text == "true");
    return text == "true" || text == "false" ? "" : "true or false";
  }
  if (attr.type() == "string") {
    value->set_s(text);
    const auto& allowed = attr.allowed_values().list().s();
    const bool is_allowed =
        allowed.empty() || std::count(allowed.begin(), allowed.end(), text);
    return is_allowed ? "" : "one of " + absl::StrJoin(allowed, ", ");
  }
  double number;
  if (!ReadNumber(text, &number)) return "a number that a float can hold";
  if (attr.name() == "epsilon" && number < 0) return "0 or more";
  if (attr.type() == "tensor") {  // epsilon, a scalar of type double
    tf::Tensor(number).AsProtoField(value->mutable_tensor());
  } else {
    value->set_f(static_cast<float>(number));
  }
  return "";
}

// An input that is a list of tensors: a pin of its own that may stay unset.
bool IsOptional(const tf::OpDef::ArgDef& arg) {
  return !arg.number_attr().empty();
}

}  // namespace

BatchNormGradBlock::BatchNormGradBlock(const tf::Scope& scope,
                                       const std::string& op,
                                       const std::string& attributes)
    : scope_(scope), name_(scope.GetUniqueNameForOp("block")) {
  status_ = Init(op, attributes);
}

absl::Status BatchNormGradBlock::Init(const std::string& op,
                                      const std::string& attributes) {
  if (op.rfind("TfBnOps>", 0) == 0) TF_RETURN_IF_ERROR(LoadOpLibrary());
  TF_RETURN_IF_ERROR(tf::OpRegistry::Global()->LookUpOpDef(op, &op_));
  for (const auto& arg : op_->input_arg()) inputs_.push_back(arg.name());
  for (const auto& arg : op_->output_arg()) {
    if (!IsOptional(arg)) outputs_.push_back(arg.name());
  }
  // By their names, with the underscore.
  std::map<std::string, const tf::OpDef::AttrDef*> known;
  for (const auto& attr : op_->attr()) {
    for (const char* const type : {"bool", "float", "string", "tensor"}) {
      if (attr.type() == type) known[attr.name() + "_"] = &attr;
    }
  }
  std::istringstream parts(attributes);
  for (std::string part; std::getline(parts, part, ';');) {
    if (Trimmed(part).empty()) continue;
    const size_t equals = std::min(part.find('='), part.size());
    std::string name = Trimmed(part.substr(0, equals));
    if (name.empty() || name.back() != '_') name += '_';
    const auto attr = known.find(name);
    if (attr == known.end()) {
      std::vector<std::string> names;
      for (const auto& [each, unused] : known) names.push_back(each);
      return InvalidArgument(op, " has no attribute \"", name, "\": it has ",
                             absl::StrJoin(names, ", "));
    }
    const std::string text = Trimmed(part.substr(equals).erase(0, 1));
    tf::AttrValue value;
    const std::string wanted = ReadValue(*attr->second, text, &value);
    if (!wanted.empty()) {
      return InvalidArgument("the attribute ", name, " must be ", wanted,
                             ", but is \"", text, "\"");
    }
    if (!attributes_.emplace(attr->second->name(), value).second) {
      return InvalidArgument("the attribute ", name, " is given twice");
    }
  }
  return absl::OkStatus();
}

absl::Status BatchNormGradBlock::Set(const std::string& name, const Pin& pin) {
  TF_RETURN_IF_ERROR(status_);
  if (std::count(inputs_.begin(), inputs_.end(), name) == 0) {
    return InvalidArgument(op_->name(), " has no input \"", name, "\": it has ",
                           absl::StrJoin(inputs_, ", "));
  }
  const auto [found, is_new] = pins_.try_emplace(name);
  Pin& before = found->second;
  if (is_new || before.type() != pin.type() || !(before.output == pin.output)) {
    session_.reset();
  }
  before = pin;
  return absl::OkStatus();
}

absl::Status BatchNormGradBlock::SetInput(const std::string& name,
                                          const tf::Tensor& tensor) {
  return Set(name, {tensor, tf::Output()});
}

absl::Status BatchNormGradBlock::SetInput(const std::string& name,
                                          const tf::Output& output) {
  if (output.node() == nullptr) {
    return InvalidArgument("the input ", name,
                           " was given the output of no operation: look at "
                           "the status of its scope");
  }
  return Set(name, {tf::Tensor(), output});
}

// The session of the scope's graph with the block in it. The scope's own graph
// holds the block until it is copied alone, and its shape inference, whose
// errors would stay with the scope, does not see it: the session infers shapes.
absl::Status BatchNormGradBlock::MakeSession() {
  std::vector<tf::Node*> added;
  const auto add = [&](tf::NodeBuilder& builder) {
    return builder.Finalize(scope_.graph(), &added.emplace_back());
  };
  const auto remove = absl::MakeCleanup([&] {
    for (; !added.empty(); added.pop_back()) {
      if (added.back() != nullptr) scope_.graph()->RemoveNode(added.back());
    }
  });
  tf::NodeBuilder block(name_, op_->name());
  for (const auto& arg : op_->input_arg()) {
    std::vector<tf::NodeBuilder::NodeOut> values;
    const auto pin = pins_.find(arg.name());
    if (pin != pins_.end() && pin->second.output.node() != nullptr) {
      const tf::Output& output = pin->second.output;
      values.emplace_back(output.node(), output.index());
    } else if (pin != pins_.end()) {
      tf::NodeBuilder placeholder(name_ + "/" + arg.name(), "Placeholder");
      placeholder.Attr("dtype", pin->second.type());
      TF_RETURN_IF_ERROR(add(placeholder));
      values.emplace_back(added.back());
    } else if (!IsOptional(arg)) {
      return InvalidArgument("the input ", arg.name(), " of ", op_->name(),
                             " is not set");
    }
    if (IsOptional(arg)) {
      block.Input(values);
    } else {
      block.Input(values.front());
    }
  }
  for (const auto& [name, value] : attributes_) block.Attr(name, value);
  scope_.UpdateBuilder(&block);
  TF_RETURN_IF_ERROR(add(block));
  tf::GraphDef graph;
  TF_RETURN_IF_ERROR(scope_.ToGraphDef(&graph));
  tf::Session* session;
  TF_RETURN_IF_ERROR(tf::NewSession(tf::SessionOptions(), &session));
  std::unique_ptr<tf::Session> owned(session);
  TF_RETURN_IF_ERROR(owned->Create(graph));
  session_ = std::move(owned);
  return absl::OkStatus();
}

absl::Status BatchNormGradBlock::Run() {
  TF_RETURN_IF_ERROR(status_);
  if (session_ == nullptr) TF_RETURN_IF_ERROR(MakeSession());
  std::vector<std::pair<std::string, tf::Tensor>> feeds;
  for (const auto& [name, pin] : pins_) {
    if (pin.output.node() == nullptr) {
      feeds.emplace_back(name_ + "/" + name, pin.tensor);
    }
  }
  std::vector<std::string> fetches;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    fetches.push_back(absl::StrCat(name_, ":", i));
  }
  std::vector<tf::Tensor> values;
  TF_RETURN_IF_ERROR(session_->Run(feeds, fetches, {}, &values));
  for (size_t i = 0; i < outputs_.size(); ++i) {
    results_[outputs_[i]].push_back(values[i]);
  }
  return absl::OkStatus();
}

const std::vector<tf::Tensor>& BatchNormGradBlock::result(
    const std::string& name) const {
  static const auto* const none = new std::vector<tf::Tensor>;
  const auto found = results_.find(name);
  return found == results_.end() ? *none : found->second;
}

}  // namespace tf_bn_ops
