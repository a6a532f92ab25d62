// The rules of smooth activations, which TensorFlow and Keras write as several
// elementwise ops, in many forms: tf.nn.silu with the gradient that it defines
// itself, x * sigmoid(x), x * relu6(x + 3) / 6, max(x, 0.2 * x), and what
// grappler makes of them.
//
// No form is matched. What elementwise ops compute of y, the output of a norm
// or the sum of that and another tensor, is evaluated in double for some y:
// forward it is the activation, backward, of y and the gradient g that arrives,
// g times its derivative, or something else. Only the same function of reals is
// fused: a factor of y that is the next number beside 1 in float32 changes
// values by a thousand units in the last place. The derivative is fused first,
// since it reads y, which the fused op has no more.

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/formulas/smooth_activation.h"
#include "cc/tf/ops/op_signature.h"
#include "cc/tf/optimizer/fuser.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_bn_ops {
namespace {

using ::tensorflow::NodeDef;

// |y|: on both sides of where a piece of an activation ends, and beyond where a
// clamp would be.
constexpr double kMagnitudes[] = {
    1e30, 6e4, 1000, 300, 100,  60,   30,        20,        15,
    12,   9,   6.1,  5,   4,    3.5,  3 + 1e-12, 3 - 1e-12, 2.5,
    1.7,  0.9, 0.3,  0.1, 1e-3, 1e-8, 1e-30};
// And densely from 0.1 to 12.5, where activations bend: with the others alone
// a function that differs from 1.8 to 2.4 was fused, 0.19 off.
constexpr int kDense = 100;
constexpr double kDenseRatio = 1.05;
constexpr int kSparse = std::size(kMagnitudes);
constexpr int kSamples = 2 * (kSparse + kDense);
using Numbers = std::array<double, kSamples>;

constexpr Numbers SamplesOfY() {
  Numbers y{};
  double dense = 0.1;
  for (int i = 0; i < kSparse + kDense; ++i) {
    const double magnitude =
        i < kSparse ? kMagnitudes[i] : dense *= kDenseRatio;
    y[2 * i] = magnitude;
    y[2 * i + 1] = -magnitude;
  }
  return y;
}

constexpr Numbers SamplesOfG() {
  constexpr double kFew[] = {1.3, -0.7, 2.1, 0.4, -1.9, 0.6, -1.1};
  Numbers g{};
  for (int i = 0; i < kSamples; ++i) g[i] = kFew[i % std::size(kFew)];
  return g;
}

constexpr Numbers kY = SamplesOfY();
constexpr Numbers kG = SamplesOfG();

double Sigmoid(double v) {
  const double e = ExpOfMinusAbs(v);
  return v < 0 ? e / (1 + e) : 1 / (1 + e);
}
double Relu6(double v) { return std::fmin(std::fmax(v, 0), 6); }

// What a constant of a type of `digits` binary digits stands for: 1/6, and
// that times a power of two, where it is the nearest number to it; else itself.
constexpr int kFloatDigits = 24;
double Unrounded(double value, int digits) {
  int exponent;
  const double fraction = std::frexp(value, &exponent);
  const double thirds = std::copysign(2.0 / 3, fraction);
  const bool is_nearest =
      std::fabs(fraction - thirds) <= std::ldexp(0.5, -digits);
  return is_nearest ? std::ldexp(thirds, exponent) : value;
}

// A constant with one element; tf.nn.silu casts its beta.
std::optional<double> NumberOf(const IndexedGraph& graph, const NodeDef* node) {
  auto type = tensorflow::DT_INVALID;
  if (node != nullptr && node->op() == "Cast") {
    const auto to = node->attr().find("DstT");
    if (to != node->attr().end()) type = to->second.type();
    node = graph.Producer(*node, 0);
  }
  if (node == nullptr || node->op() != "Const") return std::nullopt;
  const auto value = node->attr().find("value");
  tensorflow::Tensor tensor;
  if (value == node->attr().end() ||
      !tensor.FromProto(value->second.tensor()) || tensor.NumElements() != 1 ||
      tensor.dims() > 4) {
    return std::nullopt;
  }
  float number;
  switch (tensor.dtype()) {
    case tensorflow::DT_FLOAT:
      number = tensor.flat<float>()(0);
      break;
    case tensorflow::DT_HALF:
      number = static_cast<float>(tensor.flat<Eigen::half>()(0));
      break;
    case tensorflow::DT_BFLOAT16:
      number = static_cast<float>(tensor.flat<Eigen::bfloat16>()(0));
      break;
    default:
      return std::nullopt;
  }
  switch (type == tensorflow::DT_INVALID ? tensor.dtype() : type) {
    case tensorflow::DT_FLOAT:
      return Unrounded(number, kFloatDigits);
    case tensorflow::DT_HALF:
      return Unrounded(static_cast<float>(Eigen::half(number)), 11);
    case tensorflow::DT_BFLOAT16:
      return Unrounded(static_cast<float>(Eigen::bfloat16(number)), 8);
    default:
      return std::nullopt;
  }
}

// An elementwise op of numbers; nothing for other ops.
std::optional<double> Apply(const NodeDef& node,
                            const std::vector<double>& in) {
  const std::string& op = node.op();
  const size_t n = in.size();
  const auto leaky = [&node](double of, double where) {
    const auto alpha = node.attr().find("alpha");
    const double slope = Unrounded(
        alpha == node.attr().end() ? 0.2f : alpha->second.f(), kFloatDigits);
    return where > 0 ? of : of * slope;
  };
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
    // expl: exp of double has a symbol of glibc 2.29.
    if (op == "Exp") return std::exp(static_cast<long double>(v));
    if (op == "Tanh") return std::tanh(v);
    if (op == "Softplus") return std::fmax(v, 0) + std::log1p(ExpOfMinusAbs(v));
    if (op == "_MklSwish") return v * Sigmoid(v);
    if (op == "LeakyRelu") return leaky(v, v);
  } else if (n == 2) {
    const double a = in[0], b = in[1];
    if (IsOneOf(op, {"Add", "AddV2"})) return a + b;
    if (op == "Sub") return a - b;
    if (op == "Mul") return a * b;
    if (op == "RealDiv") return a / b;
    if (op == "Maximum") return std::fmax(a, b);
    if (op == "Minimum") return std::fmin(a, b);
    if (op == "SigmoidGrad") return b * a * (1 - a);
    if (op == "TanhGrad") return b * (1 - a * a);
    if (op == "SoftplusGrad") return a * Sigmoid(b);
    if (op == "Relu6Grad") return b > 0 && b < 6 ? a : 0;
    if (op == "LeakyReluGrad") return leaky(a, b);
  }
  return std::nullopt;
}

// What `of` is of y by elementwise ops, and of at most one other tensor.
class Expression {
 public:
  // What follows from y by way of `ends` alone, activations of y, is another
  // tensor: it may be the gradient that arrives.
  Expression(const IndexedGraph& graph, const TensorName& y,
             const TensorName& of, const std::set<std::string>& ends = {})
      : graph_(graph), y_(y), ends_(ends) {
    FindNodes(of);
    if (nodes_.count(of.node) != 0) values_ = Evaluate(of);
  }

  // Whether it is the value of an activation, which `chain` is given then.
  bool IsActivation(Chain* chain) const {
    return values_.has_value() && others_.empty() &&
           Find(/*slope=*/false, 1, chain);
  }
  // Whether it is g times the derivative of one, and g.
  bool IsSlope(Chain* chain) const {
    for (const auto& [tensor, factor] : others_) {
      if (values_.has_value() && Find(/*slope=*/true, factor, chain)) {
        chain->y_backprop = tensor;
        return true;
      }
    }
    return false;
  }
  // The nodes that depend on y.
  std::vector<NodeDef*> nodes() const {
    std::vector<NodeDef*> nodes;
    for (const std::string& name : nodes_) nodes.push_back(graph_.Find(name));
    return nodes;
  }

 private:
  // More than any form has, so that a graph is looked at in linear time.
  static constexpr size_t kMostNodes = 48;

  // As above, of the values over `factor`, which g is over the other tensor.
  // The tolerance is for what double rounds, also where a form cancels, as
  // 1 - sigmoid(-y) does.
  bool Find(bool slope, double factor, Chain* chain) const {
    // If it is a leaky ReLU: what y, or g, is multiplied by below 0.
    constexpr int kBelow = kSamples - 1;
    static_assert(kY[kBelow] < 0);
    const auto rounded = static_cast<float>((*values_)[kBelow] / factor /
                                            (slope ? kG[kBelow] : kY[kBelow]));
    const double alpha = Unrounded(rounded, kFloatDigits);
    for (int which = 0; which < kNumActivations; ++which) {
      const auto activation = static_cast<Activation>(which);
      if (!IsSmooth(activation)) continue;
      const bool is_leaky = activation == Activation::kLeakyRelu;
      // A ReLU, but for infinities, and no activation.
      bool is_equal =
          !is_leaky || (std::isfinite(rounded) && rounded != 0 && rounded != 1);
      // A leaky ReLU has no form that cancels, and may be tiny below 0.
      const double cancelled = is_leaky ? 0 : 1e-14;
      for (int i = 0; i < kSamples; ++i) {
        const double k[] = {static_cast<double>(which), alpha};
        const double want = slope ? kG[i] * WithSmooth<true>(kY[i], k[0], k[1])
                                  : WithSmooth<false>(kY[i], k[0], k[1]);
        is_equal &=
            std::fabs((*values_)[i] / factor - want) <=
            1e-12 * std::fabs(want) + cancelled * (1 + std::fabs(kY[i]));
      }
      if (!is_equal) continue;
      chain->smooth = kActivationModes[which];
      chain->alpha = is_leaky ? rounded : 0;
      return true;
    }
    return false;
  }

  // Of a product with a constant, whichever comes first, which input the other
  // one is, and what that is multiplied by.
  std::optional<std::pair<int, double>> ScalingOf(const NodeDef* node) const {
    if (node == nullptr || !IsOneOf(node->op(), {"Mul", "RealDiv"})) {
      return std::nullopt;
    }
    const bool divides = node->op() == "RealDiv";
    for (const int constant : {1, 0}) {
      const auto number = NumberOf(graph_, graph_.Producer(*node, constant));
      if (!number.has_value() || *number == 0 || !std::isfinite(*number) ||
          (divides && constant == 0)) {
        continue;
      }
      return std::pair{1 - constant, divides ? 1 / *number : *number};
    }
    return std::nullopt;
  }

  // Breadth first from the end, since g may come by a long chain of additions;
  // of these nodes those that follow from y.
  void FindNodes(const TensorName& of) {
    std::set<std::string> nearest;
    std::vector<TensorName> open = {of};
    for (size_t i = 0; i < open.size() && nearest.size() < kMostNodes; ++i) {
      const NodeDef* const node = graph_.Find(open[i].node);
      if (open[i] == y_ || node == nullptr || !IsElementwise(*node) ||
          !nearest.insert(node->name()).second) {
        continue;
      }
      for (const std::string& input : DataInputs(*node)) {
        open.push_back(TensorName::Parse(input));
      }
    }
    open = {y_};
    while (!open.empty()) {
      const TensorName tensor = open.back();
      open.pop_back();
      for (const auto& reader : graph_.Consumers(tensor.node)) {
        const std::string& name = reader.node->name();
        if (reader.port == tensor.port && nearest.count(name) != 0 &&
            nodes_.insert(name).second && ends_.count(name) == 0) {
          open.push_back({name, 0});
        }
      }
    }
  }

  std::optional<Numbers> Evaluate(const TensorName& tensor) {
    if (tensor == y_) return kY;
    const NodeDef* const node = graph_.Find(tensor.node);
    Numbers numbers;
    if (tensor.port != 0 || nodes_.count(tensor.node) == 0) {
      if (const auto number = NumberOf(graph_, node)) {
        numbers.fill(*number);
        return numbers;
      }
      if (const auto scaling = ScalingOf(node)) {
        const TensorName of = TensorName::Parse(node->input(scaling->first));
        auto scaled = Evaluate(of);
        if (!scaled.has_value()) return std::nullopt;
        for (double& each : *scaled) each *= scaling->second;
        for (size_t i = 0; i < others_.size(); ++i) {
          if (!(others_[i].first == of)) continue;
          others_.push_back({tensor, others_[i].second * scaling->second});
          break;
        }
        return scaled;
      }
      if (others_.empty()) others_.push_back({tensor, 1});
      if (!(others_[0].first == tensor)) return std::nullopt;
      return kG;
    }
    const auto [found, is_new] = evaluated_.try_emplace(tensor.node);
    if (!is_new) return found->second;
    std::vector<Numbers> inputs;
    for (const std::string& input : DataInputs(*node)) {
      const auto of_input = Evaluate(TensorName::Parse(input));
      if (!of_input.has_value()) return std::nullopt;
      inputs.push_back(*of_input);
    }
    for (int i = 0; i < kSamples; ++i) {
      std::vector<double> in;
      for (const Numbers& each : inputs) in.push_back(each[i]);
      numbers[i] = *Apply(*node, in);
    }
    return evaluated_[tensor.node] = numbers;
  }

  const IndexedGraph& graph_;
  const TensorName y_;
  const std::set<std::string> ends_;
  std::set<std::string> nodes_;
  std::map<std::string, std::optional<Numbers>> evaluated_;
  // The other tensor, which kG is of, and the products of it with constants:
  // any may be g, since the gradient of x * relu6(x + 3) / 6 begins with one.
  std::vector<std::pair<TensorName, double>> others_;
  std::optional<Numbers> values_;
};

// What an activation may be applied to: the norm, and sums of it and another
// tensor.
std::vector<Chain> ChainsFrom(const IndexedGraph& graph, NodeDef* norm) {
  std::vector<Chain> result = {{{norm}}};
  for (const IndexedGraph::Consumer& each : graph.Consumers(norm->name())) {
    if (each.port == 0 && IsAddition(*each.node) &&
        !SameTensor(*each.node, 0, *each.node, 1)) {
      result.push_back({{norm, each.node}, 1 - each.input});
    }
  }
  return result;
}

}  // namespace

bool IsElementwise(const NodeDef& node) {
  const size_t inputs = DataInputs(node).size();
  return inputs > 0 && Apply(node, std::vector<double>(inputs)).has_value();
}

// ---- Forward ----------------------------------------------------------------

// tf.nn.silu ends in an IdentityN of its result, `end`, and its arguments, `y`
// among them, which has the gradient. It goes with what it holds.
std::vector<NodeDef*> Fuser::IdentityNsOf(const NodeDef& end,
                                          const TensorName& y) {
  std::vector<NodeDef*> result;
  for (const IndexedGraph::Consumer& each : graph_.Consumers(end.name())) {
    const std::vector<std::string> inputs = DataInputs(*each.node);
    const auto is_y = [&y](const std::string& input) {
      return TensorName::Parse(input) == y;
    };
    if (each.node->op() == "IdentityN" && each.input == 0 && each.port == 0 &&
        each.node->attr().count("_gradient_op_type") != 0 &&
        std::any_of(inputs.begin(), inputs.end(), is_y)) {
      result.push_back(each.node);
    }
  }
  return result;
}

// Why an IdentityN that reads `removed` nodes cannot be bypassed.
std::string Fuser::BypassRefusal(const NodeDef& identity,
                                 const std::vector<NodeDef*>& removed) {
  if (options_.preserved.count(identity.name()) != 0) {
    return identity.name() + " is kept by name";
  }
  for (const auto& other : graph_.Consumers(identity.name())) {
    if (other.port == TensorName::kControl) {
      return other.node->name() + " has a control edge from " + identity.name();
    }
    const NodeDef* const source = graph_.Producer(identity, other.port);
    if (!IsShapeReader(*other.node) &&
        std::count(removed.begin(), removed.end(), source) != 0) {
      return other.node->name() + " reads " + source->name() + " too";
    }
  }
  return "";
}

void Fuser::Bypass(NodeDef* identity) {
  std::map<int, TensorName> moved;
  for (const std::string& input : DataInputs(*identity)) {
    moved.emplace(moved.size(), TensorName::Parse(input));
  }
  const std::string first = moved.at(0).node;
  MoveConsumers(identity->name(), first, moved);
  Replace(identity, first);
}

// The chains from a norm, and perhaps an addition, to what is a smooth
// activation of it: the product with y, or what that is multiplied by a
// constant; a leaky ReLU of y, or the larger one of y and such a product.
std::vector<Chain> Fuser::SmoothChains(NodeDef* norm) {
  const auto may_end = [](const IndexedGraph::Consumer& reader) {
    return reader.port == 0 &&
           IsOneOf(reader.node->op(),
                   {"Mul", "RealDiv", "_MklSwish", "LeakyRelu", "Maximum"});
  };
  std::vector<Chain> result;
  for (Chain chain : ChainsFrom(graph_, norm)) {
    const TensorName y = {chain.last()->name(), 0};
    std::vector<NodeDef*> ends;
    for (const auto& each : graph_.Consumers(y.node)) {
      if (!may_end(each)) continue;
      ends.push_back(each.node);
      for (const auto& next : graph_.Consumers(each.node->name())) {
        if (may_end(next)) ends.push_back(next.node);
      }
    }
    for (NodeDef* const end : ends) {
      const Expression expression(graph_, y, {end->name(), 0});
      if (!expression.IsActivation(&chain)) continue;
      chain.identities = IdentityNsOf(*end, y);
      chain.path = chain.nodes;
      chain.nodes.push_back(end);
      for (NodeDef* const node : expression.nodes()) {
        if (node != end) chain.inner.push_back(node);
      }
      result.push_back(chain);
      break;
    }
  }
  return result;
}

// ---- Backward ---------------------------------------------------------------

// The chains from the norm that keeps what `gradient` reads, and perhaps an
// addition, to `gradient`, where that reads y_backprop times the derivative of
// an activation at what they end in.
std::vector<Chain> Fuser::SlopeChains(NodeDef* gradient) {
  NodeDef* norm = nullptr;
  for (const int input : {kGradReserveSpace3, kGradReserveSpace2}) {
    NodeDef* const producer = graph_.Producer(*gradient, input);
    if (norm == nullptr && producer != nullptr && IsNorm(*producer)) {
      norm = producer;
    }
  }
  std::vector<Chain> result;
  if (norm == nullptr) return result;
  const TensorName of = TensorName::Parse(gradient->input(kGradYBackprop));
  // From them what arrives may follow by elementwise ops alone: where one is
  // added to something, and the next activation is of the sum.
  std::set<std::string> ends;
  for (const Chain& forward : SmoothChains(norm)) {
    ends.insert(forward.last()->name());
  }
  for (Chain chain : ChainsFrom(graph_, norm)) {
    const TensorName y = {chain.last()->name(), 0};
    const Expression expression(graph_, y, of, ends);
    if (!expression.IsSlope(&chain)) continue;
    chain.inner = expression.nodes();
    // With an addition, what else reads the product reads the fused op.
    if (chain.nodes.size() > 1) chain.path = {graph_.Find(of.node)};
    chain.path.push_back(gradient);
    chain.nodes.push_back(gradient);
    result.push_back(chain);
  }
  return result;
}

std::string Fuser::SlopeRefusal(const Chain& chain) {
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
  if (!options_.same_shape(chain.y_backprop,
                           TensorName::Parse(norm.input(kX)))) {
    return chain.y_backprop.ToInput() + " is not known to have the shape of " +
           norm.input(kX);
  }
  return chain.addition() == nullptr ? "" : ShapeRefusal(chain);
}

// The gradient of a norm reads what inner nodes compute: y_backprop times the
// derivative of an activation. That is side_input_backprop, too.
void Fuser::FuseSlope(const Chain& chain) {
  const NodeDef& norm = *chain.first();
  NodeDef* const gradient = chain.last();
  const NodeDef* const addition = chain.addition();
  const std::string product = TensorName::Parse(gradient->input(0)).node;
  // Another gradient of a norm may compute it since the chain was found.
  const auto moved = products_.find(chain.y_backprop.node);
  const TensorName y_backprop =
      moved == products_.end() ? chain.y_backprop
                               : TensorName{moved->second, kSideInputBackprop};
  // What TensorFlow's older norms have no output for is no coefficients.
  const bool has_third = HasDataInputs(*gradient, kGradReserveSpace3 + 1);
  const std::string third =
      has_third ? TensorName{norm.name(), kForwardCoefficients}.ToInput()
                : gradient->input(kGradReserveSpace2);
  // In the place of y the side input; without one it is not read.
  const std::string y = addition != nullptr ? addition->input(chain.side_input)
                                            : gradient->input(kGradX);
  // What a removed node waits for, unless the gradient waits for it anyway.
  std::vector<NodeDef*> removed = chain.inner;
  removed.push_back(gradient);
  std::vector<std::string> controls = ControlInputs(removed);
  const auto anyway = "^" + y_backprop.node;
  controls.erase(std::remove(controls.begin(), controls.end(), anyway),
                 controls.end());
  MakeGradEx(gradient, {y_backprop.ToInput(), third, norm.input(kOffset), y},
             chain.smooth, addition != nullptr, controls);
  if (chain.alpha != 0) {
    (*gradient->mutable_attr())["leakyrelu_alpha"].set_f(chain.alpha);
  }
  if (addition != nullptr) {
    MoveConsumers(product, product,
                  {{0, TensorName{gradient->name(), kSideInputBackprop}}});
    products_[product] = gradient->name();
  }
  for (const NodeDef* const node : chain.inner) {
    RemoveUnread(node->name(), gradient->name());
  }
}

}  // namespace tf_bn_ops
