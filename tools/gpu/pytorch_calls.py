"""Times PyTorch's batch norm and its backward on a GPU: by cuDNN, and by its native kernels."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

_EPSILON = 1e-3


def version() -> str:
    """PyTorch's version if it sees the GPU, or nothing."""
    try:
        import torch
    except ImportError:
        return ""
    return torch.__version__ if torch.cuda.is_available() else ""


def _forward(
    x: Any, weight: Any, mean: Any, var: Any, training: bool, cudnn: bool
) -> Callable[[], Any]:
    import torch

    bias = torch.zeros_like(weight)
    # In training without moving averages, which our call does not update either.
    given = (x, weight, bias, *((None, None) if training else (mean, var)))
    op = torch.ops.aten.cudnn_batch_norm if cudnn else torch.ops.aten.native_batch_norm
    return functools.partial(op, *given, training, 0.1, _EPSILON)


def _cudnn_backward(x: Any, dy: Any, weight: Any, mean: Any, var: Any) -> Callable[[], Any]:
    import torch

    bias = torch.zeros_like(weight)
    _, save_mean, save_var, reserve = torch.ops.aten.cudnn_batch_norm(
        x, weight, bias, mean, var, True, 0.1, _EPSILON
    )
    return functools.partial(
        torch.ops.aten.cudnn_batch_norm_backward,
        *(x, dy, weight, mean, var, save_mean, save_var, _EPSILON, reserve),
    )


def _native_backward(
    x: Any, dy: Any, weight: Any, mean: Any, var: Any, training: bool
) -> Callable[[], Any]:
    import torch

    bias = torch.zeros_like(weight)
    _, save_mean, save_rstd = torch.ops.aten.native_batch_norm(
        x, weight, bias, mean, var, training, 0.1, _EPSILON
    )
    return functools.partial(
        torch.ops.aten.native_batch_norm_backward,
        *(dy, x, weight, mean, var, save_mean, save_rstd, training, _EPSILON, [True] * 3),
    )


def _median_time(calls: list[Callable[[], Any]], warm_up: int, timed: int) -> float:
    """Median seconds by CUDA events, rotating through `calls`."""
    import torch

    for i in range(warm_up):
        calls[i % len(calls)]()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(timed + 1)]
    events[0].record()
    for i in range(timed):
        calls[i % len(calls)]()
        events[i + 1].record()
    torch.cuda.synchronize()
    milliseconds = [events[i].elapsed_time(events[i + 1]) for i in range(timed)]
    return statistics.median(milliseconds) / 1e3


def seconds(
    shape: tuple[int, int, int, int],
    layout: str,
    dtype: str,
    *,
    forward: bool,
    training: bool,
    cudnn: bool,
    tensors: int,
    warm_up: int,
    timed: int,
) -> float | None:
    """Median seconds of a call; None where PyTorch refuses.

    Args:
      shape: (N, C, H, W), whatever the layout.
      layout: "NHWC" or "NCHW".
      dtype: "half", "bfloat16" or "float32".
      forward: batch norm itself, not its backward.
      training: with batch statistics; cuDNN has no backward with frozen ones.
      cudnn: by cuDNN instead of the native kernels.
      tensors: pairs of inputs that the calls rotate through, so that L2 holds none.
      warm_up, timed: numbers of calls.
    """
    import torch

    if cudnn and not (training or forward):
        return None
    types = {"half": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
    memory_format = torch.channels_last if layout == "NHWC" else torch.contiguous_format
    weight, mean, var = (torch.rand(shape[1], device="cuda") + 0.5 for _ in range(3))
    calls = []
    try:
        with torch.backends.cudnn.flags(enabled=cudnn, benchmark=True):
            for _ in range(tensors):
                x, dy = (
                    torch.randn(shape, device="cuda", dtype=types[dtype]).contiguous(
                        memory_format=memory_format
                    )
                    for _ in range(2)
                )
                if forward:
                    calls.append(_forward(x, weight, mean, var, training, cudnn))
                elif cudnn:
                    calls.append(_cudnn_backward(x, dy, weight, mean, var))
                else:
                    calls.append(_native_backward(x, dy, weight, mean, var, training))
            return _median_time(calls, warm_up, timed)
    except (NotImplementedError, RuntimeError):
        return None
    finally:
        calls.clear()
        torch.cuda.empty_cache()
