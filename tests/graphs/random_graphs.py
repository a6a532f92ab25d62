"""Random graphs with batch norm, fused and not: results must be equal, up to rounding.

    python tests/graphs/random_graphs.py --graphs=5000 --seed=1      any number, from any seed
    python tests/graphs/random_graphs.py --seed=1 --only=37          one graph

A graph is drawn from (seed, index): plain and residual blocks of all versions of the op, forward
and backward, in the graph itself, in functions, branches and loops of both kinds of control flow;
with side inputs that broadcast, other readers, fetches of every output, control edges and
colocations. It is fused by `rewrite.fuse`, as a GraphDef or a concrete function, and by the graph
optimizer, in a session that runs twice or below a `tf.function`. A graph that fails is reduced:
what was drawn for it is left out as long as it fails.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import numpy as np
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops import _enable, rewrite
from tf_bn_ops.spec import DTYPES

v1 = tf.compat.v1
CHANNELS = 3
ACTIVATIONS = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "tanh": tf.tanh,
    "silu": tf.nn.silu,
    "y sigmoid(y)": lambda y: y * tf.sigmoid(y),
    "y sigmoid(1.001 y)": lambda y: y * tf.sigmoid(1.001 * y),  # Which is no SiLU.
    "hard_silu": lambda y: y * tf.nn.relu6(y + 3.0) / 6.0,
    "leaky_relu": tf.nn.leaky_relu,
    "leaky_relu, -0.5": lambda y: tf.nn.leaky_relu(y, -0.5),
    "y hard_sigmoid(y)": lambda y: y * (tf.nn.relu6(y + 3.0) * (1.0 / 6.0)),
}
# Graphs that share a session, or a function.
BATCH = 10
# The bound of an output's error, as root mean square. Of the output itself, with the roundoff u
# of the element type: each norm divides by a deviation that is an eighth or more of its input, once
# in each direction. And of what the output changes by if the graph that is not fused gets inputs
# that are a few u off: where terms cancel, as in the gradient of a scale in front of another norm,
# rounding is all there is, and 16-bit masks differ where y is at its bound. Where terms cancel
# whatever the inputs are, as in the gradient of a norm's sum by x: what a sum may be off by.
ROUNDOFFS, CHANGES, CANCELLED = 64, 16, 2.0**-44
NUDGES, NUDGE = 2, 4.0


class Draw:
    """Random choices of one graph. What is named can be left out without changing other choices."""

    def __init__(self, seed: int, index: int, left_out: frozenset[str] = frozenset()) -> None:
        self.seed, self.index, self.left_out = seed, index, left_out
        self.drawn: set[str] = set()
        self._random = random.Random(f"{seed}/{index}")

    def again(self) -> Draw:
        return Draw(self.seed, self.index, self.left_out)

    def has(self, feature: str, probability: float) -> bool:
        if self._random.random() >= probability or feature in self.left_out:
            return False
        self.drawn.add(feature)
        return True

    def choice(self, values: Any) -> Any:
        return self._random.choice(values)

    def vector(self) -> np.ndarray:
        return np.array([self._random.uniform(0.5, 1.5) for _ in range(CHANNELS)], np.float32)


@dataclasses.dataclass
class Graph:
    """One random graph, while it is built in the graph that TensorFlow has as its default."""

    draw: Draw
    in_session: bool
    outputs: list[tf.Tensor] = dataclasses.field(default_factory=list)
    variables: list[tf.Tensor] = dataclasses.field(default_factory=list)
    num_norms: int = 0
    _earlier: list[tf.Tensor] = dataclasses.field(default_factory=list)
    _inner: list[tf.Tensor] = dataclasses.field(default_factory=list)
    _depth: int = 0
    _loops: int = 0

    def __post_init__(self) -> None:
        draw = self.draw
        self.dtype = draw.choice([tf.float32, tf.float32, tf.float32, tf.half, tf.bfloat16])
        self.data_format = draw.choice(["NHWC", "NHWC", "NHWC", "NCHW", "NDHWC"])
        size = [3] * (3 if self.data_format == "NDHWC" else 2)
        at = 1 if self.data_format == "NCHW" else len(size) + 1
        self.shape = [4, *size]
        self.shape.insert(at, CHANNELS)
        self.per_channel = [CHANNELS if i == at else 1 for i in range(len(self.shape))]
        self.declared: list[int | None] = list(self.shape)
        if draw.has("unknown batch", 0.4):
            self.declared[0] = None
        if draw.has("unknown shape", 0.05):
            self.declared = [None if i != at else CHANNELS for i in range(len(self.shape))]
        self.has_gradient = draw.has("gradient", 0.85)

    def build(self, x: tf.Tensor) -> None:
        """Adds the graph of float32 `x`; `outputs` are what it computes, `y` is the last layer."""
        y = tf.cast(x, self.dtype)
        y.set_shape(self.declared)
        for _ in range(self.draw.choice([1, 1, 1, 1, 2, 2, 3])):
            y = self._layer(y)
        self.y = y
        self.outputs.append(y)

    @property
    def unit_roundoff(self) -> float:
        return DTYPES[{"float16": "half"}.get(self.dtype.name, self.dtype.name)].unit_roundoff

    # ---- Control flow ----------------------------------------------------------------------------

    def _layer(self, x: tf.Tensor) -> tf.Tensor:
        draw = self.draw
        self._earlier.append(x)
        kind = draw.choice(["block"] * 5 + ["cond", "while", "function"])
        if self._depth == 2 or kind == "block" or not draw.has(kind, 1):
            return self._block(x)
        version: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.in_session and self._depth == 0 and draw.has("v1 control flow", 0.5):
            version = control_flow_v1()
        with version:
            y = {"cond": self._cond, "while": self._while, "function": self._function}[kind](x)
        y.set_shape(x.shape)
        return y

    def _cond(self, x: tf.Tensor) -> tf.Tensor:
        predicate = tf.reduce_sum(tf.cast(x, tf.float32)) > self.draw.choice([-1e9, 0, 1e9])
        other = self.draw.has("two branches", 0.5)
        return tf.cond(
            predicate,
            lambda: self._nested(x),
            lambda: self._nested(x) if other else tf.identity(x),
        )

    def _while(self, x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            self._loops += 1
            y = self._nested(y)
            self._loops -= 1
            y.set_shape(x.shape)
            return i + 1, y

        return tf.while_loop(lambda i, _: i < 2, body, (tf.constant(0), x))[1]

    def _function(self, x: tf.Tensor) -> tf.Tensor:
        attributes = {"_noinline": True} if self.draw.has("noinline", 0.5) else None
        return tf.function(self._nested, autograph=False, experimental_attributes=attributes)(x)

    def _nested(self, x: tf.Tensor) -> tf.Tensor:
        """A layer in a body, with what it computes beside y added to y."""
        outer = self._inner, self._earlier
        self._inner, self._earlier = [], [x]
        self._depth += 1
        y = self._layer(x)
        for each in self._inner:
            y += tf.cast(0.125 * tf.reduce_mean(tf.cast(each, tf.float32)), y.dtype)
        self._depth -= 1
        self._inner, self._earlier = outer
        return y

    def _emit(self, tensor: tf.Tensor) -> None:
        (self._inner if self._depth else self.outputs).append(tensor)

    # ---- One block -------------------------------------------------------------------------------

    def _block(self, x: tf.Tensor) -> tf.Tensor:
        draw = self.draw
        x = self._before(x)
        norm = self._norm(x)
        y = norm[0]
        self._readers(y, "norm")
        after = None
        if draw.has("residual", 0.6):
            side = self._side_input(x, norm)
            operands = [y, side] if draw.has("side input second", 0.7) else [side, y]
            add = draw.choice([tf.raw_ops.Add, tf.raw_ops.AddV2])
            with self._edges(norm):
                y = add(x=operands[0], y=operands[1])
            self._readers(y, "sum")
        with self._edges(norm), _device(draw.has("device", 0.05)):
            activated = self._activation(y)
        if draw.has("waits for an intermediate", 0.04):
            with tf.control_dependencies([draw.choice([y, norm[0], norm[1]])]):
                after = tf.constant(1.0)
        if self.in_session and draw.has("colocation", 0.1):
            with v1.colocate_with(draw.choice([y.op, norm[0].op, activated.op])):
                after = tf.constant(1.0)
        if after is not None:
            self._emit(after)
        return activated

    def _before(self, x: tf.Tensor) -> tf.Tensor:
        kind = self.draw.choice(["sin", "identity", "none", "conv", "norm"])
        if kind == "conv" and self.data_format == "NHWC" and self.dtype == tf.float32:
            kernel = np.float32(np.eye(CHANNELS) + 0.2)[None, None]
            return tf.nn.conv2d(x, kernel, 1, "SAME")
        if kind == "norm" and self.draw.has("norm of a norm", 0.2):
            return self._norm(x)[0]
        return {"sin": tf.sin, "identity": tf.identity}.get(kind, lambda x: x)(x)

    def _norm(self, x: tf.Tensor) -> list[tf.Tensor]:
        draw = self.draw
        self.num_norms += 1
        is_frozen = draw.has("frozen", 0.3)
        own = draw.has("own op", 0.3) or self.data_format == "NCHW"
        versions = ["V3"] if self.data_format == "NDHWC" else ["V2", "V3"]
        if self.dtype == tf.float32 and self.data_format != "NDHWC":
            versions.append("")
        if own:
            versions += ["Ex", "in Python"]
        version = draw.choice(versions)
        # TensorFlow's remapper takes a frozen norm apart of which no node reads statistics, whether
        # they are fetched or not, and puts its constants outside of the loop that it is in.
        is_tensorflows = not own or version == "in Python"
        is_whole = not is_tensorflows or (self.has_gradient and version in ("V3", "in Python"))
        is_training = not is_frozen or (self._loops > 0 and not is_whole)
        vectors = [tf.constant(draw.vector()) for _ in range(4)]
        if self._depth == 0:
            self.variables += vectors[:2]
        attrs: dict[str, Any] = {"is_training": is_training, "data_format": self.data_format}
        if draw.has("average factor", 0.3):
            attrs["exponential_avg_factor"] = 0.25
        if version == "Ex":
            attrs |= {"side_input": [], "bessel_correction": not draw.has("biased", 0.5)}
        op = tf_bn_ops.fused_batch_norm
        if version != "in Python":
            op = getattr(tf_bn_ops.raw_ops if own else tf.raw_ops, f"FusedBatchNorm{version}")
        outputs = op(
            x=x, epsilon=0.01, **attrs,
            **dict(zip(("scale", "offset", "mean", "variance"), vectors, strict=True)),
        )  # fmt: skip
        for output in outputs[1 : 5 if is_training else 3]:
            if (is_training or (is_whole and self._depth == 0)) and draw.has("statistics", 0.2):
                is_fetched = draw.has("fetch of statistics", 0.3)
                self._emit(output if is_fetched else tf.identity(output))
        return list(outputs)

    def _side_input(self, x: tf.Tensor, norm: list[tf.Tensor]) -> tf.Tensor:
        draw = self.draw
        kinds = ["x", "earlier", "norm", "function of x"] * 3
        kinds += ["broadcast", "vector", "statistics", "itself", "shape"]
        kind = draw.choice(kinds)
        if not draw.has(f"side input: {kind}", 1):
            return x
        if kind == "earlier":
            return draw.choice(self._earlier)
        if kind == "norm":
            return self._norm(tf.cos(x))[0]
        if kind == "broadcast":
            return tf.reduce_mean(x, axis=draw.choice([0, 1, 2]), keepdims=True)
        if kind == "vector":
            vector = tf.cast(tf.reshape(draw.vector(), self.per_channel), x.dtype)
            return draw.choice([vector, tf.reduce_mean(x)])
        if kind == "statistics":
            mean = draw.choice(norm[1:3])
            return x - tf.cast(tf.reshape(mean, self.per_channel), x.dtype)
        if kind == "itself":
            return norm[0]
        if kind == "shape":
            return tf.reshape(tf.cos(x), tf.raw_ops.Shape(input=norm[0]))
        return tf.cos(x)

    def _activation(self, y: tf.Tensor) -> tf.Tensor:
        kind = self.draw.choice(["relu"] * 4 + ["relu6"] * 3 + [*ACTIVATIONS][2:])
        return ACTIVATIONS[kind](y)

    def _readers(self, y: tf.Tensor, name: str) -> None:
        draw = self.draw
        if draw.has(f"reader of the {name}", 0.06):
            self._emit(tf.sin(y))
        if draw.has(f"fetch of the {name}", 0.06):
            self._emit(y)
        if draw.has(f"shape of the {name}", 0.1):
            self._emit(
                tf.cast(draw.choice([tf.raw_ops.Shape, tf.raw_ops.Size])(input=y), tf.float32)
            )

    @contextlib.contextmanager
    def _edges(self, norm: list[tf.Tensor]) -> Iterator[None]:
        before = []
        if self.draw.has("control edge", 0.08):
            before.append(tf.sin(norm[1]) if self.draw.has("of statistics", 0.3) else tf.no_op())
        with tf.control_dependencies(before):
            yield


@contextlib.contextmanager
def control_flow_v1() -> Iterator[None]:
    v1.disable_control_flow_v2()
    try:
        yield
    finally:
        v1.enable_control_flow_v2()


def _device(is_named: bool) -> Any:
    return tf.device("/CPU:0") if is_named else contextlib.nullcontext()


# ---- Ways to run them ----------------------------------------------------------------------------


def counted(call: Callable[[], Any], is_on: bool = True) -> tuple[Any, int]:
    """A result with the graph optimizer on or off, and how many places were fused."""
    _enable.set_fusion(is_on)
    before = _enable.fused_so_far()
    try:
        return call(), _enable.fused_so_far() - before
    finally:
        _enable.set_fusion(False)


@dataclasses.dataclass
class Result:
    """What was fused and refused, and which graphs (index, way) gave other results."""

    fused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    wrong: dict[int, str] = dataclasses.field(default_factory=dict)

    def report(self, way: str, fusions: list[rewrite._fuse.Fusion]) -> None:
        for fusion in fusions:
            if not fusion.refusal:
                self.fused[f"{way}, {fusion.direction}"] += 1
                continue
            words = (word for word in fusion.refusal.split() if not set("/_0123456789") & set(word))
            self.refused[" ".join(words)] += 1

    def compare(self, way: str, graphs: list[Graph], got: Any, want: Any, nudged: Any) -> None:
        """`want` is of the graphs that are not fused; `nudged` with several other inputs."""
        for at, graph in enumerate(graphs):
            roundoffs = graph.num_norms * ROUNDOFFS * graph.unit_roundoff
            cancelled = CANCELLED * max(map(size, want[at]), default=0.0)
            for i, (x, y) in enumerate(zip(got[at], want[at], strict=True)):
                change = max(size(each[at][i], y) for each in nudged)
                error, bound = size(x, y), roundoffs * size(y) + CHANGES * change + cancelled
                if not error <= bound or not np.isfinite(bound):
                    self.wrong.setdefault(
                        graph.draw.index,
                        f"{way}: output {i} of {len(want[at])} is off by {error:.2g}, bound "
                        f"{bound:.2g}",
                    )


def size(tensor: Any, without: Any = 0.0) -> float:
    """The root mean square of a tensor, or of its difference from one of the same shape."""
    tensor, without = np.asarray(tensor, np.float64), np.asarray(without, np.float64)
    if without.shape not in ((), tensor.shape):
        return float("inf")
    return float(np.sqrt(np.mean((tensor - without) ** 2))) if tensor.size else 0.0


def inputs_of(graphs: list[Graph], data: int) -> list[list[np.ndarray]]:
    """The inputs of all graphs, then, several times, those inputs a few roundoffs off."""
    result: list[list[np.ndarray]] = [[] for _ in range(1 + NUDGES)]
    for graph in graphs:
        rng = np.random.default_rng([data, graph.draw.index])
        x = rng.normal(0.3, 1.5, graph.shape)
        for i, inputs in enumerate(result):
            off = NUDGE * graph.unit_roundoff * rng.uniform(-1, 1, x.shape) if i > 0 else 0
            inputs.append((x * (1 + off)).astype(np.float32))
    return result


def _in_sessions(draws: list[Draw], data: int, result: Result) -> None:
    with tf.Graph().as_default() as graph:
        graphs, fetches = [], []
        for i, draw in enumerate(draws):
            with tf.name_scope(f"g{i}"):
                one = Graph(draw, in_session=True)
                x = v1.placeholder(tf.float32, one.declared, "x")
                one.build(x)
                backprops = []
                if one.has_gradient:
                    backprops = v1.gradients(
                        one.y, [x, *one.variables], tf.cos(3 * one.y),
                        gate_gradients=draw.has("gated gradients", 0.2),
                        colocate_gradients_with_ops=draw.has("colocated gradients", 0.3),
                    )  # fmt: skip
                graphs.append(one)
                fetches.append([each for each in one.outputs + backprops if each is not None])
    inputs = inputs_of(graphs, data)
    feeds = [{f"g{i}/x:0": x for i, x in enumerate(each)} for each in inputs]
    names = [[tensor.name for tensor in each] for each in fetches]

    def run(graph: tf.Graph, feeds: list[Any], **options: Any) -> list[Any]:
        config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        for name, value in options.items():
            setattr(config.graph_options.rewrite_options, name, value)
        with v1.Session(graph=graph, config=config) as session:
            return [session.run(names, feed) for feed in feeds]

    # Without the remapper: it breaks a fetch of frozen statistics by itself, where none reads them.
    want, *nudged = run(graph, feeds, remapping=2)
    graph_def = graph.as_graph_def()
    keep = [name.partition(":")[0] for each in names for name in each]
    fused_def, report = rewrite._fused(graph_def, None, keep)
    result.report("rewritten graphs", report)
    with tf.Graph().as_default() as fused:
        tf.import_graph_def(fused_def, name="")
    result.compare("rewrite.fuse, session", graphs, run(fused, feeds[:1])[0], want, nudged)
    runs, count = counted(lambda: run(graph, feeds[:1] * 2))
    result.fused["sessions"] += count
    for time, got in enumerate(runs):
        result.compare(f"optimizer, run {time + 1} of the session", graphs, got, want, nudged)


def _in_functions(draws: list[Draw], data: int, result: Result) -> None:
    graphs = [Graph(draw, in_session=False) for draw in draws]
    inputs, *others = [[tf.constant(x) for x in each] for each in inputs_of(graphs, data)]
    signature = [tf.TensorSpec(graph.declared) for graph in graphs]

    def make(graphs: list[Graph]) -> Any:
        @tf.function(autograph=False, input_signature=signature)
        def step(*inputs: tf.Tensor) -> Any:
            results = []
            for graph, x in zip(graphs, inputs, strict=True):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    graph.build(x)
                sources = [x, *graph.variables]
                backprops = []
                if graph.has_gradient:
                    backprops = tape.gradient(graph.y, sources, tf.cos(3 * graph.y))
                results.append([each for each in graph.outputs + backprops if each is not None])
            return results

        return step

    plain = make(graphs)
    want = plain(*inputs)
    nudged = [plain(*each) for each in others]
    fused, report = rewrite._fused(plain.get_concrete_function(), None, [])
    result.report("rewritten functions", report)
    result.compare("rewrite.fuse, function", graphs, fused(*inputs), want, nudged)
    again = [Graph(draw.again(), in_session=False) for draw in draws]
    got, count = counted(lambda: make(again)(*inputs))
    result.fused["functions"] += count
    result.compare("optimizer, function", graphs, got, want, nudged)


def run_batch(draws: list[Draw], data: int, result: Result) -> None:
    """Runs graphs together, the way that follows from the index of the first."""
    way = _in_functions if draws[0].index // BATCH % 2 else _in_sessions
    way(draws, data, result)


def failure(draw: Draw, datas: tuple[int, ...] = (1, 2)) -> str:
    """Why a graph fails by itself, for each of several data; "" if it does not.

    A mask may differ where y is at its bound within rounding: other data decide then."""
    for data in datas:
        result = Result()
        try:
            run_batch([draw.again()], data, result)
        except Exception as error:  # Of any kind: it is what is looked for.
            return f"{type(error).__name__}: {error}"
        if not result.wrong:
            return ""
    return result.wrong[draw.index]


def reduced(draw: Draw) -> Draw:
    """The same graph without what does not matter for its failure."""
    again = draw.again()
    with contextlib.suppress(Exception):
        run_batch([again], 1, Result())
    for feature in sorted(again.drawn):
        less = Draw(draw.seed, draw.index, draw.left_out | {feature})
        if failure(less):
            draw = less
    return draw


def run(number: int, seed: int, first: int = 0) -> tuple[Result, list[str]]:
    """Runs graphs; returns the result and a text for each that fails."""
    tf_bn_ops.load()
    result, failures = Result(), []
    for start in range(first, first + number, BATCH):
        draws = [Draw(seed, i) for i in range(start, min(start + BATCH, first + number))]
        try:
            run_batch(draws, 0, result)
            suspects = [draw for draw in draws if draw.index in result.wrong]
        except Exception:  # One of them, which `failure` finds.
            suspects = draws
        for draw in suspects:
            if failure(draw):
                less = reduced(draw)
                failures.append(
                    f"--seed={seed} --only={draw.index}: {failure(less)}\n"
                    f"  left out: {', '.join(sorted(less.left_out))}"
                )
    return result, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="index of the only graph")
    arguments = parser.parse_args()
    first, number = (0, arguments.graphs) if arguments.only is None else (arguments.only, 1)
    result, failures = run(number, arguments.seed, first)
    for kind, count in sorted(result.fused.items()):
        print(f"fused: {count:6} in {kind}")
    for reason, count in result.refused.most_common():
        print(f"refused: {count:4} {reason}")
    print(f"{number} graphs, seed {arguments.seed}: {len(failures)} failed")
    for text in failures:
        print(text)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
