// tf_bn_ops/batch_norm_grad_block.h: attributes are parsed and pins checked by
// the op's OpDef; the graph is built, and a session made, by the first Run()
// and by the first one after a pin changed its type or source.

#include "tf_bn_ops/batch_norm_grad_block.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <locale>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/public/session.h"

namespace tf_bn_ops {
namespace {

namespace tf = ::tensorflow;

constexpr char kPrefix[] = "TfBnOps>";
constexpr const char* kOps[] = {
    "TfBnOps>FusedBatchNorm",
    "TfBnOps>FusedBatchNormV2",
    "TfBnOps>FusedBatchNormV3",
    "TfBnOps>FusedBatchNormEx",
    "TfBnOps>FusedBatchNormGrad",
    "TfBnOps>FusedBatchNormGradV2",
    "TfBnOps>FusedBatchNormGradV3",
    "TfBnOps>BatchNormTrainingBackprop",
    "FusedBatchNorm",
    "FusedBatchNormV2",
    "FusedBatchNormV3",
    "FusedBatchNormGrad",
    "FusedBatchNormGradV2",
    "FusedBatchNormGradV3",
};

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Whether an attribute follows from the pins: a type, or the number of tensors
// of an input that is a list.
bool FollowsFromPins(const tf::OpDef::AttrDef& attr) {
  return attr.type() == "type" || attr.type() == "int";
}

// An input that is a list of tensors: a pin of its own that may stay unset.
bool IsOptional(const tf::OpDef::ArgDef& arg) {
  return !arg.number_attr().empty();
}

// "a", "a or b", "a, b or c"
std::string Listed(const std::vector<std::string>& words,
                   const char* conjunction) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool is_last = i + 1 == words.size();
    if (i > 0) text += is_last ? absl::StrCat(" ", conjunction, " ") : ", ";
    text += words[i];
  }
  return text;
}

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

// Reads the value of an attribute. What it should be, or empty when it is read.
std::string ParseValue(const tf::OpDef::AttrDef& attr, const std::string& text,
                       tf::AttrValue* value) {
  if (attr.type() == "bool") {
    value->set_b(text == "true");
    return text == "true" || text == "false" ? "" : "true or false";
  }
  if (attr.type() == "string") {
    const auto& list = attr.allowed_values().list().s();
    const std::vector<std::string> allowed(list.begin(), list.end());
    value->set_s(text);
    return std::count(list.begin(), list.end(), text) > 0
               ? ""
               : Listed(allowed, "or");
  }
  double number;
  if (!ReadNumber(text, &number)) return "a number";
  if (attr.type() == "tensor") {  // epsilon, a scalar of type double
    tf::Tensor(number).AsProtoField(value->mutable_tensor());
    return "";
  }
  value->set_f(static_cast<float>(number));
  return std::isfinite(value->f()) ? "" : "a number that a float can hold";
}

// Reads `text`, the attributes of `op` as name=value, separated by semicolons.
// Names may have an underscore at the end.
absl::Status ParseAttributes(const tf::OpDef& op, const std::string& text,
                             std::map<std::string, tf::AttrValue>* attributes) {
  std::vector<const tf::OpDef::AttrDef*> known;
  std::vector<std::string> names;
  for (const auto& attr : op.attr()) {
    if (FollowsFromPins(attr)) continue;
    known.push_back(&attr);
    names.push_back(attr.name() + "_");
  }
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) {
    part = Trimmed(part);
    if (part.empty() && parts.eof()) break;  // blanks at the end
    const size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgument(
          "attributes must be name=value, separated by semicolons, as in "
          "epsilon_=0.001;data_format_=NCHW;is_training_=true, but one is \"",
          part, "\"");
    }
    const std::string given = Trimmed(part.substr(0, equals));
    const std::string value = Trimmed(part.substr(equals + 1));
    const auto attr =
        std::find_if(known.begin(), known.end(), [&](const auto* one) {
          return given == one->name() || given == one->name() + "_";
        });
    if (attr == known.end()) {
      return InvalidArgument(op.name(), " has no attribute \"", given,
                             "\": it has ", Listed(names, "and"));
    }
    const auto [parsed, is_first] = attributes->try_emplace((*attr)->name());
    if (!is_first) {
      return InvalidArgument("the attribute ", given, " is given twice");
    }
    const std::string wanted = ParseValue(**attr, value, &parsed->second);
    if (!wanted.empty()) {
      return InvalidArgument("the attribute ", given, " must be ", wanted,
                             ", but is \"", value, "\"");
    }
  }
  for (const auto* attr : known) {
    if (attr->has_default_value() || attributes->count(attr->name()) > 0) {
      continue;
    }
    return InvalidArgument("the attribute ", attr->name(), "_ of ", op.name(),
                           " is missing: it has no default");
  }
  return absl::OkStatus();
}

const std::vector<tf::Tensor>& NoTensors() {
  static const auto* const none = new std::vector<tf::Tensor>;
  return *none;
}

}  // namespace

class BatchNormGradBlock::Impl {
 public:
  // The value of an input: an output of the graph, or else a tensor.
  struct Pin {
    tf::DataType type;
    tf::Tensor tensor;
    tf::Output output;
  };

  Impl(const tf::Scope& scope, const std::string& op,
       const std::string& attributes)
      : scope_(scope.NewSubScope(op.substr(op.rfind('>') + 1))) {
    status_ = Init(op, attributes);
  }

  const absl::Status& status() const { return status_; }
  const std::vector<std::string>& input_names() const { return input_names_; }
  const std::vector<std::string>& output_names() const { return output_names_; }

  absl::Status SetInput(const std::string& name, const Pin& pin) {
    TF_RETURN_IF_ERROR(status_);
    const tf::OpDef::ArgDef* found = nullptr;
    for (const auto& arg : op_.input_arg()) {
      if (arg.name() == name) found = &arg;
    }
    if (found == nullptr) {
      return InvalidArgument(op_.name(), " has no input \"", name,
                             "\": it has ", Listed(input_names_, "and"));
    }
    const std::vector<tf::DataType> types = AllowedTypes(*found);
    if (std::count(types.begin(), types.end(), pin.type) == 0) {
      std::vector<std::string> names;
      for (tf::DataType type : types) names.push_back(tf::DataTypeString(type));
      return InvalidArgument("the input ", name, " of ", op_.name(),
                             " must be ", Listed(names, "or"), ", but is ",
                             tf::DataTypeString(pin.type));
    }
    const auto before = pins_.find(name);
    if (before == pins_.end() || before->second.type != pin.type ||
        !(before->second.output == pin.output)) {
      RemoveNodes();
    }
    pins_[name] = pin;
    return absl::OkStatus();
  }

  absl::Status Run() {
    TF_RETURN_IF_ERROR(status_);
    TF_RETURN_IF_ERROR(CheckPins());
    if (session_ == nullptr) {
      const absl::Status built = Build();
      if (!built.ok()) {
        RemoveNodes();
        return built;
      }
    }
    std::vector<std::pair<std::string, tf::Tensor>> feeds;
    for (const auto& [name, placeholder] : placeholders_) {
      feeds.emplace_back(placeholder->name(), pins_.at(name).tensor);
    }
    std::vector<std::string> fetches;
    for (size_t i = 0; i < output_names_.size(); ++i) {
      fetches.push_back(absl::StrCat(node_->name(), ":", i));
    }
    std::vector<tf::Tensor> outputs;
    TF_RETURN_IF_ERROR(session_->Run(feeds, fetches, {}, &outputs));
    for (size_t i = 0; i < output_names_.size(); ++i) {
      results_[output_names_[i]].push_back(outputs[i]);
    }
    return absl::OkStatus();
  }

  const std::vector<tf::Tensor>& result(const std::string& name) const {
    const auto found = results_.find(name);
    return found == results_.end() ? NoTensors() : found->second;
  }

  void ClearResults() { results_.clear(); }

 private:
  absl::Status Init(const std::string& op, const std::string& attributes) {
    const std::vector<std::string> ops(std::begin(kOps), std::end(kOps));
    if (std::count(ops.begin(), ops.end(), op) == 0) {
      return absl::NotFoundError(absl::StrCat("there is no block for the op \"",
                                              op, "\": there is one for ",
                                              Listed(ops, "and")));
    }
    if (op.rfind(kPrefix, 0) == 0) TF_RETURN_IF_ERROR(LoadOpLibrary());
    const tf::OpDef* def;
    TF_RETURN_IF_ERROR(tf::OpRegistry::Global()->LookUpOpDef(op, &def));
    op_ = *def;
    for (const auto& arg : op_.input_arg()) input_names_.push_back(arg.name());
    for (const auto& arg : op_.output_arg()) {
      output_names_.push_back(arg.name());
    }
    return ParseAttributes(op_, attributes, &attributes_);
  }

  // The types that an input may have.
  std::vector<tf::DataType> AllowedTypes(const tf::OpDef::ArgDef& arg) const {
    if (arg.type_attr().empty()) return {arg.type()};
    std::vector<tf::DataType> types;
    for (const auto& attr : op_.attr()) {
      if (attr.name() != arg.type_attr()) continue;
      for (int type : attr.allowed_values().list().type()) {
        types.push_back(static_cast<tf::DataType>(type));
      }
    }
    return types;
  }

  // All pins are set, and those that must share a type do.
  absl::Status CheckPins() const {
    std::vector<std::string> missing;
    std::map<std::string, std::string> first_of_type;  // type attr -> input
    for (const auto& arg : op_.input_arg()) {
      const auto pin = pins_.find(arg.name());
      if (pin == pins_.end()) {
        if (!IsOptional(arg)) missing.push_back(arg.name());
        continue;
      }
      if (arg.type_attr().empty()) continue;
      const std::string& first =
          first_of_type.emplace(arg.type_attr(), arg.name()).first->second;
      if (pins_.at(first).type != pin->second.type) {
        return InvalidArgument("the inputs ", first, " and ", arg.name(),
                               " of ", op_.name(),
                               " must have one type, but are ",
                               tf::DataTypeString(pins_.at(first).type),
                               " and ", tf::DataTypeString(pin->second.type));
      }
    }
    if (!missing.empty()) {
      return InvalidArgument(missing.size() == 1 ? "the input " : "the inputs ",
                             Listed(missing, "and"), " of ", op_.name(),
                             missing.size() == 1 ? " is" : " are", " not set");
    }
    return absl::OkStatus();
  }

  // Adds the nodes to the scope's graph and makes a session of the graph.
  //
  // Nodes are not shown to the scope's shape inference, whose errors would
  // stay with the scope: the session infers shapes anyway.
  absl::Status Build() {
    tf::NodeBuilder builder(scope_.GetUniqueNameForOp("block"), op_.name());
    for (const auto& arg : op_.input_arg()) {
      std::vector<tf::NodeBuilder::NodeOut> values;
      const auto pin = pins_.find(arg.name());
      if (pin != pins_.end()) {
        TF_RETURN_IF_ERROR(ValueOf(*pin, &values.emplace_back()));
      }
      if (IsOptional(arg)) {
        builder.Input(values);
      } else {
        builder.Input(values.front());
      }
    }
    for (const auto& [name, value] : attributes_) builder.Attr(name, value);
    scope_.UpdateBuilder(&builder);
    TF_RETURN_IF_ERROR(builder.Finalize(scope_.graph(), &node_));
    tf::GraphDef graph;
    TF_RETURN_IF_ERROR(scope_.ToGraphDef(&graph));
    session_.reset(tf::NewSession(tf::SessionOptions()));
    if (session_ == nullptr) {
      return absl::InternalError("TensorFlow has no session for this machine");
    }
    return session_->Create(graph);
  }

  // The value of a pin in the graph; for a tensor a placeholder is added.
  absl::Status ValueOf(const std::pair<const std::string, Pin>& named,
                       tf::NodeBuilder::NodeOut* value) {
    const auto& [name, pin] = named;
    if (pin.output.node() != nullptr) {
      *value = {pin.output.node(), pin.output.index()};
      return absl::OkStatus();
    }
    tf::Node*& placeholder = placeholders_[name];
    placeholder = nullptr;
    TF_RETURN_IF_ERROR(
        tf::NodeBuilder(scope_.GetUniqueNameForOp(name), "Placeholder")
            .Attr("dtype", pin.type)
            .Finalize(scope_.graph(), &placeholder));
    *value = {placeholder, 0};
    return absl::OkStatus();
  }

  void RemoveNodes() {
    session_.reset();
    if (node_ != nullptr) scope_.graph()->RemoveNode(node_);
    node_ = nullptr;
    for (const auto& [name, placeholder] : placeholders_) {
      if (placeholder != nullptr) scope_.graph()->RemoveNode(placeholder);
    }
    placeholders_.clear();
  }

  const tf::Scope scope_;
  absl::Status status_;
  tf::OpDef op_;
  std::vector<std::string> input_names_;
  std::vector<std::string> output_names_;
  std::map<std::string, tf::AttrValue> attributes_;
  std::map<std::string, Pin> pins_;
  std::map<std::string, std::vector<tf::Tensor>> results_;
  // Of the last Build(); session_ is null if one is due.
  tf::Node* node_ = nullptr;
  std::map<std::string, tf::Node*> placeholders_;  // of pins that are tensors
  std::unique_ptr<tf::Session> session_;
};

BatchNormGradBlock::BatchNormGradBlock(const tf::Scope& scope,
                                       const std::string& op,
                                       const std::string& attributes)
    : impl_(new Impl(scope, op, attributes)) {}

BatchNormGradBlock::~BatchNormGradBlock() = default;

const absl::Status& BatchNormGradBlock::status() const {
  return impl_->status();
}

const std::vector<std::string>& BatchNormGradBlock::input_names() const {
  return impl_->input_names();
}

const std::vector<std::string>& BatchNormGradBlock::output_names() const {
  return impl_->output_names();
}

absl::Status BatchNormGradBlock::SetInput(const std::string& name,
                                          const tf::Tensor& tensor) {
  return impl_->SetInput(name, {tensor.dtype(), tensor, tf::Output()});
}

absl::Status BatchNormGradBlock::SetInput(const std::string& name,
                                          const tf::Output& output) {
  if (output.node() == nullptr) {
    return InvalidArgument("the input ", name,
                           " was given the output of no operation: look at "
                           "the status of its scope");
  }
  return impl_->SetInput(name, {output.type(), tf::Tensor(), output});
}

absl::Status BatchNormGradBlock::Run() { return impl_->Run(); }

const std::vector<tf::Tensor>& BatchNormGradBlock::result(
    const std::string& name) const {
  return impl_->result(name);
}

void BatchNormGradBlock::ClearResults() { impl_->ClearResults(); }

}  // namespace tf_bn_ops
