"""A failing problem as a Python program of its own: TensorFlow, NumPy and the op, nothing else.

It computes the right answer by the formula, in float64 (long double for float64), compares the op's
answer with it, prints what differs, and exits with status 1 while the op is wrong.
"""

from __future__ import annotations

import base64
import io
import math
import string
from collections.abc import Mapping

import numpy as np

from tf_bn_ops import _loader, spec
from tf_bn_ops.conformance import runner, workers
from tf_bn_ops.conformance.case import Case
from tf_bn_ops.conformance.judge import VALUES, expected_shape
from tf_bn_ops.conformance.shrink import Problem
from tf_bn_ops.conformance.worker import LIBRARY_PREFIX
from tf_bn_ops.harness import bounds
from tf_bn_ops.harness import oracle as oracle_lib

# Elements up to which a tensor is written as numbers; a larger one as a compressed block.
_READABLE = 256
# Elements of a tensor beyond which there is no program: nobody could read it.
_MOST = 50_000

_TEMPLATE = string.Template('''\
"""$op, $dtype, $layout, shape $shape, $mode: shows that the op is wrong.

Exit status 1 while it is, 0 when it is right. Reduced from the conformance case
  $case
"""

import sys
$imports
import numpy as np
import tensorflow as tf

nan, inf = np.nan, np.inf

inputs = {
$inputs
}
attrs = {
$attrs
}

$ops

def call(*tensors):
    return ops.$function(**dict(zip(inputs, tensors)), **attrs)


try:
    outputs = $call(*[tf.constant(value) for value in inputs.values()])
except Exception as error:
    sys.exit(f"$op failed: {type(error).__name__}: {error}")

# The formula, per channel; sums and means go over all other dimensions.
wide = np.$wide
dy, x, scale, mean, variance = (inputs[name].astype(wide) for name in $names)
axes = tuple(axis for axis in range(x.ndim) if axis != $channel_axis)
per_channel = [-1 if axis == $channel_axis else 1 for axis in range(x.ndim)]
with np.errstate(all="ignore"):
    rstd = 1 / np.sqrt(variance + wide($epsilon))
    xmu = x - mean.reshape(per_channel)
    offset_backprop = dy.sum(axes)
    scale_backprop = rstd * (dy * xmu).sum(axes)
    inside = dy$training
    x_backprop = (scale * rstd).reshape(per_channel) * inside

failed = False


def check(number, name, right, dtype, largest, allowed=None, must_be_nan=False):
    """Compares an output with the right answer; `allowed` is the error bound of each element."""
    global failed
    given = outputs[number].numpy()
    if given.shape != right.shape or given.dtype != np.dtype(dtype):
        print(f"{name}: shape {list(given.shape)}, {given.dtype}; "
              f"right: {list(right.shape)}, {np.dtype(dtype)}")
        failed = True
    elif allowed is not None:
        c = given.astype(wide)
        with np.errstate(all="ignore"):
            error = abs(c - right)
            good = (error <= allowed) | (c == right) | ~(np.isfinite(c) | np.isfinite(right))
            good |= np.isinf(c) & (c * right > 0) & (abs(right) + allowed > largest)
            good &= ~(np.isnan(right) & np.isinf(c) & must_be_nan)
        for at in np.argwhere(~good)[:10]:
            at = tuple(at)
            print(f"{name}{list(map(int, at))}: {c[at]!s} instead of {right[at]!s}, "
                  f"allowed error {np.broadcast_to(allowed, c.shape)[at]:.3g}")
        failed |= not good.all()


$checks
print("wrong" if failed else "right")
sys.exit(1 if failed else 0)
''')


def _numbers(array: np.ndarray) -> str:
    """The elements as Python numbers, as few digits as tell them apart."""
    # str() of NumPy's scalars is the shortest text that reads back as the same number of the type.
    flat = array if array.dtype in (np.float16, np.float32, np.float64) else array.astype(float)
    return "[" + ", ".join(str(value) for value in flat.reshape(-1)) + "]"


def _literal(array: np.ndarray) -> str:
    """A Python expression for an array."""
    name = array.dtype.name
    if array.size > _READABLE:
        file = io.BytesIO()
        stored = array.astype(np.float32) if name == "bfloat16" else array
        np.savez_compressed(file, a=stored)
        text = base64.b64encode(file.getvalue()).decode()
        found = f'np.load(io.BytesIO(base64.b64decode("{text}")))["a"]'
    else:
        dtype = "float32" if name == "bfloat16" else name
        found = f'np.array({_numbers(array)}, "{dtype}")'
        if array.ndim != 1:
            found += f".reshape({list(array.shape)})"
    return found + (".astype(tf.bfloat16.as_numpy_dtype)" if name == "bfloat16" else "")


def _allowed(problem: Problem, settings: runner.Settings) -> Mapping[str, np.ndarray]:
    """Output -> the error bound of each element."""
    profile, times = settings.profile, settings.times(problem.case)
    case, values = problem.case, problem.filled.values
    dtype = spec.DTYPES[case.dtype]
    statistics = spec.DTYPES[case.spec.statistics_dtype(case.dtype)]
    oracle = oracle_lib.Oracle(
        values, case.layout, case.epsilon, case.is_training, case.spec.epsilon_dtype
    )
    derived = bounds.derive(profile, oracle, values["mean"], dtype, statistics)
    x_backprop = np.zeros(oracle.shape)
    for chunk in oracle.chunks():
        with np.errstate(all="ignore"):
            x_backprop[chunk.at] = derived.x_backprop(chunk)
    result = {
        "x_backprop": x_backprop.reshape(case.shape),
        "scale_backprop": derived.scale_backprop.astype(float),
        "offset_backprop": derived.offset_backprop.astype(float),
    }
    for role in _exact(problem, settings):
        result[role] = np.zeros_like(result[role])
    return {role: bound * times.get(role, 1) for role, bound in result.items()}


def _exact(problem: Problem, settings: runner.Settings) -> frozenset[str]:
    """The outputs that have to match to the bit."""
    return problem.filled.exact & settings.profile.exact - set(settings.times(problem.case))


def _rounded_up(bound: np.ndarray) -> np.ndarray:
    """A bound of few digits that is not below the given one."""
    flat = [v if not math.isfinite(v) or v == 0 else float(f"{v * 1.001:.3g}") for v in bound.flat]
    return np.array(flat, float).reshape(bound.shape)


def _library(candidate: workers.Implementation, case: Case) -> tuple[list[str], str, str]:
    """(modules to import, the line that sets `ops`, name of the function)."""
    if candidate.ops == workers.OWN_OPS:
        function = case.spec.registered_name.replace(">", "_")
        return [], f"ops = tf.load_op_library({_loader.library_path()!r})", function
    if candidate.ops.startswith(LIBRARY_PREFIX):
        path = candidate.ops.removeprefix(LIBRARY_PREFIX)
        assert candidate.mapped is not None
        return [], f"ops = tf.load_op_library({path!r})", candidate.mapped[case.op].function
    module, _, attribute = candidate.ops.partition(":")
    if module == "tensorflow":
        return [], f"ops = tf.{attribute}", case.op
    found = f'importlib.import_module("{module}")' + (f".{attribute}" if attribute else "")
    return ["importlib"], f"ops = {found}", case.op


def program(
    problem: Problem,
    original: str,
    candidate: workers.Implementation,
    settings: runner.Settings,
) -> str | None:
    """The program's text.

    Args:
      problem: the case to show.
      original: the name of the case that it was made from.
      candidate: whose op it is.
      settings: what it is judged by.

    Returns:
      None where the case cannot be shown in this way: it is too large, or is called in a way that
      takes more than a program.
    """
    case, values = problem.case, problem.filled.values
    ways = {"eager": "call", "graph": "tf.function(call)"}
    if math.prod(case.shape) > _MOST or case.call not in ways:
        return None
    mapped = (candidate.mapped or {}).get(case.op)
    request = workers.request(case, problem.filled, case.spec, mapped)
    imports, load, function = _library(candidate, case)
    attrs = dict(request["attrs"])
    way = ways[case.call]
    is_tensor = candidate.ops == workers.OWN_OPS and case.spec.epsilon_dtype == "float64"
    if is_tensor:
        # An attr of type tensor, which TensorFlow takes in graphs only.
        way = ways["graph"]
    literals = {name: _literal(np.asarray(value)) for name, value in request["inputs"].items()}
    if any("base64" in text for text in literals.values()):
        imports = [*imports, "base64", "io"]
    by_role = {
        arg.role: (mapped.inputs.get(arg.name, arg.name) if mapped else arg.name)
        for arg in case.spec.inputs
    }
    lines = []
    allowed = _allowed(problem, settings)
    if any(array.size > _READABLE for array in allowed.values()):
        imports = [*imports, "base64", "io"]
    for i, arg in enumerate(case.spec.outputs):
        name = case.dtype if arg.role == "x_backprop" else case.spec.statistics_dtype(case.dtype)
        dtype = spec.DTYPES[name]
        written = '"' + dtype.numpy.name + '"'
        if name == "bfloat16":
            written = "tf.bfloat16.as_numpy_dtype"
        right, more = f"np.zeros({list(expected_shape(case, arg.role))})", ""
        if arg.role in VALUES:
            right = arg.role
            if arg.role in _exact(problem, settings):
                right = f"{right}.astype({written}).astype(wide)"
            more = f",\n      {_literal(_rounded_up(allowed[arg.role]))}"
            if case.kind == "nonfinite":
                # NaN must stay NaN; infinity may become NaN or not, by the order of operations.
                infinite = np.isinf(spec.as_view(values["x"], case.layout)).any(axis=(0, 2))
                per_channel = list(map(bool, ~infinite))
                shape = ".reshape(per_channel)" if arg.role == "x_backprop" else ""
                more += f",\n      np.array({per_channel}){shape}"
        number = mapped.output_names[i] if mapped else arg.name
        lines.append(f'check({i}, "{number}", {right}, {written}, {dtype.largest!r}{more})')
    # Outputs of another library come in its order.
    select = ""
    if mapped:
        select = f"outputs = [getattr(outputs, name) for name in {mapped.output_names}]\n"
    rank, channels_last = spec.LAYOUTS[case.layout]
    their_epsilon = mapped.attrs.get("epsilon", "epsilon") if mapped else "epsilon"
    epsilon = f'attrs["{their_epsilon}"]'
    if case.spec.epsilon_dtype == "float32":
        epsilon = f"np.float32({epsilon})"
    written_attrs = {name: repr(value) for name, value in attrs.items()}
    if is_tensor:
        written_attrs["epsilon"] = f"tf.make_tensor_proto({case.epsilon!r}, tf.float64)"
        epsilon = repr(case.epsilon)
    training = "\n    inside = inside - dy.mean(axes, keepdims=True)"
    training += "\n    slope = rstd**2 * (dy * xmu).mean(axes)"
    training += "\n    inside = inside - xmu * slope.reshape(per_channel)"
    wide = "longdouble" if case.dtype == "float64" else "float64"
    return _TEMPLATE.substitute(
        op=mapped.name if mapped else case.op,
        dtype=case.dtype,
        layout=case.layout,
        shape="x".join(map(str, case.shape)),
        mode=case.mode,
        case=original,
        imports="".join(f"import {name}\n" for name in dict.fromkeys(imports)),
        inputs="\n".join(f'    "{name}": {text},' for name, text in literals.items()),
        attrs="\n".join(f'    "{name}": {text},' for name, text in written_attrs.items()),
        ops=load,
        function=function,
        call=way,
        wide=wide,
        names=[by_role[role] for role in ("y_backprop", "x", "scale", "mean", "variance")],
        channel_axis=rank - 1 if channels_last else 1,
        epsilon=epsilon,
        training=training if case.is_training else "",
        checks=select + "\n".join(lines),
    )
