"""A failing problem as a Python program of its own: TensorFlow, NumPy and the op, nothing else.

It holds the right answer of the op's formula model with its bound, element by element, compares the
op's answer with it, prints what differs, and exits with status 1 while the op is wrong.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import io
import math
import string

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case, Problem
from tf_bn_ops.conformance.execution.devices import INTERNAL
from tf_bn_ops.conformance.execution.implementations import Implementation, request
from tf_bn_ops.conformance.execution.worker import LIBRARY_PREFIX, PLUGIN_PREFIX
from tf_bn_ops.conformance.models.portable_judge import (
    FINITE_REQUIRED,
    NAN_REQUIRED,
    NONFINITE_EXACT,
    wrong,
)
from tf_bn_ops.conformance.verdict.judge import expect
from tf_bn_ops.conformance.verdict.settings import Settings

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


tensors = [tf.constant(value) for value in inputs.values()]
try:
    outputs = $call(*tensors)
except Exception as error:
    sys.exit(f"$op failed: {type(error).__name__}: {error}")


NAN_REQUIRED, FINITE_REQUIRED, NONFINITE_EXACT = $rules


$wrong


failed = False
for name, tensor in zip(inputs, tensors):
    if tensor.numpy().tobytes() != inputs[name].tobytes():
        print(f"the input {name} has been changed")
        failed = True


def check(number, name, dtype, largest, value, bound=np.inf, rule=np.uint8(0)):
    """Compares an output with the right answer; `bound` is how far from it an element may be."""
    global failed
    given = outputs[number].numpy()
    if given.shape != value.shape or given.dtype != np.dtype(dtype):
        print(f"{name}: shape {list(given.shape)}, {given.dtype}; "
              f"right: {list(value.shape)}, {np.dtype(dtype)}")
        failed = True
        return
    c = given.astype(np.float64)
    bad = np.broadcast_to(wrong(c, value, bound, rule, largest), c.shape)
    for at in map(tuple, np.argwhere(bad)[:10]):
        print(f"{name}{list(map(int, at))}: {c[at]!s} instead of {value[at]!s}, "
              f"allowed error {bound[at]:.3g}")
    failed |= bool(bad.any())


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
    expected = dataclasses.replace(expected, exact=expected.exact - set(times))
    arrays = expected.arrays(case.layout)
    lines = []
    for i, (output, name) in enumerate(zip(expected.outputs, names, strict=True)):
        if output.shape is None:
            continue  # Any will do.
        dtype = spec.dtype_of(np.empty(0, output.dtype))
        written = (
            "tf.bfloat16.as_numpy_dtype" if dtype.name == "bfloat16" else repr(output.dtype.name)
        )
        right = [f"np.zeros({list(output.shape)})"]
        if output.judged:
            found = arrays[output.role]
            bound = _rounded_up(found["bound"] * times.get(output.role, 1))
            right = [_literal(found["value"]), _literal(bound)]
            right += [_literal(found["rule"])] if found["rule"].any() else []
        given = ",\n      ".join(right)
        lines.append(f'check({i}, "{name}", {written}, {dtype.largest!r},\n      {given})')
    return "\n".join(lines)


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
        rules=f"{NAN_REQUIRED}, {FINITE_REQUIRED}, {NONFINITE_EXACT}",
        wrong=inspect.getsource(wrong).rstrip(),
        arguments=_arguments(list(inputs), asked["lists"]),
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
