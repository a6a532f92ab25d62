"""Moving statistics of given weights: exact ones, of all samples of a data set.

After weights were averaged, swapped, rounded or copied, the moving statistics belong to other
weights. PyTorch's name for what is here is `torch.optim.swa_utils.update_bn`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tf_bn_ops import _replicas, _sync
from tf_bn_ops.generated import bindings
from tf_bn_ops.keras._fused_call import _PARENT_MOMENTS, weights_of
from tf_bn_ops.keras._replace import _KERAS_LAYER, Report, _batch_norms, _checked
from tf_bn_ops.keras._verify import _restored

__all__ = ["UpdateBatchNorm", "update_batch_norm"]

_NOT_CALLED, _NO_SAMPLES = "is not called in training mode", "got no samples"
_Verbose = Literal["auto", 0, 1, 2]
_FUNCTION: Any = type(tf.function(lambda: None))
_LOCK, _PASS = threading.RLock(), threading.local()


def update_batch_norm(
    model: Any,
    data: Any,
    steps: int | None = None,
    passes: int = 1,
    *,
    batch_size: int | None = None,
    dropout: bool = False,
    verbose: _Verbose = "auto",
) -> Report:
    """Sets moving mean and variance to the exact statistics of all samples of `data`.

    The model is called on the data in training mode, and each normalization measures its input:
    counts and sums in float64, merged by Chan's formula, so that every sample counts the same
    whatever the sizes of batches and the number of replicas. Samples that a mask leaves out do not
    count. Nothing else has changed at the end: no weight, optimizer, metric, random state, nor the
    state of another layer.

    A layer's input depends on the layers before it. In one pass these normalise by the batch, as in
    training and as in PyTorch. In each further pass they normalise by the statistics of the pass
    before, as in inference: after n passes the first n normalizations of a chain have the exact
    statistics of what reaches them in inference, and the others are close to it.

    Layers with `trainable=False`, those that a call does not reach in training mode, and those with
    `renorm` or moments of their own keep their statistics. They are logged by name with the reason
    (logger "tf_bn_ops").

    Args:
      model: a built Keras model; it need not be compiled.
      data: what `fit` takes as `x`: a tf.data.Dataset, keras.utils.PyDataset, generator, array,
        dict or list of arrays; or a tuple (x, y) or (x, y, sample_weight) of them. y and sample
        weights are not read.
      steps: batches of each pass; None: all.
      passes: how often the data is passed through the model.
      batch_size: of arrays; None: as in `predict`, 32, but with `steps` so many that these batches
        hold all samples.
      dropout: whether layers without a normalization in them, such as Dropout and random
        augmentation, are in training mode as well. Their random state is put back.
      verbose: as in `predict`, whose progress bar it is, one line each pass.

    Returns:
      A report to be printed, with two fields: `done`, the paths of the normalizations that were
      updated, and `kept`, a dict of the others from path to reason.

    Raises:
      TypeError: no Keras model.
      ValueError: the model is not built, a generator is to be passed twice, or statistics are not
        finite. The model is as it was then.
    """
    if not isinstance(_checked(model), keras.Model):
        raise TypeError(
            f"this takes a model, not the layer {model.name!r}: wrap it in a Sequential"
        )
    if not model.built:
        raise ValueError(
            f"{model.name!r} has no weights yet, whose statistics these would be: call it once on "
            "a batch, or load its weights, before"
        )
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"passes is {passes!r}, it must be a number from 1 on")
    if passes > 1 and inspect.isgenerator(data):
        raise ValueError("a generator can be read once: pass a Dataset or PyDataset for passes > 1")
    is_infinite = (
        isinstance(data, tf.data.Dataset) and data.cardinality() == tf.data.INFINITE_CARDINALITY
    )
    if steps is None and is_infinite:
        raise ValueError("the data set has no end: say how many batches a pass has (steps=)")
    if isinstance(data, tuple):
        data, _, _ = keras.utils.unpack_x_y_sample_weight(data)

    strategy, kept = model.distribute_strategy, {}
    measured: dict[str, _Measured] = {}
    with strategy.scope():
        for path, layer in _batch_norms(model):
            if reason := _why_kept(layer):
                kept[path] = reason
            else:
                measured[path] = _Measured(layer)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_functions_traced_anew())
        stack.enter_context(_restored(model))
        for m in measured.values():
            stack.enter_context(_replaced(m.layer, "_moments", m.moments))
        for layer in [] if dropout else model._flatten_layers():
            if _is_put_into_inference(layer):
                stack.enter_context(_replaced(layer, "call", _in_inference(layer.call)))
        for name in ("predict_function", "stop_predicting"):
            stack.enter_context(_replaced(model, name, None))
        for number in range(passes if measured else 0):
            if number < 2:  # The first pass normalises by the batch, all others by the last one.
                vars(model)["predict_function"] = _pass_function(model)
            try:
                keras.Model.predict(model, data, batch_size, verbose, steps)
            except UnboundLocalError as e:
                raise ValueError("the data holds no batch; nothing was changed") from e
            _read(strategy, measured)

    for path, m in measured.items():
        if m.reason is not None:
            kept[path] = m.reason
        elif not all(np.isfinite(v).all() for v in m.rounded()):
            raise ValueError(
                f"the statistics of {path} are not finite: the data holds NaN, infinity or numbers "
                "of that size, or weights of the layers before do; nothing was changed"
            )
    done = tuple(path for path in measured if path not in kept)
    for path in done:
        m = measured[path]
        for variable, value in zip(m.moving, m.rounded(), strict=True):
            variable.assign(value)
    report = Report("updated", done, kept)
    logging.getLogger("tf_bn_ops").log(logging.WARNING if kept else logging.INFO, "%s", report)
    return report


class UpdateBatchNorm(keras.callbacks.Callback):
    """Calls `update_batch_norm` at the end of training, or before every validation as well.

    It stands behind callbacks that change weights, such as `keras.callbacks.SwapEMAWeights`.

    Args:
      data: as in `update_batch_norm`, and so are the others that are not listed here.
      steps: likewise.
      passes: likewise.
      when: "end", or "validation": before each validation, also of `evaluate`, and at the end.
      batch_size: likewise.
      dropout: likewise.
      verbose: likewise.

    Raises:
      ValueError: `when` is something else, or a generator is to be passed more than once.
    """

    def __init__(
        self,
        data: Any,
        steps: int | None = None,
        passes: int = 1,
        when: Literal["end", "validation"] = "end",
        *,
        batch_size: int | None = None,
        dropout: bool = False,
        verbose: _Verbose = 0,
    ) -> None:
        super().__init__()
        if when not in ("end", "validation"):
            raise ValueError(f"when is {when!r}, it must be 'end' or 'validation'")
        if when == "validation" and inspect.isgenerator(data):
            raise ValueError("a generator can be read once: pass a Dataset or PyDataset")
        self._when = when
        self._update: Callable[[Any], Report] = lambda model: update_batch_norm(
            model, data, steps, passes, batch_size=batch_size, dropout=dropout, verbose=verbose
        )

    def on_test_begin(self, logs: Any = None) -> None:
        if self._when == "validation":
            self._update(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        self._update(self.model)


class _Measured:
    """A layer whose moments are computed by `moments`, which sums up what it is called with."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.moving = (layer.moving_mean, layer.moving_variance)
        self.reason: str | None = _NOT_CALLED
        self.of_last_pass: Any = None  # Mean and variance of all samples; None in the first pass.
        # Count, means and sums of (x - mean)^2, of each replica apart.
        self.sums = tf.Variable(
            tf.zeros([1 + 2 * layer.moving_mean.shape[0]], tf.float64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def moments(self, inputs: Any, mask: Any) -> Any:
        """Replaces the layer's `_moments`, which Keras', this library's and switched layers
        call with what they normalise, since they are fused with Keras' own alone."""
        weights, axis = weights_of(mask), self.layer.axis % inputs.shape.rank
        if weights is not None and axis != inputs.shape.rank - 1:
            self.reason = f"has a mask, and its channels on axis {self.layer.axis}"
            return _PARENT_MOMENTS(self.layer, inputs, mask)
        if self.reason == _NOT_CALLED:
            self.reason = _NO_SAMPLES
        # Of a synchronized layer each replica has all samples, which changes neither result.
        replicas = None if self.layer.synchronized else _replicas.ALONE
        count, mean, variance, _ = _sync.global_statistics(inputs, axis, weights, replicas)
        batch = tf.concat([count[tf.newaxis], mean, count * variance], 0)
        self.sums.assign(_merged(tf.stack([tf.convert_to_tensor(self.sums), batch])))
        if self.of_last_pass is not None:
            mean, variance = tf.unstack(self.of_last_pass)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def end_pass(self, sums: Any) -> None:
        """Keeps the statistics of all replicas, given their sums in rows, and starts again."""
        count, mean, m2 = np.split(_merged(sums), [1, 1 + self.layer.moving_mean.shape[0]])
        self.sums.assign(tf.zeros_like(sums[0]))
        statistics = np.stack([mean, m2 / np.maximum(count, 1)])
        if count > 0:
            self.reason = None if self.reason == _NO_SAMPLES else self.reason
        else:
            statistics = np.stack([np.asarray(variable, np.float64) for variable in self.moving])
        if self.of_last_pass is None:
            self.of_last_pass = tf.Variable(statistics, trainable=False)
        else:
            self.of_last_pass.assign(statistics)

    def rounded(self) -> list[np.ndarray]:
        """The statistics in the types of the layer's variables."""
        values = zip(tf.unstack(self.of_last_pass), self.moving, strict=True)
        return [tf.cast(value, variable.dtype).numpy() for value, variable in values]


def _merged(rows: Any) -> Any:
    """One row of count, means and sums of (x - mean)^2, from several."""
    channels = rows.shape[1] // 2
    counts, means, m2s = tf.split(rows, [1, channels, channels], axis=1)
    count, *others = bindings.batch_norm_gather_stats(counts[:, 0], means, m2s)
    return tf.concat([count[tf.newaxis], *others], 0)


def _read(strategy: Any, measured: dict[str, _Measured]) -> None:
    """Ends a pass: merges the sums of all replicas."""
    variables = [m.sums for m in measured.values()]
    read = lambda: tf.concat([tf.convert_to_tensor(v) for v in variables], 0)[tf.newaxis]  # noqa: E731
    read = tf.function(read) if strategy.num_replicas_in_sync > 1 else read
    rows = strategy.gather(strategy.run(read), axis=0)
    lengths = [v.shape[0] for v in variables]
    for m, sums in zip(measured.values(), tf.split(rows, lengths, axis=1), strict=True):
        m.end_pass(sums)


def _pass_function(model: Any) -> Callable[[list[Any]], Any]:
    """What `predict` calls with the data of a step: `fit`'s forward pass, without a result."""
    training = {"training": True} if model._call_has_training_arg else {}
    functions: dict[Any, Any] = {}

    def step(data: Any) -> None:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(_present, data))
        _PASS.functions = functions
        try:
            model(x, **training)
        finally:
            _PASS.functions = None

    def call(batches: list[Any]) -> Any:
        for batch in batches:
            model.distribute_strategy.run(step, (batch,))
        return tf.zeros([1])

    return call if model.run_eagerly else tf.function(call, reduce_retracing=True, autograph=False)


@contextlib.contextmanager
def _functions_traced_anew() -> Iterator[None]:
    """Has each tf.function that the model calls in a step traced for the pass alone.

    What was traced before would call no `moments`, and what is traced here would call them later.
    """

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        functions = getattr(_PASS, "functions", None)
        if functions is None or type(function) is not _FUNCTION:
            return call(function, *args, **kwargs)
        if function not in functions:
            functions[function] = tf.function(
                function.python_function, autograph=getattr(function, "_autograph", True)
            )
        return call(functions[function], *args, **kwargs)

    with _LOCK:
        call = _FUNCTION.__call__
        _FUNCTION.__call__ = functools.wraps(call)(called)
        try:
            yield
        finally:
            _FUNCTION.__call__ = call


def _present(value: Any) -> Any:
    """Keras has an Optional for a None in the data."""
    return None if isinstance(value, tf.experimental.Optional) else value


def _why_kept(layer: Any) -> str | None:
    if not layer.trainable:
        return "is frozen (trainable=False)"
    if layer.moving_mean is None:
        return "is not built"
    if getattr(layer, "renorm", False):
        return "has renorm"
    if type(layer)._moments is not _PARENT_MOMENTS or "_moments" in vars(layer):
        return "computes moments in a method of its own"
    return None


def _is_put_into_inference(layer: Any) -> bool:
    if any(isinstance(inner, _KERAS_LAYER) for inner in layer._flatten_layers()):
        return False
    return "training" in inspect.signature(layer.call).parameters


def _in_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(call)

    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["training"] = False
        return call(*bound.args, **bound.kwargs)

    return called


@contextlib.contextmanager
def _replaced(layer: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an instance another attribute, past Keras' tracking, and takes it back at the end."""
    attributes = vars(layer)
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(before)
