// Included twice, where `bn` is tensorflow::ops and tf_bn_ops::ops: what
// compiles with the one must compile, and mean the same, with the other.

// Distinct types, as are TensorFlow's; and names that `struct` may precede.
static_assert(!std::is_same_v<bn::FusedBatchNormGrad::Attrs,
                              bn::FusedBatchNormGradV2::Attrs>);
static_assert(
    !std::is_same_v<bn::FusedBatchNorm::Attrs, bn::FusedBatchNormV2::Attrs>);
int Overload(const struct bn::FusedBatchNormGrad::Attrs&) { return 1; }
int Overload(const struct bn::FusedBatchNormGradV3::Attrs&) { return 3; }
int Overload(const struct bn::FusedBatchNormV3::Attrs&) { return 4; }

template <typename Op>
typename Op::Attrs Attributes() {
  typename Op::Attrs attrs = Op::Epsilon(0.5f);
  attrs = attrs.DataFormat("NCHW").IsTraining(false);
  // The fields are public, and all setters start from the defaults.
  EXPECT(attrs.data_format_ == "NCHW" && attrs.epsilon_ == 0.5f);
  EXPECT(Op::DataFormat("NCHW").epsilon_ == 0.0001f);
  EXPECT(Op::IsTraining(false).data_format_ == "NHWC");
  EXPECT(Op::Epsilon(1).is_training_);
  return attrs;
}

template <typename Op>
typename Op::Attrs ForwardAttributes() {
  EXPECT(Op::DataFormat("NCHW").exponential_avg_factor_ == 1);
  EXPECT(Op::ExponentialAvgFactor(0).is_training_);
  return Attributes<Op>().ExponentialAvgFactor(0.25f);
}

// Prints the node of an op on constants, whose names say their order.
template <typename Op, typename... Arguments>
void Print(const Arguments&... arguments) {
  const Scope scope = Scope::NewRootScope().WithOpName("node");
  const Op op(scope, arguments...);
  Check(scope.status());
  const tf::GraphDef graph = GraphOf(scope);
  for (const auto& node : graph.node()) {
    if (node.name() == "node") puts(tf::SummarizeNodeDef(node).c_str());
  }
}

// With attributes and without.
template <typename Op, typename... Inputs>
void PrintBoth(const typename Op::Attrs& attrs, const Inputs&... inputs) {
  Print<Op>(inputs...);
  Print<Op>(inputs..., attrs);
}

// What goes wrong must end in the status of the scope, in the same way.
void CheckErrors() {
  const tf::Tensor data = Filled({1, 2, 2, 3}, 1), vector = Filled({3}, 1),
                   longer = Filled({4}, 1),
                   doubles(tf::DT_DOUBLE, {1, 2, 2, 3});
  struct {
    const tf::Tensor &data, &vector;
    const char* format;
  } const wrong[] = {{doubles, vector, "NHWC"},  // a type that is not allowed
                     {data, longer, "NHWC"},     // shapes that do not fit
                     {data, vector, "NDHWC"},    // a format that V2 lacks
                     {data, vector, "nonsense"},
                     {vector, vector, "NHWC"}};  // a rank that is too low
  for (const auto& w : wrong) {
    const Scope scope = Scope::NewRootScope();
    const bn::FusedBatchNormGradV2 op(
        scope, w.data, w.data, w.vector, w.vector, w.vector,
        bn::FusedBatchNormGradV2::DataFormat(w.format));
    printf("%d %d\n", static_cast<int>(scope.status().code()),
           op.operation.node() == nullptr);
    const Scope forward = Scope::NewRootScope();
    const bn::FusedBatchNormV2 norm(forward, w.data, w.vector, w.vector,
                                    w.vector, w.vector,
                                    bn::FusedBatchNormV2::DataFormat(w.format));
    printf("%d %d\n", static_cast<int>(forward.status().code()),
           norm.operation.node() == nullptr);
    // A scope with an error takes no more nodes.
    const bn::FusedBatchNormGrad after(scope, data, data, vector, vector,
                                       vector);
    EXPECT(after.x_backprop.node() == nullptr);
  }
}

int Run() {
  CheckErrors();
  EXPECT(Overload(bn::FusedBatchNormGradV3::Attrs()) == 3);
  EXPECT(Overload(bn::FusedBatchNormV3::Attrs()) == 4);
  const tf::Tensor x = Filled({1, 2, 2, 2}, 1), v = Filled({2}, 1);
  using V1 = bn::FusedBatchNorm;
  PrintBoth<V1>(ForwardAttributes<V1>(), x, v, v, v, v);
  using V2 = bn::FusedBatchNormV2;
  PrintBoth<V2>(ForwardAttributes<V2>(), x, v, v, v, v);
  using V3 = bn::FusedBatchNormV3;
  PrintBoth<V3>(ForwardAttributes<V3>(), x, v, v, v, v);
  using Grad = bn::FusedBatchNormGrad;
  PrintBoth<Grad>(Attributes<Grad>(), x, x, v, v, v);
  using GradV2 = bn::FusedBatchNormGradV2;
  PrintBoth<GradV2>(Attributes<GradV2>(), x, x, v, v, v);
  using GradV3 = bn::FusedBatchNormGradV3;
  PrintBoth<GradV3>(Attributes<GradV3>(), x, x, v, v, v, v);
  return 0;
}
