"""The ops with keyword arguments only, as `tf.raw_ops` has them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tf_bn_ops.generated import bindings

if TYPE_CHECKING:
    from tf_bn_ops.generated.raw_op_types import *  # noqa: F403

__all__ = sorted(bindings.OPS)


def __dir__() -> list[str]:
    return __all__


def _keyword_only(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def raw_op(*args: Any, **kwargs: Any) -> Any:
        if args:
            names = ", ".join(signature.parameters)
            raise TypeError(f"{function.__name__} takes keyword arguments only: {names}")
        return function(**kwargs)

    raw_op.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in signature.parameters.values()
        ]
    )
    return raw_op


globals().update({name: _keyword_only(function) for name, function in bindings.OPS.items()})
