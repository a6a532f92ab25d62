"""Real inputs: what batch-norm layers see while a network trains on handwritten digits.

A small convolutional network trains on scikit-learn's bundled digits (1797 images of 8 x 8; no
download). At some steps, for every batch-norm layer, the gradient that arrives at its output, its
input, scale, the statistics that TensorFlow's forward op passes to the gradient op are kept, and
the running averages with which it would be evaluated. The network runs in a process of its own,
single-threaded and deterministic, so that a case means the same numbers when it is replayed on the
same kind of machine.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import REAL_PREFIX, Case, CaseError
from tf_bn_ops.conformance.cases.execution_modes import DRAWN
from tf_bn_ops.harness import processes
from tf_bn_ops.harness.problems import Inputs

# Layers: (filters, stride) of the convolution before a batch norm.
_LAYERS = ((16, 1), (24, 1), (32, 2), (48, 1), (64, 2))
_BATCH = 48
_STEPS = (0, 4, 20)
_EPSILON = 1e-3
_MOMENTUM = 0.9
_LEARNING_RATE = 0.1
# Those that the captured tensors are inputs of.
_FORMULAS = (spec.ops.BATCH_NORM_GRAD, spec.ops.BATCH_NORM)


class RealInputError(RuntimeError):
    """Real inputs are missing; the message is one sentence that says what to do."""


def check_available() -> None:
    """Raises RealInputError when scikit-learn is missing."""
    if importlib.util.find_spec("sklearn") is None:
        raise RealInputError(
            "the run on real input needs scikit-learn: install it (pip install scikit-learn) "
            "or leave real input out, as with --kinds=random"
        )


def _capture() -> dict[str, dict[str, np.ndarray]]:
    """Trains, and returns arrays by "layer2/step20" and role, all float32 and NHWC."""
    import tensorflow as tf
    from sklearn.datasets import load_digits

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    rng = np.random.default_rng(0)
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., None]
    labels = digits.target.astype(np.int64)

    def variable(*shape: int, fan_in: int) -> tf.Variable:
        return tf.Variable(rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32))

    channels = (1, *(filters for filters, _ in _LAYERS))
    kernels = [variable(3, 3, c, d, fan_in=9 * c) for c, d in itertools.pairwise(channels)]
    scales = [tf.Variable(tf.ones(filters)) for filters in channels[1:]]
    offsets = [tf.Variable(tf.zeros(filters)) for filters in channels[1:]]
    dense = variable(channels[-1], 10, fan_in=channels[-1])
    weights = [*kernels, *scales, *offsets, dense]
    averages = [[np.zeros(c, np.float32), np.ones(c, np.float32)] for c in channels[1:]]
    kept: dict[str, dict[str, np.ndarray]] = {}
    for step in range(max(_STEPS) + 1):
        chosen = rng.choice(len(images), _BATCH, replace=False)
        layers = []  # (x, what the forward op returns)
        with tf.GradientTape() as tape:
            h = tf.constant(images[chosen])
            for i, (_, stride) in enumerate(_LAYERS):
                x = tf.nn.conv2d(h, kernels[i], stride, "SAME")
                norm = tf.raw_ops.FusedBatchNormV3(
                    x=x, scale=scales[i], offset=offsets[i], mean=[], variance=[],
                    epsilon=_EPSILON, is_training=True,
                )  # fmt: skip
                layers.append((x, norm))
                h = tf.nn.relu(norm.y)
            logits = tf.reduce_mean(h, [1, 2]) @ dense
            entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[chosen], logits)
            loss = tf.reduce_mean(entropy)
        gradients = tape.gradient(loss, [*weights, *(norm.y for _, norm in layers)])
        for i, (x, norm) in enumerate(layers):
            for average, new in zip(
                averages[i], (norm.batch_mean, norm.batch_variance), strict=True
            ):
                average += (1 - _MOMENTUM) * (new.numpy() - average)
            if step in _STEPS:
                kept[f"layer{i + 1}/step{step}"] = {
                    "x": x.numpy(),
                    "y_backprop": gradients[len(weights) + i].numpy(),
                    "scale": scales[i].numpy(),
                    "mean": norm.reserve_space_1.numpy(),
                    "variance": norm.reserve_space_2.numpy(),  # Biased, as the gradient takes it.
                    "average_mean": averages[i][0].copy(),
                    "average_variance": averages[i][1].copy(),
                }
        for weight, gradient in zip(weights, gradients[: len(weights)], strict=True):
            weight.assign_sub(_LEARNING_RATE * gradient)
    return kept


class RealInput:
    """The inputs, which are captured in the background from the beginning."""

    def __init__(self) -> None:
        check_available()
        # oneDNN's rounding depends on the processor more than Eigen's.
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
        self._process = processes.Process("the capture of real input", __name__, [], environment)

    def close(self) -> None:
        """Ends the process."""
        self._process.close()

    @functools.cached_property
    def captured(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Name ("layer2/step20") -> role -> array.

        Raises:
          RealInputError: the capture failed.
        """
        try:
            self._process.wait_until_ready()
        except processes.WorkerError as e:
            raise RealInputError(
                f"capturing real input failed: {e}; --kinds=random leaves it out"
            ) from e
        finally:
            self.close()
        found: Mapping[str, Mapping[str, np.ndarray]] = self._process.facts
        return found

    def make_cases(self, combos: Sequence[tuple[str, str, str, str]]) -> Iterator[Case]:
        """Every capture in every dtype, layout and mode of the forward ops and of first-order
        gradients, whose inputs they are; ops of a formula take turns where several fit."""
        turn = 0
        combos = [c for c in combos if spec.OPS[c[0]].formula in _FORMULAS]
        for number, (name, arrays) in enumerate(self.captured.items()):
            seen = set()
            for op_name, dtype, layout, mode in combos:
                what = (spec.OPS[op_name].formula, dtype, layout, mode)
                if what in seen or spec.LAYOUTS[layout][0] != 4:
                    continue
                seen.add(what)
                fitting = [c[0] for c in combos if (spec.OPS[c[0]].formula, *c[1:]) == what]
                op = spec.OPS[fitting[(turn + number) % len(fitting)]]
                shape = arrays["x"].shape
                if layout == "NCHW":
                    shape = (shape[0], shape[3], shape[1], shape[2])
                statistics = "batch" if mode == "training" else "given"
                yield Case(
                    op, dtype, REAL_PREFIX + name, 0, layout, shape, mode, statistics, _EPSILON,
                    execution=DRAWN[turn % 7 == 6],
                )  # fmt: skip
                turn += 1

    def fill(self, case: Case) -> Inputs:
        """The numbers of a case whose kind is "digits/...".

        Raises:
          CaseError: there is no such capture, or it has another shape.
        """
        name = case.kind.removeprefix(REAL_PREFIX)
        if name not in self.captured:
            known = ", ".join(self.captured)
            raise CaseError(f"no real input {name!r}; there is: {known}")
        arrays = self.captured[name]
        prefix = "average_" if case.statistics == "given" else ""
        values: dict[str, Any] = {"scale": arrays["scale"]}
        values["forward_coefficients"] = np.zeros(0, np.float32)
        values["offset"] = np.zeros_like(arrays["scale"])
        for role in ("mean", "variance"):
            values[role] = arrays[prefix + role]
        statistics = spec.DTYPES[case.statistics_dtype].numpy
        values = {role: array.astype(statistics, copy=False) for role, array in values.items()}
        for role in ("x", "y_backprop"):
            array = arrays[role]
            if case.layout == "NCHW":
                array = array.transpose(0, 3, 1, 2)
            array = np.ascontiguousarray(array.astype(spec.DTYPES[case.dtype].numpy))
            if array.shape != case.shape:
                raise CaseError(f"{case.kind} has shape {array.shape}, not {case.shape}")
            values[role] = array
        # The running averages of the network's layers.
        of_forward = {"exponential_avg_factor": 1 - _MOMENTUM}
        is_forward = "exponential_avg_factor" in case.spec.attrs
        return Inputs(values, attrs=of_forward if is_forward else {})


if __name__ == "__main__":
    processes.serve(sys.argv, lambda: (_capture(), lambda request: None))
