"""A copy of a Keras model with all its state, by Keras' own saving; or a sentence why not.

`keras.models.clone_model` and weights are not enough: adapted statistics, vocabularies and seeds
are no weights. What Keras saves is not all either, so the copy is compared with the model.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_REMEDY = "pass inplace=True to change the model itself"


def copy_model(model: Any) -> Any:
    """A model of the same class, layers, variables, dtype policies, `trainable`, compilation and
    optimizer state.

    Raises:
      ValueError: Keras cannot save and load the model, or what it loads differs; with the layer.
    """
    name = f"{type(model).__name__} {model.name!r}"
    with model.distribute_strategy.scope(), keras.saving.custom_object_scope(_classes(model)):
        try:
            _check_compilation(model)
            copy = _reloaded(model)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"{name} cannot be copied, because Keras cannot save and load it ({reason}): "
                f"{_REMEDY}"
            ) from error
        different = _difference(model, copy)
        if different:
            raise ValueError(f"{name} cannot be copied, because {different}: {_REMEDY}")
        pairs = list(zip(model._flatten_layers(), copy._flatten_layers(), strict=True))
        for layer, other in pairs:  # from the outside in: a layer sets those inside it
            other.trainable = layer._trainable
            if not _has_same_policy(layer, other):
                other.dtype_policy = layer.dtype_policy
            other.supports_jit = vars(layer)["supports_jit"]
            other._name = layer.name  # unnamed layers in custom ones are numbered anew
            if isinstance(layer, keras.layers.InputLayer):
                other.optional = layer.optional  # Keras 3.12 leaves it out of the config
        twins = _copied_variables(model, copy)
        for layer, other in pairs:
            if _is_compiled(layer):
                different = _compile_like(layer, other, twins)
                if different:
                    raise ValueError(f"{name} cannot be copied, because {different}: {_REMEDY}")
    return copy


def _classes(model: Any) -> dict[str, type]:
    """The classes of layers that are not Keras', by the names under which Keras looks for them."""
    kinds = {type(layer) for layer in model._flatten_layers()}
    return {
        keras.saving.get_registered_name(kind): kind for kind in kinds if not _is_of_keras(kind)
    }


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ("keras", "tf_bn_ops")


def _reloaded(model: Any) -> Any:
    with (
        tempfile.TemporaryDirectory() as folder,
        _uncompiled(model),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of models without weights, of lambdas
        path = os.path.join(folder, "model.keras")
        keras.saving.save_model(model, path)
        with _global_policy(model.dtype_policy):
            return keras.saving.load_model(path, compile=False, safe_mode=False)


@contextlib.contextmanager
def _global_policy(policy: Any) -> Iterator[None]:
    """Gives what is loaded without a dtype policy of its own that of the model, which mostly is the
    global one under which the model was built; the caller's may be another by now."""
    before = keras.config.dtype_policy()
    if _is_plain_policy(policy):
        keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _copied_variables(model: Any, copy: Any) -> dict[int, Any]:
    """Copies values and paths of all variables, seeds included; the copy's by id of the model's."""
    twins = {}
    for variable, twin in zip(model.variables, copy.variables, strict=True):
        twin.assign(variable)
        twin._path = variable.path
        twins[id(variable)] = twin
    return twins


# ---- Comparing -----------------------------------------------------------------------------------


def _difference(model: Any, copy: Any) -> str | None:
    """The first difference between two models before the variables are copied, in words."""
    layers, others = model._flatten_layers(), copy._flatten_layers()
    for layer, other in zip(layers, others, strict=False):
        if type(layer) is not type(other):
            return f"its layer {layer.name!r} is loaded as {type(other).__name__} {other.name!r}"
        lost = None if _is_of_keras(type(layer)) else _lost_attribute(layer, other)
        if lost:
            return f"Keras does not save the attribute {lost!r} of layer {layer.name!r}"
        if not _has_same_policy(layer, other) and not _can_set_policy(layer):
            return (
                f"its layer {layer.name!r} has the dtype policy {layer.dtype_policy.name}, and is "
                f"loaded with {other.dtype_policy.name}"
            )
    if len(layers) != len(others):
        return f"it has {len(layers)} layers, and is loaded with {len(others)}"
    variables, twins = ([(v.shape, v.dtype) for v in m.variables] for m in (model, copy))
    if variables != twins:
        return f"its {len(variables)} variables are loaded as {len(twins)}, or with other shapes"
    return None


def _has_same_policy(layer: Any, other: Any) -> bool:
    # By their configs: policies of Keras' first versions are equal if they are the same object.
    return bool(layer.dtype_policy.get_config() == other.dtype_policy.get_config())


def _is_plain_policy(policy: Any) -> bool:
    """Whether it is but two dtypes; not one of quantization, or several by the layers' paths."""
    return set(policy.get_config()) == {"name"}


def _can_set_policy(layer: Any) -> bool:
    """Whether the dtype policy of its copy can be set when it has been built. Graphs of layers do
    not save theirs; custom layers may have made something of it that depends on it."""
    is_known = isinstance(layer, keras.Model) or _is_of_keras(type(layer))
    return is_known and _is_plain_policy(layer.dtype_policy)


def _lost_attribute(layer: Any, other: Any) -> str | None:
    """A number, string or array that code outside Keras gave the layer, and its copy lacks."""
    theirs = _names_in_own_code(type(layer))
    for name, value in vars(layer).items():
        if name in _attributes_of_keras() or not _is_plain(value):
            continue
        if name.startswith("_") and name not in theirs:
            continue
        if name not in vars(other) or not _is_equal(value, vars(other)[name]):
            return name
    return None


def _names_in_own_code(kind: type) -> set[str]:
    """The names in the methods of a class and its bases, as far as they are not Keras'."""
    names: set[str] = set()
    for base in kind.__mro__:
        if not _is_of_keras(base):
            for method in vars(base).values():
                names.update(getattr(getattr(method, "__code__", None), "co_names", ()))
    return names


@functools.cache
def _attributes_of_keras() -> frozenset[str]:
    """The attributes that Keras itself gives to layers and models."""
    model = keras.Sequential()
    model.compile("sgd", "mse")
    return frozenset({*vars(keras.layers.Layer()), *vars(keras.Model()), *vars(model)})


def _is_plain(value: Any) -> bool:
    """Whether it is a value that can be compared: numbers, strings, arrays, and lists of them."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, tf.Tensor):
        return hasattr(value, "numpy")
    return value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, np.ndarray, np.generic, tf.Variable)
    )


def _is_equal(a: Any, b: Any) -> bool:
    if not _is_plain(b):
        return False
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_is_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_equal(a[key], b[key]) for key in a)
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and bool(np.all((a == b) | ((a != a) & (b != b))))


# ---- Compiling -----------------------------------------------------------------------------------


def _is_compiled(layer: Any) -> bool:
    return isinstance(layer, keras.Model) and layer.compiled


@contextlib.contextmanager
def _uncompiled(model: Any) -> Iterator[None]:
    """Leaves losses and metrics out of what is saved: not all of them can be."""
    compiled = list(filter(_is_compiled, model._flatten_layers()))
    for layer in compiled:
        layer.compiled = False
    try:
        yield
    finally:
        for layer in compiled:
            layer.compiled = True


def _check_compilation(model: Any) -> None:
    for layer in filter(_is_compiled, model._flatten_layers()):
        kind = type(layer)
        if kind.compile is keras.Model.compile:
            continue
        if kind.compile_from_config is keras.Model.compile_from_config:
            raise ValueError(f"{kind.__name__} has a compile() and no compile_from_config()")


def _compile_like(model: Any, copy: Any, twins: dict[int, Any]) -> str | None:
    """Compiles `copy` as `model` is, with an optimizer in the same state; or says what differs."""
    if type(model).compile is keras.Model.compile:
        settings = dict(model._compile_config.config)
        for name in ("optimizer", "metrics", "weighted_metrics"):
            settings[name] = keras.tree.map_structure(_without_state, settings[name])
        is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        if "auto_scale_loss" in inspect.signature(keras.Model.compile).parameters:
            settings["auto_scale_loss"] = is_scaled
        if is_scaled and copy.dtype_policy.name != "mixed_float16":
            # The policy was set after compile(), which scales the losses of mixed_float16 alone.
            optimizer = keras.optimizers.get(settings["optimizer"])
            if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                optimizer = keras.optimizers.LossScaleOptimizer(
                    optimizer, name=model.optimizer.name
                )
            settings["optimizer"] = optimizer
        copy.compile(**settings)
    else:
        copy.compile_from_config(model.get_compile_config())
    if type(model.optimizer) is not type(copy.optimizer):
        kinds = [type(each.optimizer).__name__ for each in (model, copy)]
        return f"the optimizer of {model.name!r} is a {kinds[0]}, and compiled as a {kinds[1]}"
    if model.optimizer is not None and model.optimizer.built:
        _copy_optimizer(model.optimizer, copy.optimizer, twins)
    return None


def _without_state(value: Any) -> Any:
    """A new optimizer or metric of the same config, since they hold state; anything else itself."""
    if isinstance(value, (keras.optimizers.Optimizer, keras.metrics.Metric)):
        return type(value).from_config(value.get_config())
    return value


def _copy_optimizer(optimizer: Any, copy: Any, twins: dict[int, Any]) -> None:
    """Builds an optimizer for the twins of the variables, and copies its state."""
    _copy_exclusions(optimizer, copy, twins)
    inner = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    if inner is not None:
        _copy_exclusions(inner, copy.inner_optimizer, twins)
    copy.build([twins[id(variable)] for variable in optimizer._trainable_variables])
    for variable, twin in zip(optimizer.variables, copy.variables, strict=True):
        twin.assign(variable)


def _copy_exclusions(optimizer: Any, copy: Any, twins: dict[int, Any]) -> None:
    """What `exclude_from_weight_decay` was told, which is in no config."""
    excluded: set[Any] = getattr(optimizer, "_exclude_from_weight_decay", set())
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    if excluded or pattern is not None:
        variables = [v for v in optimizer._trainable_variables if optimizer._var_key(v) in excluded]
        copy.exclude_from_weight_decay(
            [twins[id(variable)] for variable in variables],
            None if pattern is None else [pattern.pattern],
        )
