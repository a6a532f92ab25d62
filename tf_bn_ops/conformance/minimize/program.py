"""A failing problem as a Python program of its own: TensorFlow, NumPy and the op, nothing else.

It computes the right answer by the formula of the op's model, in float64 (long double for
float64), compares the op's answer with it, prints what differs, and exits with status 1 while the
op is wrong.
"""

from __future__ import annotations

import base64
import inspect
import io
import math
import string
from typing import Any

import numpy as np

from tf_bn_ops import _loader, spec
from tf_bn_ops.conformance.cases.case import Case, Problem
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution.devices import INTERNAL
from tf_bn_ops.conformance.execution.implementations import OWN_OPS, Implementation, request
from tf_bn_ops.conformance.execution.worker import LIBRARY_PREFIX, PLUGIN_PREFIX
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.models.measure import assembled
from tf_bn_ops.conformance.verdict.judge import Output, expect
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness.problems import VIEW_ROLES

# Elements up to which a tensor is written as numbers; a larger one as a compressed block.
_READABLE = 256
# Elements of a tensor beyond which there is no program: it would not be readable.
_MOST = 50_000
# Execution modes that a program can show -> the expression of the function to call.
_FUNCTIONS = {"eager": "call", "graph": "tf.function(call)"}

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
    return ops.$function(**$arguments, **attrs)


try:
    outputs = $call(*[tf.constant(value) for value in inputs.values()])
except Exception as error:
    sys.exit(f"$op failed: {type(error).__name__}: {error}")


$formula

wide = np.$wide
names = $names
values = {role: inputs[name].astype(wide) for role, name in names.items()}
values["epsilon"] = wide($epsilon)
${read}axes = tuple(axis for axis in range(values["x"].ndim) if axis != $channel_axis)
column = [-1 if axis == $channel_axis else 1 for axis in range(values["x"].ndim)]
with np.errstate(all="ignore"):
    right = $right(np, values, axes, column, $is_training)

failed = False


def check(number, name, right, dtype, largest, allowed=None, nan_required=False):
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
            good &= ~(np.isnan(right) & np.isinf(c) & nan_required)
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
    """The elements as Python numbers, as few digits as identify them."""
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


def _rounded_up(bound: np.ndarray) -> np.ndarray:
    """A bound of few digits that is not below the given one."""
    flat = [v if not math.isfinite(v) or v == 0 else float(f"{v * 1.001:.3g}") for v in bound.flat]
    return np.array(flat, float).reshape(bound.shape)


def _library(candidate: Implementation, case: Case) -> tuple[str, str]:
    """Where the op is: the line that sets `ops`, the name of its function."""
    if candidate.ops == OWN_OPS:
        function = case.spec.registered_name.replace(">", "_")
        return f"ops = tf.load_op_library({_loader.library_path()!r})", function
    if candidate.ops.startswith(LIBRARY_PREFIX):
        path = candidate.ops.removeprefix(LIBRARY_PREFIX)
        mapped = candidate.mapping_of(case.spec)
        assert mapped is not None
        return f"ops = tf.load_op_library({path!r})", mapped.function
    on_device = ""
    if device := candidate.devices.get(case.op):
        on_device = "tf.config.set_soft_device_placement(False)\n"
        on_device += f"tf.device({device!r}).__enter__()\n"
    if candidate.ops.startswith(PLUGIN_PREFIX):
        load = ""
        if path := candidate.ops.removeprefix(PLUGIN_PREFIX):
            load = "from tensorflow.python.framework import load_library\n"
            load += f"load_library.load_pluggable_device_library({path!r})\n"
        return f"{load}{on_device}ops = tf.raw_ops", case.op
    module, _, attribute = candidate.ops.partition(":")
    if module == "tensorflow":
        return f"{on_device}ops = tf.{attribute}", case.op
    found = f'importlib.import_module("{module}")' + (f".{attribute}" if attribute else "")
    return f"ops = {found}", case.op


def _checks(problem: Problem, names: list[str], settings: Settings) -> str:
    """The calls of check(), one for each output; `names` are those in the candidate's library."""
    case = problem.case
    times = settings.times(case)
    expected = expect(case, problem.inputs, settings.profile)
    exact = expected.exact - set(times)
    parts = list(expected.parts)
    lines = []
    for i, (output, name) in enumerate(zip(expected.outputs, names, strict=True)):
        dtype = spec.dtype_of(np.empty(0, output.dtype))
        written = (
            "tf.bfloat16.as_numpy_dtype" if dtype.name == "bfloat16" else repr(output.dtype.name)
        )
        if output.shape is None:
            continue  # Any will do.
        right, more = f"np.zeros({list(output.shape)})", ""
        if output.judged:
            right = f'right["{output.role}"]'
            bound = np.zeros(output.shape)
            if output.role in exact:
                right = f"{right}.astype({written}).astype(wide)"
            else:
                view = _view_shape(case, output)
                bound = assembled(parts, output.role, "bound", view).reshape(output.shape)
                bound = bound.astype(float) * times.get(output.role, 1)
            more = f",\n      {_literal(_rounded_up(bound))}"
            if any(flags := _nan_required(parts, case, output)):
                shape = ".reshape(column)" if output.role in VIEW_ROLES else ""
                more += f",\n      np.array({flags}){shape}"
        lines.append(f'check({i}, "{name}", {right}, {written}, {dtype.largest!r}{more})')
    return "\n".join(lines)


def _view_shape(case: Case, output: Output) -> tuple[int, ...]:
    assert output.shape is not None
    is_view = output.role in VIEW_ROLES
    return spec.view_shape(case.shape, case.layout) if is_view else output.shape


def _nan_required(parts: list[Any], case: Case, output: Output) -> list[bool]:
    """Per channel of an output: whether a NaN may not be answered by infinity."""
    required = np.zeros(_view_shape(case, output), bool)
    for part in parts:  # None where the output is empty.
        if part.role == output.role and part.nan_required is not None:
            required[part.at] |= part.nan_required
    return list(map(bool, np.atleast_1d(required.any((0, 2)) if required.ndim == 3 else required)))


def program(problem: Problem, original: str, settings: Settings) -> str | None:
    """The text of a program for a problem, reduced from the case of the name `original`; None where
    it cannot be shown in this way: it is too large, its execution mode takes more than a program,
    or the op has no Python name."""
    case, candidate = problem.case, settings.candidate
    nameless = case.op in INTERNAL and case.op in candidate.devices
    if math.prod(case.shape) > _MOST or case.execution not in _FUNCTIONS or nameless:
        return None
    mapped = candidate.mapping_of(case.spec)
    asked = request(case, problem.inputs, mapped)
    load, name = _library(candidate, case)
    function = _FUNCTIONS[case.execution]
    attrs = {name: repr(value) for name, value in asked["attrs"].items()}
    if candidate.ops == OWN_OPS:
        attrs, function = _own_epsilon(case, attrs, function)
    inputs = {name: _literal(np.asarray(value)) for name, value in asked["inputs"].items()}
    checks = _checks(problem, asked["outputs"], settings)
    if len(asked["outputs"]) == 1 or any(a.kind == spec.VIEW_LIST for a in case.spec.outputs):
        checks = "outputs = tf.nest.flatten(outputs)\n" + checks
    elif mapped:  # Outputs of another library come in its order.
        select = f"outputs = [getattr(outputs, name) for name in {asked['outputs']}]\n"
        checks = select + checks
    text = load + checks + "".join(inputs.values())
    modules = [module for module in ("importlib", "base64", "io") if f"{module}." in text]
    return _TEMPLATE.substitute(
        op=mapped.name if mapped else case.op,
        dtype=case.dtype,
        layout=case.layout,
        shape="x".join(map(str, case.shape)),
        mode=case.mode,
        case=original,
        imports="".join(f"import {module}\n" for module in modules),
        inputs="\n".join(f'    "{name}": {text},' for name, text in inputs.items()),
        attrs="\n".join(f'    "{name}": {text},' for name, text in attrs.items()),
        ops=load,
        function=name,
        call=function,
        formula=_formula(problem),
        right=model_of(case.spec).formula.__name__,
        wide="longdouble" if case.dtype == "float64" else "float64",
        names=_names(problem, mapped),
        arguments=_arguments(list(inputs), asked["lists"]),
        read=_read(problem),
        epsilon=_epsilon(case),
        channel_axis=spec.channel_axis(case.layout),
        is_training=case.is_training,
        checks=checks,
    )


def _arguments(inputs: list[str], lists: list[str]) -> str:
    """The expression of the op's inputs; of a list of tensors, none or one is given."""
    plain = "dict(zip(inputs, tensors))"
    if not lists:
        return plain
    elements = {name: f"[tensors[{inputs.index(name)}]]" for name in lists if name in inputs}
    text = ", ".join(f'"{name}": {elements.get(name, "[]")}' for name in lists)
    return f"{{**{plain}, {text}}}"


def _read(problem: Problem) -> str:
    """The attrs that the formula reads besides epsilon, a line each."""
    lines = []
    for name, value in problem.inputs.attrs.items():
        text = f"float(np.float32({value!r}))" if isinstance(value, float) else repr(value)
        if name == "activation_mode":
            name, text = "activation", value
        lines.append(f'values["{name}"] = {text}\n')
    return "".join(lines)


def _names(problem: Problem, mapped: OpMapping | None) -> dict[str, str]:
    """The name of the input of each role that the formula reads."""
    renamed = mapped.inputs if mapped else {}
    return {
        arg.role: renamed.get(arg.name, arg.name)
        for arg in problem.case.spec.inputs
        if arg.role in problem.inputs.values
        and (arg.kind != spec.OPAQUE or problem.inputs.values[arg.role].ndim == 2)
    }


def _epsilon(case: Case) -> str:
    """Epsilon as the kernel has it."""
    written = repr(case.epsilon)
    return f"np.float32({written})" if case.spec.epsilon_dtype == "float32" else written


def _formula(problem: Problem) -> str:
    """The text of the model's formula, of the activation, and of functions that they call, without
    type hints."""
    needed: list[Any] = [model_of(problem.case.spec).formula]
    if activation := problem.inputs.attrs.get("activation_mode"):
        needed += spec.ACTIVATIONS[activation].__mro__[:-1]
    for each in needed:  # To which are added the functions that it calls.
        methods = [m.__func__ for m in vars(each).values() if hasattr(m, "__func__")]
        for function in [each] if inspect.isfunction(each) else methods:
            called = [function.__globals__.get(name) for name in function.__code__.co_names]
            needed += [f for f in called if inspect.isfunction(f) and f not in needed]
    text = "\n\n\n".join(inspect.getsource(each).rstrip() for each in reversed(needed))
    for hint in (": Mapping[str, Any]", ": Mapping[float, float]", ": Any", " -> Any"):
        text = text.replace(hint, "")
    return text


def _own_epsilon(case: Case, attrs: dict[str, str], function: str) -> tuple[dict[str, str], str]:
    """Epsilon as the OpDefs of this library have it, where it keeps its double precision."""
    if case.spec.epsilon_dtype == "float32":
        return attrs, function
    if "data_format" in attrs:  # The first float, and those that are added to it.
        from tf_bn_ops._arguments import split_epsilon

        first, rest = split_epsilon(case.epsilon, function)
        return {**attrs, "epsilon": repr(first), "epsilon_rest": repr(rest)}, function
    # An attr of type tensor, which TensorFlow takes in graphs only.
    tensor = f"tf.make_tensor_proto({case.epsilon!r}, tf.float64)"
    return {**attrs, "epsilon": tensor}, _FUNCTIONS["graph"]
