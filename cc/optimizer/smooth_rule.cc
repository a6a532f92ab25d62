// The rules of smooth activations, which TensorFlow and Keras write as several
// elementwise ops, in many forms: tf.nn.silu with the gradient that it defines
// itself, x * sigmoid(x), x * relu6(x + 3) / 6, and what grappler makes of
// them.
//
// No form is matched. What elementwise ops compute of y, the output of a norm
// or the sum of that and another tensor, is evaluated for some y: forward it is
// the activation, backward, of y and the gradient g that arrives, g times its
// derivative, or something else. The derivative is fused first, since it reads
// y, which the fused op has no more.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cc/core/formulas/smooth_activation.h"
#include "cc/optimizer/fuser.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::NodeDef;

// y, on both sides of where a piece of an activation ends, and g.
constexpr int kSamples = 24;
using Numbers = std::array<double, kSamples>;
constexpr Numbers kY = {-1000, -30,  -9,   -6.1, -4,  -3.01, -2.99, -2.5,
                        -1.3,  -0.7, -0.1, 0,    0.2, 0.9,   1.7,   2.5,
                        2.99,  3.01, 3.7,  5.2,  6.5, 9,     30,    1000};
constexpr Numbers kG = {1.3,  -0.7, 2.1, 0.4,  -1.9, 0.6,  1.1,  -1.4,
                        0.8,  -0.5, 1.6, -2.2, 0.9,  1.7,  -0.3, 0.5,
                        -1.2, 1.9,  0.7, -0.8, 1.4,  -1.1, 2.3,  -0.6};

double Sigmoid(double v) {
  const double e = ExpOfMinusAbs(v);
  return v < 0 ? e / (1 + e) : 1 / (1 + e);
}
double Relu6(double v) { return std::fmin(std::fmax(v, 0), 6); }

double ValueOf(const std::string& activation, double v) {
  return activation == "Silu" ? Silu::Value(v) : HardSilu::Value(v);
}
double SlopeOf(const std::string& activation, double v) {
  return activation == "Silu" ? Silu::Slope(v) : HardSilu::Slope(v);
}

// The relative error of a constant such as 1/6.
double ToleranceOf(tensorflow::DataType type) {
  return type == tensorflow::DT_BFLOAT16 ? 1e-2
         : type == tensorflow::DT_HALF   ? 1e-3
                                         : 1e-5;
}

// A constant with one element; tf.nn.silu casts its beta.
std::optional<double> NumberOf(const IndexedGraph& graph, const NodeDef& node) {
  if (node.op() == "Cast") {
    const NodeDef* const constant = graph.Producer(node, 0);
    return constant == nullptr || constant->op() != "Const"
               ? std::nullopt
               : NumberOf(graph, *constant);
  }
  const auto found = node.attr().find("value");
  tensorflow::Tensor tensor;
  if (node.op() != "Const" || found == node.attr().end() ||
      !tensor.FromProto(found->second.tensor()) || tensor.NumElements() != 1 ||
      tensor.dims() > 4) {
    return std::nullopt;
  }
  switch (tensor.dtype()) {
    case tensorflow::DT_FLOAT:
      return tensor.flat<float>()(0);
    case tensorflow::DT_HALF:
      return static_cast<float>(tensor.flat<Eigen::half>()(0));
    case tensorflow::DT_BFLOAT16:
      return static_cast<float>(tensor.flat<Eigen::bfloat16>()(0));
    default:
      return std::nullopt;
  }
}

// An elementwise op of numbers; nothing for other ops.
std::optional<double> Apply(const std::string& op,
                            const std::vector<double>& in) {
  const size_t n = in.size();
  if (op == "AddN") {
    double sum = 0;
    for (const double each : in) sum += each;
    return sum;
  }
  if (n == 1) {
    const double v = in[0];
    if (op == "Identity") return v;
    if (op == "Neg") return -v;
    if (op == "Square") return v * v;
    if (op == "Sigmoid") return Sigmoid(v);
    if (op == "Relu6") return Relu6(v);
    if (op == "_MklSwish") return v * Sigmoid(v);
  } else if (n == 2) {
    const double a = in[0], b = in[1];
    if (IsOneOf(op, {"Add", "AddV2"})) return a + b;
    if (op == "Sub") return a - b;
    if (op == "Mul") return a * b;
    if (op == "RealDiv") return a / b;
    if (op == "Maximum") return std::fmax(a, b);
    if (op == "Minimum") return std::fmin(a, b);
    if (op == "SigmoidGrad") return b * a * (1 - a);
    if (op == "Relu6Grad") return b > 0 && b < 6 ? a : 0;
  }
  return std::nullopt;
}

bool IsElementwise(const NodeDef& node) {
  const size_t inputs = DataInputs(node).size();
  return inputs > 0 &&
         Apply(node.op(), std::vector<double>(inputs)).has_value();
}

// What `of` is of y by elementwise ops, and of at most one other tensor.
class Expression {
 public:
  // `scaled`: the other tensor is looked for behind products with constants,
  // which the gradient of x * relu6(x + 3) / 6 begins with.
  Expression(const IndexedGraph& graph, const FusionOptions& options,
             const TensorName& y, const TensorName& of, bool scaled = false)
      : graph_(graph), options_(options), y_(y), scaled_(scaled) {
    FindNearest(of);
    if (DependsOnY(of)) values_ = Evaluate(of);
  }

  // The activation whose value it is, or g times whose derivative; empty if it
  // is none.
  std::string Activation(bool slope, double tolerance) const {
    if (!values_.has_value() || slope != other_.has_value()) return "";
    for (const char* const each : {"Silu", "HardSilu"}) {
      bool is_equal = true;
      for (int i = 0; i < kSamples; ++i) {
        const double want =
            slope ? kG[i] * SlopeOf(each, kY[i]) : ValueOf(each, kY[i]);
        is_equal &= std::fabs((*values_)[i] - want) <=
                    tolerance * (1 + std::fabs(want));
      }
      if (is_equal) return each;
    }
    return "";
  }
  // g.
  const TensorName& other() const { return *other_; }
  // The nodes that depend on y, those that others read first.
  const std::vector<NodeDef*>& nodes() const { return nodes_; }
  // The product that a tensor is but for sums over no axes, behind these.
  std::vector<NodeDef*> Product(const TensorName& tensor) const {
    std::vector<NodeDef*> path = {graph_.Find(tensor.node)};
    while (const NodeDef* const sum = Unbroadcast(*path.back())) {
      path.push_back(graph_.Find(sum->name()));
      path.push_back(graph_.Producer(*sum, 0));
    }
    return path;
  }

 private:
  // More than any form has, so that a graph is looked at in linear time.
  static constexpr size_t kMostNodes = 48;

  // What a node computes is its only input, whose sum over no axes it is.
  const NodeDef* Unbroadcast(const NodeDef& node) const {
    const NodeDef* const sum =
        node.op() == "Reshape" ? graph_.Producer(node, 0) : nullptr;
    const NodeDef* const axes = sum != nullptr && sum->op() == "Sum"
                                    ? graph_.Producer(*sum, 1)
                                    : nullptr;
    const bool is_one =
        axes != nullptr && axes->op() == "BroadcastGradientArgs" &&
        options_.same_shape({node.name(), 0}, y_) &&
        options_.same_shape(TensorName::Parse(sum->input(0)), y_);
    return is_one ? sum : nullptr;
  }

  // Of a product of its first input and a constant the latter.
  std::optional<double> FactorOf(const NodeDef& node) const {
    if (!IsOneOf(node.op(), {"Mul", "RealDiv"})) return std::nullopt;
    const NodeDef* const second = graph_.Producer(node, 1);
    const auto number =
        second == nullptr ? std::nullopt : NumberOf(graph_, *second);
    if (!number.has_value() || node.op() == "Mul") return number;
    return 1 / *number;
  }

  // Breadth first: g may come by a long chain of additions.
  void FindNearest(const TensorName& of) {
    std::vector<TensorName> open = {of};
    for (size_t i = 0; i < open.size() && nearest_.size() < kMostNodes; ++i) {
      const NodeDef* const node = graph_.Find(open[i].node);
      if (open[i] == y_ || node == nullptr ||
          !(IsElementwise(*node) || Unbroadcast(*node) != nullptr) ||
          !nearest_.insert(node->name()).second) {
        continue;
      }
      if (const NodeDef* const sum = Unbroadcast(*node)) {
        open.push_back(TensorName::Parse(sum->input(0)));
        continue;
      }
      for (const std::string& input : DataInputs(*node)) {
        open.push_back(TensorName::Parse(input));
      }
    }
  }

  bool DependsOnY(const TensorName& tensor) {
    if (tensor == y_) return true;
    if (tensor.port != 0) return false;
    const auto found = depends_.find(tensor.node);
    if (found != depends_.end()) return found->second;
    if (nearest_.count(tensor.node) == 0) return false;
    bool& depends = depends_[tensor.node];
    depends = false;
    NodeDef* const node = graph_.Find(tensor.node);
    if (node == nullptr) return false;
    bool result = false;
    if (const NodeDef* const sum = Unbroadcast(*node)) {
      result = DependsOnY(TensorName::Parse(sum->input(0)));
    } else if (IsElementwise(*node)) {
      for (const std::string& input : DataInputs(*node)) {
        result |= DependsOnY(TensorName::Parse(input));
      }
    }
    if (result) nodes_.insert(nodes_.begin(), node);
    return depends_[tensor.node] = result;
  }

  std::optional<Numbers> Evaluate(const TensorName& tensor) {
    if (tensor == y_) return kY;
    const NodeDef* const node = graph_.Find(tensor.node);
    if (!DependsOnY(tensor)) {
      const auto number =
          node == nullptr ? std::nullopt : NumberOf(graph_, *node);
      if (number.has_value()) {
        Numbers all;
        all.fill(*number);
        return all;
      }
      const auto factor =
          scaled_ && node != nullptr ? FactorOf(*node) : std::nullopt;
      if (factor.has_value()) {
        auto numbers = Evaluate(TensorName::Parse(node->input(0)));
        if (!numbers.has_value()) return std::nullopt;
        for (double& each : *numbers) each *= *factor;
        return numbers;
      }
      if (other_.has_value() && !(*other_ == tensor)) return std::nullopt;
      other_ = tensor;
      return kG;
    }
    const auto found = evaluated_.find(tensor.node);
    if (found != evaluated_.end()) return found->second;
    std::optional<Numbers> result;
    if (const NodeDef* const sum = Unbroadcast(*node)) {
      result = Evaluate(TensorName::Parse(sum->input(0)));
    } else {
      std::vector<Numbers> inputs;
      for (const std::string& input : DataInputs(*node)) {
        const auto of_input = Evaluate(TensorName::Parse(input));
        if (!of_input.has_value()) return std::nullopt;
        inputs.push_back(*of_input);
      }
      Numbers numbers;
      for (int i = 0; i < kSamples; ++i) {
        std::vector<double> in;
        for (const Numbers& each : inputs) in.push_back(each[i]);
        numbers[i] = *Apply(node->op(), in);
      }
      result = numbers;
    }
    return evaluated_[tensor.node] = result;
  }

  const IndexedGraph& graph_;
  const FusionOptions& options_;
  const TensorName y_;
  const bool scaled_;
  std::set<std::string> nearest_;
  std::map<std::string, bool> depends_;
  std::map<std::string, std::optional<Numbers>> evaluated_;
  std::optional<TensorName> other_;
  std::vector<NodeDef*> nodes_;
  std::optional<Numbers> values_;
};

bool IsShapeReader(const NodeDef& node) {
  return IsOneOf(node.op(), {"Shape", "ShapeN", "Size", "Rank"});
}

double ToleranceFor(const NodeDef& norm) {
  const auto found = norm.attr().find("T");
  return ToleranceOf(found == norm.attr().end() ? tensorflow::DT_FLOAT
                                                : found->second.type());
}

}  // namespace

void Fuser::FuseSmooth() {
  for (int i = 0; i < graph_.size(); ++i) {
    NodeDef* const gradient = graph_.node(i);
    if (!IsGradient(*gradient)) continue;
    // The norm that keeps what the gradient reads.
    NodeDef* norm = nullptr;
    for (const int input : {kGradReserveSpace3, kGradReserveSpace2}) {
      NodeDef* const producer = graph_.Producer(*gradient, input);
      if (norm == nullptr && producer != nullptr && IsNorm(*producer)) {
        norm = producer;
      }
    }
    if (norm == nullptr) continue;
    for (const Chain& forward : ChainsFrom(norm)) {
      if (FuseSmoothBackward(forward, gradient)) break;
    }
  }
  for (int i = 0; i < graph_.size(); ++i) {
    NodeDef* const norm = graph_.node(i);
    if (!IsNorm(*norm)) continue;
    for (const Chain& chain : ChainsFrom(norm)) {
      if (FuseSmoothForward(chain)) break;
    }
  }
}

// What an activation may be applied to: the norm, and sums of it and another
// tensor.
std::vector<Chain> Fuser::ChainsFrom(NodeDef* norm) {
  std::vector<Chain> result = {{{norm}}};
  for (const IndexedGraph::Consumer& each : graph_.Consumers(norm->name())) {
    if (each.port == 0 && IsAddition(*each.node) &&
        !SameTensor(*each.node, 0, *each.node, 1)) {
      result.push_back({{norm, each.node}, 1 - each.input});
    }
  }
  return result;
}

// Removes nodes that nothing reads any more; those that others read come first.
void Fuser::RemoveUnread(const std::vector<NodeDef*>& nodes,
                         const std::string& by) {
  for (NodeDef* const node : nodes) {
    const bool is_kept = graph_.Find(node->name()) != node ||
                         options_.preserved.count(node->name()) != 0 ||
                         graph_.NumConsumers(node->name()) != 0;
    if (!is_kept) Replace(node, by);
  }
}

// In the body of a function what nothing reads is not computed, such as the
// gradient by tf.nn.silu's beta.
void Fuser::RemoveDead(NodeDef* node) {
  if (options_.preserved.count(node->name()) != 0 ||
      !(IsElementwise(*node) ||
        IsOneOf(node->op(), {"Sum", "Reshape", "ZerosLike"}))) {
    return;
  }
  for (const IndexedGraph::Consumer& each : graph_.Consumers(node->name())) {
    if (graph_.Find(each.node->name()) == each.node) RemoveDead(each.node);
  }
  if (graph_.NumConsumers(node->name()) == 0) Replace(node, "");
}

void Fuser::RemoveDeadReaders(const NodeDef& source) {
  if (!options_.dangling_is_dead) return;
  for (const IndexedGraph::Consumer& each : graph_.Consumers(source.name())) {
    const bool is_there = graph_.Find(each.node->name()) == each.node;
    if (is_there && each.port == 0) RemoveDead(each.node);
  }
}

// tf.nn.silu ends in an IdentityN of its result and its arguments, which has
// the gradient.
void Fuser::BypassIdentityN(const NodeDef& source) {
  for (const IndexedGraph::Consumer& each : graph_.Consumers(source.name())) {
    NodeDef* const identity = each.node;
    if (identity->op() != "IdentityN" || each.port != 0 ||
        identity->attr().count("_gradient_op_type") == 0 ||
        graph_.Find(identity->name()) != identity ||
        options_.preserved.count(identity->name()) != 0) {
      continue;
    }
    std::map<int, TensorName> moved;
    for (const std::string& input : DataInputs(*identity)) {
      moved.emplace(moved.size(), TensorName::Parse(input));
    }
    const TensorName first = moved.at(0);
    bool has_control = !ControlInputs({identity}).empty();
    graph_.HasConsumer(identity->name(), [&](const auto& consumer) {
      return has_control |= consumer.port == TensorName::kControl;
    });
    if (has_control) continue;
    MoveConsumers(identity->name(), first.node, moved);
    Replace(identity, first.node);
  }
}

// Whether `gradient` reads y_backprop times the derivative of an activation at
// what `chain` ends in: it is fused then, or refused.
bool Fuser::FuseSmoothBackward(Chain chain, NodeDef* gradient) {
  const TensorName y = {chain.last()->name(), 0};
  for (const bool scaled : {false, true}) {
    const TensorName of = TensorName::Parse(gradient->input(0));
    const Expression expression(graph_, options_, y, of, scaled);
    chain.smooth =
        expression.Activation(/*slope=*/true, ToleranceFor(*chain.first()));
    if (chain.smooth.empty()) continue;
    chain.nodes.push_back(gradient);
    chain.inner = expression.nodes();
    const std::vector<NodeDef*> product = expression.Product(of);
    const std::string refusal =
        SlopeRefusal(chain, expression.other(), product);
    fusions_.push_back({gradient->name(), /*is_backward=*/true, refusal});
    if (refusal.empty()) {
      FuseSlope(chain, expression.other(), *product.back());
    }
    return true;
  }
  return false;
}

std::string Fuser::SlopeRefusal(const Chain& chain,
                                const TensorName& y_backprop,
                                std::vector<NodeDef*> product) {
  const NodeDef &norm = *chain.first(), &gradient = *chain.last();
  // As the norm saves them, or as it was given them.
  const auto is_norms = [&](int input) {
    return TensorName::Parse(gradient.input(input)) ==
               TensorName{norm.name(), input} ||
           (!IsTraining(norm) && SameTensor(gradient, input, norm, input));
  };
  const std::string refusal = NodeRefusal(gradient);
  if (!refusal.empty()) return refusal;
  if (!SameTensor(gradient, kGradX, norm, kX) ||
      !SameTensor(gradient, kGradScale, norm, kScale) ||
      IsTraining(gradient) != IsTraining(norm) ||
      !is_norms(kGradReserveSpace2 - 1) || !is_norms(kGradReserveSpace2)) {
    return "it is not the gradient of " + norm.name();
  }
  if (!options_.same_shape(y_backprop, TensorName::Parse(norm.input(kX)))) {
    return y_backprop.ToInput() + " is not known to have the shape of " +
           norm.input(kX);
  }
  if (chain.addition() == nullptr) return "";
  product.push_back(chain.last());
  return graph_.WouldBeOnCycles({product})[0]
             ? "its other inputs depend on " + y_backprop.node
             : ShapeRefusal(chain);
}

// The gradient of a norm reads `product`, which inner nodes compute: y_backprop
// times the derivative of an activation. That is side_input_backprop, too.
void Fuser::FuseSlope(const Chain& chain, const TensorName& y_backprop,
                      const NodeDef& product) {
  const NodeDef& norm = *chain.first();
  NodeDef* const gradient = chain.last();
  const NodeDef* const addition = chain.addition();
  std::vector<NodeDef*> removed = {gradient};
  for (NodeDef* const node : chain.inner) removed.push_back(node);
  std::vector<std::string> inputs = DataInputs(*gradient);
  const bool has_third = inputs.size() > kGradReserveSpace3;
  inputs.resize(kGradInputs);
  inputs[kGradYBackprop] = y_backprop.ToInput();
  // What TensorFlow's older norms have no output for is no coefficients.
  inputs.push_back(has_third
                       ? TensorName{norm.name(), kForwardCoefficients}.ToInput()
                       : inputs[kGradReserveSpace2]);
  inputs.push_back(norm.input(kOffset));
  // In the place of y the side input; without one it is not read.
  inputs.push_back(addition != nullptr ? addition->input(chain.side_input)
                                       : inputs[kGradX]);
  // What a removed node waits for, unless the gradient waits for it anyway.
  for (const std::string& control : ControlInputs(removed)) {
    if (control != "^" + y_backprop.node) inputs.push_back(control);
  }
  NodeDef node;
  CopyAttrs(*gradient, {"T", "U", "epsilon", "data_format", "is_training"},
            &node);
  (*node.mutable_attr())["U"].set_type(tensorflow::DT_FLOAT);
  (*node.mutable_attr())["activation_mode"].set_s(chain.smooth);
  (*node.mutable_attr())["num_side_inputs"].set_i(addition != nullptr);
  graph_.SetInputs(gradient, inputs);
  gradient->set_op(kFusedBackward);
  gradient->mutable_attr()->swap(*node.mutable_attr());
  if (addition != nullptr) {
    MoveConsumers(product.name(), product.name(),
                  {{0, TensorName{gradient->name(), kSideInputBackprop}}});
  }
  RemoveUnread(chain.inner, gradient->name());
}

// Whether an activation is applied to what `chain` ends in: it is fused then,
// or refused, or was dead.
bool Fuser::FuseSmoothForward(Chain chain) {
  NodeDef* const norm = chain.first();
  NodeDef* const source = chain.last();
  const TensorName y = {source->name(), 0};
  const auto is_product = [](const NodeDef& node) {
    return IsOneOf(node.op(), {"Mul", "RealDiv", "_MklSwish"});
  };
  // The product with y, or what that is multiplied by a constant.
  std::vector<NodeDef*> ends;
  for (const IndexedGraph::Consumer& each : graph_.Consumers(source->name())) {
    if (each.port != 0 || !is_product(*each.node)) continue;
    ends.push_back(each.node);
    for (const auto& next : graph_.Consumers(each.node->name())) {
      if (next.port == 0 && is_product(*next.node)) ends.push_back(next.node);
    }
  }
  for (NodeDef* const end : ends) {
    const Expression expression(graph_, options_, y, {end->name(), 0});
    chain.smooth = expression.Activation(/*slope=*/false, ToleranceFor(*norm));
    if (chain.smooth.empty()) continue;
    RemoveDeadReaders(*source);
    BypassIdentityN(*source);
    RemoveDeadReaders(*source);
    if (graph_.Find(end->name()) != end) return true;  // It was dead itself.
    chain.nodes.push_back(end);
    for (NodeDef* const node : expression.nodes()) {
      if (node != end && graph_.Find(node->name()) == node) {
        chain.inner.push_back(node);
      }
    }
    const std::string refusal = SmoothRefusal(chain);
    fusions_.push_back({norm->name(), /*is_backward=*/false, refusal});
    if (!refusal.empty()) return true;
    // What is read of them but by themselves is their shape.
    const TensorName x = TensorName::Parse(norm->input(kX));
    for (NodeDef* const node : chain.inner) {
      for (const auto& each : graph_.Consumers(node->name())) {
        if (IsShapeReader(*each.node)) {
          graph_.SetInput(each.node, each.input, x);
        }
      }
    }
    FuseForward(chain);
    RemoveUnread(chain.inner, end->name());
    return true;
  }
  return false;
}

std::string Fuser::SmoothRefusal(const Chain& chain) {
  std::vector<NodeDef*> removed(chain.nodes.begin(), chain.nodes.end() - 1);
  removed.insert(removed.end(), chain.inner.begin(), chain.inner.end());
  std::string refusal = NodeRefusal(*chain.first());
  for (const NodeDef* const node : removed) {
    if (!refusal.empty()) return refusal;
    if (options_.preserved.count(node->name()) != 0) {
      return node->name() + " is kept by name";
    }
    if (node->device() != chain.last()->device()) {
      return node->name() + " and " + chain.last()->name() +
             " are on different devices";
    }
    graph_.HasConsumer(node->name(), [&](const IndexedGraph::Consumer& other) {
      const bool is_own = other.node == chain.last() ||
                          std::find(removed.begin(), removed.end(),
                                    other.node) != removed.end() ||
                          IsShapeReader(*other.node);
      if (other.port == TensorName::kControl) {
        refusal =
            other.node->name() + " has a control edge from " + node->name();
      } else if (other.port == 0 && !is_own) {
        refusal = other.node->name() + " reads " + node->name() + " too";
      }
      return !refusal.empty();
    });
  }
  std::vector<NodeDef*> behind = chain.inner;
  behind.push_back(chain.last());
  for (const std::string& control : ControlInputs(behind)) {
    refusal = "what " + control.substr(1) +
              " computes is waited for, and may depend on its other outputs";
  }
  if (!refusal.empty()) return refusal;
  if (chain.addition() != nullptr &&
      graph_.WouldBeOnCycles({{chain.first(), chain.addition()}})[0]) {
    return "what is added depends on its other outputs";
  }
  return ShapeRefusal(chain);
}

}  // namespace tf_bn_ops
