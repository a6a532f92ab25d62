"""Compiles functions for XLA's GPU target and runs the programs on the CPU.

TensorFlow's CPU wheels have no GPU target: tools/gpu/xla_gpu_target.cc registers one, for which
TensorFlow then compiles by its and this library's XLA_GPU_JIT kernels. The program is exported as
StableHLO, which XLA's CPU compiler accepts.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

import repository
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

SOURCE = "tools/gpu/xla_gpu_target.cc"
# Of the XlaCallModule op: the first whose programs are plain StableHLO of any platform.
CALL_MODULE_VERSION = 9


def register() -> None:
    """Registers the GPU target; to be called once, before the first use of XLA in the process."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/gpu_target.so"
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
        command = [*compiler, "-w", "-shared", "-fPIC", "-o", library, SOURCE, *flags]
        subprocess.run([*command, "-l:libtensorflow_cc.so.2"], cwd=repository.ROOT, check=True)
        ctypes.CDLL(library).tfbn_register_gpu_target()


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result on the CPU of `function`, compiled for a GPU."""
    tensors = [tf.convert_to_tensor(argument) for argument in arguments]
    for_gpu = tf.function(function, jit_compile=True, autograph=False)
    structure = for_gpu.get_concrete_function(*tensors).structured_outputs
    outputs = tf.nest.flatten(structure)
    module = for_gpu.experimental_get_compiler_ir(*tensors)(
        stage="stablehlo_serialized", platform_name="GPU"
    )

    def call(*tensors: Any) -> Any:
        return xla.call_module(
            list(tensors),
            version=CALL_MODULE_VERSION,
            module=module,
            Tout=[output.dtype for output in outputs],
            Sout=[output.shape for output in outputs],
            platforms=["CPU"],
        )

    # The compiler makes constants of arguments without elements.
    arguments_of_module = [tensor for tensor in tensors if tensor.shape.num_elements()]
    results = tf.function(call, jit_compile=True, autograph=False)(*arguments_of_module)
    return tf.nest.pack_sequence_as(structure, results)
