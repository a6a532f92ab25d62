"""Judges TensorFlow's ops of this library on a GPU: python tools/gpu/tensorflow_test.py [--probe].

The cases and error bounds are those of `make conformance`, called with tensors on the GPU; in
training reserve_space_2 is the inverse standard deviation, as TensorFlow's forward op gives it
there. TensorFlow's own ops are measured beside. Needs a TensorFlow that sees a GPU, and the package
built for it with GPU kernels ('make gpu'); `make gpu-test` sees to both. Without such a TensorFlow
it says so and succeeds. --probe: only that, with exit status 3; --emulated: what XLA compiles for
a GPU, on the CPU.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

NO_GPU = 3
# Two of every combination of op, type, layout and mode, and some large ones.
CASES = 160
SEED = 1
OUTPUTS = ("x_backprop", "scale_backprop", "offset_backprop")


def missing() -> str:
    """What is missing to run here, or nothing."""
    try:
        import tensorflow as tf
    except ImportError:
        return f"{sys.executable} has no TensorFlow"
    if not tf.config.list_physical_devices("GPU"):
        return f"TensorFlow {tf.__version__} of {sys.executable} sees no GPU"
    return ""


def with_rstd(values: dict[str, np.ndarray], epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """The inverse deviation, rounded to float32, and the variance that belongs to it exactly."""
    with np.errstate(all="ignore"):
        variance = values["variance"].astype(np.float64)
        rstd = (1 / np.sqrt(variance + np.float32(epsilon))).astype(np.float32)
        return rstd, 1 / rstd.astype(np.float64) ** 2 - np.float64(np.float32(epsilon))


def caller(tf: Any, emulated: bool) -> Callable[..., Any]:
    """Runs an op on the GPU and checks that it was there."""
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--probe", action="store_true", help="say whether there is a GPU")
    parser.add_argument("--emulated", action="store_true", help="try the script on the CPU")
    parser.add_argument("--cases", type=int, default=CASES, help="how many")
    flags = parser.parse_args(arguments)
    if not flags.emulated and missing():
        print(f"gpu-test: TensorFlow's ops skipped, {missing()}; nothing of them was tested.")
        return NO_GPU if flags.probe else 0
    if flags.probe:
        return 0

    import tensorflow as tf

    import tf_bn_ops
    from tf_bn_ops.conformance import cases, fills, workers
    from tf_bn_ops.conformance.judge import Answer, judge, structure
    from tf_bn_ops.harness import bounds

    call = caller(tf, flags.emulated)
    failures, worst = 0, {"candidate": 0.0, "builtin": 0.0}
    for case in cases.generate(flags.cases, SEED):
        filled = fills.fill(case)
        asked = workers.request(case, filled, case.spec)
        inputs, attrs = asked["inputs"], asked["attrs"]
        if case.is_training and "reserve_space_2" in inputs:
            rstd, variance = with_rstd(filled.values, case.epsilon)
            if not np.isfinite(variance).all() or (variance + case.epsilon <= 0).any():
                continue  # No variance has that inverse deviation.
            inputs["reserve_space_2"] = rstd
            # Sums are as exact as before; what rstd is part of is rounded once more.
            filled = fills.Filled(
                {**filled.values, "variance": variance}, filled.exact & {"offset_backprop"}
            )
        answers = {}
        try:
            outputs = call(getattr(tf_bn_ops.raw_ops, case.op), inputs, attrs)
            answers["candidate"] = Answer([output.numpy() for output in outputs])
            wrong = [d.detail for d in structure(case, answers["candidate"])]
            if not flags.emulated and case.spec.builtin is not None:
                outputs = call(getattr(tf.raw_ops, case.spec.builtin), inputs, attrs)
                answers["builtin"] = Answer([output.numpy() for output in outputs])
        except (tf.errors.OpError, RuntimeError) as error:
            wrong = [str(error)]
        if "candidate" in answers and not wrong:
            result = judge(case, filled, answers, bounds.PROFILES["strict"])
            wrong = result.failures
            for name, path in result.paths.items():
                worst[name] = max(worst[name], path.bound)
        if wrong:
            failures += 1
            print(f"  FAILED {case}: {wrong[0]}")
    where = "what XLA compiles for a GPU, on the CPU" if flags.emulated else "on the GPU"
    theirs = "" if flags.emulated else f", the built-in's {worst['builtin']:.3g}"
    print(
        f"gpu-test of TensorFlow's ops ({where}), {flags.cases} cases: {failures} failed; "
        f"the worst error is {worst['candidate']:.3g} of its bound{theirs}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
