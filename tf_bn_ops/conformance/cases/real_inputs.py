"""Real inputs: what batch-norm layers see while a network trains on handwritten digits.

A small convolutional network trains on scikit-learn's bundled digits (1797 images of 8 x 8; no
download). At some steps, for every batch-norm layer, the gradient that arrives at its output, its
input, scale, the statistics that TensorFlow's forward op passes to the gradient op are kept, and
the running averages with which it would be evaluated. The network runs in a process of its own
(`python -m tf_bn_ops.conformance.cases.real_inputs FILE`), single-threaded and deterministic, so
that a case means the same numbers when it is replayed on the same kind of machine.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import REAL_PREFIX, Case, CaseError
from tf_bn_ops.conformance.cases.execution_modes import DRAWN
from tf_bn_ops.harness.problems import Inputs

# Layers: (filters, stride) of the convolution before a batch norm.
_LAYERS = ((16, 1), (24, 1), (32, 2), (48, 1), (64, 2))
_BATCH = 48
_STEPS = (0, 4, 20)
_EPSILON = 1e-3
_MOMENTUM = 0.9
_LEARNING_RATE = 0.1
_TIMEOUT = 300
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


class _Layer(NamedTuple):
    """Tensors of one batch-norm layer in one step."""

    x: Any
    y: Any
    mean: Any
    variance: Any  # Biased, as the reserve spaces carry it.
    batch_mean: Any
    batch_variance: Any  # Unbiased.


class _Network:
    """The network's variables, and the running averages of its batch-norm layers."""

    def __init__(self, rng: np.random.Generator) -> None:
        import tensorflow as tf

        self._tf = tf

        def variable(*shape: int, fan_in: int) -> tf.Variable:
            return tf.Variable(rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32))

        self.scales: list[Any] = []
        self.averages: list[list[np.ndarray]] = []
        self._kernels, self._offsets = [], []
        channels = 1
        for filters, _ in _LAYERS:
            self._kernels.append(variable(3, 3, channels, filters, fan_in=9 * channels))
            self.scales.append(tf.Variable(tf.ones(filters)))
            self._offsets.append(tf.Variable(tf.zeros(filters)))
            self.averages.append([np.zeros(filters, np.float32), np.ones(filters, np.float32)])
            channels = filters
        self._dense = variable(channels, 10, fan_in=channels)
        self.weights = [*self._kernels, *self.scales, *self._offsets, self._dense]

    def forward(self, images: np.ndarray) -> tuple[Any, list[_Layer]]:
        """The logits of the images, and what the batch-norm layers saw."""
        tf, layers = self._tf, []
        h = tf.constant(images)
        for (_, stride), kernel, scale, offset in zip(
            _LAYERS, self._kernels, self.scales, self._offsets, strict=True
        ):
            x = tf.nn.conv2d(h, kernel, stride, "SAME")
            y = tf.raw_ops.FusedBatchNormV3(
                x=x, scale=scale, offset=offset, mean=[], variance=[],
                epsilon=_EPSILON, is_training=True,
            )  # fmt: skip
            layers.append(
                _Layer(x, y.y, y.reserve_space_1, y.reserve_space_2, y.batch_mean, y.batch_variance)
            )
            h = tf.nn.relu(y.y)
        return tf.reduce_mean(h, [1, 2]) @ self._dense, layers

    def gradients(self, images: np.ndarray, labels: np.ndarray) -> tuple[list[_Layer], list[Any]]:
        """The layers in one step, and the gradients by weights and by the layers' outputs."""
        tf = self._tf
        with tf.GradientTape() as tape:
            logits, layers = self.forward(images)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        outputs = [layer.y for layer in layers]
        gradients = tape.gradient(loss, [*self.weights, *outputs])
        for averages, layer in zip(self.averages, layers, strict=True):
            for average, new in zip(
                averages, (layer.batch_mean, layer.batch_variance), strict=True
            ):
                average += (1 - _MOMENTUM) * (new.numpy() - average)
        return layers, gradients

    def update(self, gradients: Sequence[Any]) -> None:
        """Gradient descent."""
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(_LEARNING_RATE * gradient)


def _capture() -> dict[str, np.ndarray]:
    """Trains, and returns arrays by "layer2/step20/x" and so on, all float32 and NHWC."""
    import tensorflow as tf
    from sklearn.datasets import load_digits

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    rng = np.random.default_rng(0)
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., None]
    labels = digits.target.astype(np.int64)
    network = _Network(rng)
    kept: dict[str, np.ndarray] = {}
    for step in range(max(_STEPS) + 1):
        chosen = rng.choice(len(images), _BATCH, replace=False)
        layers, gradients = network.gradients(images[chosen], labels[chosen])
        of_outputs = gradients[len(network.weights) :]
        if step in _STEPS:
            for i, (layer, y_backprop) in enumerate(zip(layers, of_outputs, strict=True)):
                average_mean, average_variance = network.averages[i]
                arrays = {
                    "x": layer.x.numpy(),
                    "y_backprop": y_backprop.numpy(),
                    "scale": network.scales[i].numpy(),
                    "mean": layer.mean.numpy(),
                    "variance": layer.variance.numpy(),
                    "average_mean": average_mean.copy(),
                    "average_variance": average_variance.copy(),
                }
                kept |= {f"layer{i + 1}/step{step}/{role}": a for role, a in arrays.items()}
        network.update(gradients[: len(network.weights)])
    return kept


@dataclasses.dataclass(frozen=True)
class RealInput:
    """The captured arrays: name ("layer2/step20") -> role -> array."""

    captured: Mapping[str, Mapping[str, np.ndarray]]

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


class Capture:
    """The capture, running in the background."""

    def __init__(self) -> None:
        check_available()
        self._folder = tempfile.TemporaryDirectory()
        self._file = pathlib.Path(self._folder.name, "capture.npz")
        self._log = pathlib.Path(self._folder.name, "log")
        root = str(pathlib.Path(__file__).resolve().parents[3])
        paths = [root, os.environ.get("PYTHONPATH", "")]
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            # oneDNN's rounding depends on the processor more than Eigen's.
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self._file)],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def result(self) -> RealInput:
        """Waits for the capture.

        Raises:
          RealInputError: it failed.
        """
        try:
            status = self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if status or not self._file.exists():
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RealInputError(
                f"capturing real input failed with status {status}: {' '.join(last)}; "
                "--kinds=random leaves it out"
            )
        captured: dict[str, dict[str, np.ndarray]] = {}
        with np.load(self._file) as arrays:
            for key in arrays.files:
                name, _, role = key.rpartition("/")
                captured.setdefault(name, {})[role] = arrays[key]
        return RealInput(captured)

    def close(self) -> None:
        """Ends the process if it still runs, and removes its file."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


if __name__ == "__main__":
    arrays: dict[str, Any] = dict(_capture())  # savez has other types in other versions of NumPy.
    np.savez(sys.argv[1], **arrays)
