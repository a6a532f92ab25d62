"""Judges TensorFlow's ops of this library on a GPU: python tools/gpu/tensorflow_test.py [--probe].

Runs the cases of `make conformance`, with tensors on the GPU, within the error bounds of the
GPU kernels (profile two-level); in training
reserve_space_2 is the inverse standard deviation there, which forward ops return and gradients
take. The built-in ops are measured for comparison. Needs a TensorFlow that sees a GPU, and the
package built for it with GPU kernels (`make gpu`); `make gpu-test` takes care of both. Without such
a TensorFlow it prints why it is skipped and succeeds. --probe: only that, with exit status 3;
--emulated: what XLA compiles for a GPU, on the CPU, to try the script itself.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import repository  # noqa: F401
import tool_flags

from tf_bn_ops import spec
from tf_bn_ops.harness.problems import Inputs

NO_GPU = 3
# Two of every combination of op, element type, layout and mode, and some large ones.
CASES = 160
SEED = 1


def missing() -> str:
    """What is missing to run here, or nothing."""
    try:
        import tensorflow as tf
    except ImportError:
        return f"{sys.executable} has no TensorFlow"
    if not tf.config.list_physical_devices("GPU"):
        return f"TensorFlow {tf.__version__} of {sys.executable} sees no GPU"
    return ""


def with_rstd(inputs: Inputs, epsilon: float) -> tuple[np.ndarray, Inputs] | None:
    """rstd in float32, and the inputs with the variance that belongs to it; None: there is none."""
    epsilon = np.float64(np.float32(epsilon))
    with np.errstate(all="ignore"):
        variance = inputs.values["variance"].astype(np.float64)
        rstd = (1 / np.sqrt(variance + epsilon)).astype(np.float32)
        variance = 1 / rstd.astype(np.float64) ** 2 - epsilon
    if not np.isfinite(variance).all() or (variance + epsilon <= 0).any():
        return None
    # Exact fills stay exact in the sums; outputs that depend on rstd are rounded once more.
    exact = inputs.exact & {"offset_backprop"}
    return rstd, Inputs({**inputs.values, "variance": variance}, exact)


def saving_rstd(inputs: Inputs) -> Inputs:
    """The inputs of a forward op whose reserve_space_2 is rstd, which no exact fill makes exact."""
    attrs = {**inputs.attrs, "saves_rstd": True}
    return dataclasses.replace(inputs, attrs=attrs, exact=inputs.exact - {"saved_variance"})


def with_lists(op: Callable[..., Any], lists: list[str]) -> Callable[..., Any]:
    """`op` as a function of tensors, where it takes `lists` of at most one."""

    @functools.wraps(op)
    def call(**arguments: Any) -> Any:
        given = {name: [arguments[name]] if name in arguments else [] for name in lists}
        return op(**{**arguments, **given})

    return call


def ops_of_device(emulated: bool) -> list[str]:
    """The ops that have a kernel for the device; of the emulated one, the forward and first-order
    ones, which try the script."""
    from tensorflow.python.framework import kernels

    import tf_bn_ops

    tf_bn_ops.load()
    device = "XLA_GPU_JIT" if emulated else "GPU"
    formulas = (spec.ops.BATCH_NORM, spec.ops.BATCH_NORM_ADD, spec.ops.BATCH_NORM_GRAD)
    return [
        op.name
        for op in spec.OPS.values()
        if (not emulated or op.formula in formulas)
        and device
        in {k.device_type for k in kernels.get_registered_kernels_for_op(op.registered_name).kernel}
    ]


def caller(tf: Any, emulated: bool) -> Callable[..., Any]:
    """Runs an op on the GPU and checks its placement."""
    if emulated:
        import xla_gpu_target

        xla_gpu_target.register()
        return lambda op, inputs, attrs: xla_gpu_target.run(
            lambda *tensors: op(**dict(zip(inputs, tensors, strict=True)), **attrs),
            *inputs.values(),
        )
    tf.config.set_soft_device_placement(False)

    def call(op: Any, inputs: dict[str, Any], attrs: dict[str, Any]) -> Any:
        with tf.device("/GPU:0"):
            outputs = op(**{name: tf.constant(v) for name, v in inputs.items()}, **attrs)
        if "GPU" not in outputs[0].device:
            raise RuntimeError(f"the op ran on {outputs[0].device}")
        return outputs

    return call


def judge_case(
    tf: Any, case: Any, call: Callable[..., Any], emulated: bool
) -> tuple[str, Mapping[str, float]]:
    """What is wrong, or nothing; the worst error in units of the bound, by implementation."""
    from tf_bn_ops import raw_ops
    from tf_bn_ops.conformance.execution import implementations
    from tf_bn_ops.conformance.execution.answer import Answer
    from tf_bn_ops.conformance.models import bounds, formula_models
    from tf_bn_ops.conformance.verdict.judge import judge

    inputs = formula_models.model_of(case.spec).fill(case)
    request = implementations.request(case, inputs)
    if case.is_training and "reserve_space_2" in request["inputs"]:
        converted = with_rstd(inputs, case.epsilon)
        if converted is None:
            return "", {}
        request["inputs"]["reserve_space_2"], inputs = converted
    if case.is_training and "saved_variance" in {arg.role for arg in case.spec.outputs}:
        inputs = saving_rstd(inputs)
    ours = with_lists(getattr(raw_ops, case.op), request["lists"])
    ops = {implementations.CANDIDATE: ours}
    if not emulated and case.spec.builtin is not None:
        ops["builtin"] = getattr(tf.raw_ops, case.spec.builtin)
    answers = {}
    try:
        for name, op in ops.items():
            outputs = call(op, request["inputs"], request["attrs"])
            answers[name] = Answer([output.numpy() for output in tf.nest.flatten(list(outputs))])
    except (tf.errors.OpError, RuntimeError) as error:
        return str(error), {}
    # Emulated, the CPU kernels compute.
    profile = bounds.PROFILES["strict" if emulated else "two-level"]
    result = judge(case, inputs, answers, profile)
    path = result.paths[implementations.CANDIDATE]
    wrong = [d.detail for d in path.disagreements] + result.failures
    return next(iter(wrong), ""), {
        name: max((error.bound for error in path.errors.values()), default=0.0)
        for name, path in result.paths.items()
    }


def main(arguments: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--probe", action="store_true", help="only say whether there is a GPU")
    parser.add_argument("--emulated", action="store_true", help="try the script on the CPU")
    parser.add_argument("--cases", type=int, default=CASES, help="how many")
    flags = parser.parse_args(arguments)
    if not flags.emulated and missing():
        print(f"gpu-test: TensorFlow's ops skipped, {missing()}; nothing of them was tested.")
        return NO_GPU if flags.probe else 0
    if flags.probe:
        return 0

    import tensorflow as tf

    from tf_bn_ops.conformance.cases import generate

    call = caller(tf, flags.emulated)
    failures, worst = 0, {"candidate": 0.0, "builtin": 0.0}
    combos = generate.combinations(ops_of_device(flags.emulated))
    # XLA's operations in float64 are left out there, as in test_every_op.py, which says why.
    cases = (
        case
        for case in generate.generate(2 * flags.cases, SEED, combos)
        if not (flags.emulated and case.kind == "odd_statistics" and case.dtype == "float64")
    )
    for case in itertools.islice(cases, flags.cases):
        wrong, errors = judge_case(tf, case, call, flags.emulated)
        for name, error in errors.items():
            worst[name] = max(worst[name], error)
        if wrong:
            failures += 1
            print(f"  FAILED {case}: {wrong}")
    where = "what XLA compiles for a GPU, on the CPU" if flags.emulated else "on the GPU"
    builtin = "" if flags.emulated else f", the built-in's {worst['builtin']:.3g}"
    print(
        f"gpu-test of TensorFlow's ops ({where}), {flags.cases} cases: {failures} failed; "
        f"the worst error is {worst['candidate']:.3g} of its bound{builtin}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
