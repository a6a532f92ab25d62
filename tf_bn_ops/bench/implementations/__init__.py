"""The implementations that are measured: this library's ops, their peers, memory bandwidth.

base.py            what each of them has
tensorflow_ops.py  the ops of TensorFlow and of this library, eager or compiled by XLA
torch_ops.py       PyTorch
jax_ops.py         the formulas under jax.jit
bandwidth.py       reads and writes alone

ENTRIES is the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_bn_ops.bench.bench_rows import FORWARD, LAYERS
from tf_bn_ops.bench.implementations.bandwidth import MEMORY_BANDWIDTH_LIBRARY, MemoryBandwidth
from tf_bn_ops.bench.implementations.base import Call, Entry, Unavailable
from tf_bn_ops.bench.implementations.jax_ops import Jax
from tf_bn_ops.bench.implementations.tensorflow_ops import TensorFlow
from tf_bn_ops.bench.implementations.torch_ops import Torch

__all__ = [
    "CANDIDATE",
    "ENTRIES",
    "MEMORY_BANDWIDTH",
    "MEMORY_BANDWIDTH_LIBRARY",
    "PEERS",
    "Call",
    "Entry",
    "MemoryBandwidth",
    "TensorFlow",
    "Unavailable",
]

CANDIDATE = "tf_bn_ops"
MEMORY_BANDWIDTH = "memory_bandwidth"

_ONEDNN_BY_DEFAULT: Mapping[str, str | None] = {"TF_ENABLE_ONEDNN_OPTS": None}

ENTRIES: Mapping[str, Entry] = {
    e.name: e
    for e in (
        Entry(
            CANDIDATE,
            "tf_bn_ops",
            lambda threads: TensorFlow("tf_bn_ops:raw_ops", threads),
            _ONEDNN_BY_DEFAULT,
            bounds="strict",
        ),
        Entry(
            "tensorflow",
            "TensorFlow",
            lambda threads: TensorFlow("tensorflow:raw_ops", threads),
            _ONEDNN_BY_DEFAULT,
        ),
        Entry(
            "eigen",
            "TensorFlow, oneDNN off",
            lambda threads: TensorFlow("tensorflow:raw_ops", threads),
            {"TF_ENABLE_ONEDNN_OPTS": "0"},
        ),
        Entry(
            "xla",
            "TensorFlow, XLA",
            lambda threads: TensorFlow("tensorflow:raw_ops", threads, jit=True),
            _ONEDNN_BY_DEFAULT,
            calls=(FORWARD, *LAYERS),
        ),
        Entry("torch", "PyTorch", Torch, module="torch"),
        Entry("jax", "JAX", Jax, {"JAX_PLATFORMS": "cpu"}, module="jax"),
        Entry(MEMORY_BANDWIDTH, "bandwidth limit", MemoryBandwidth, module="numpy"),
    )
}
PEERS = tuple(name for name in ENTRIES if name not in (CANDIDATE, MEMORY_BANDWIDTH))
