"""The GPU build, without a GPU: it compiles without spills, links, and loads into TensorFlow.

Promised: the GPU build compiles without spills, links, and loads into TensorFlow without CUDA; it
has kernels of all ops and types; PTX runs right on a simulated GPU; scripts for a machine with a
GPU say why they skip where there is none.

Skipped where there is no nvcc. The architecture is the first of the default build, which takes some
four minutes of a processor; test_gpu_sass.py has others.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import forked
import numpy as np
import pytest
from build_helpers import copy_tree, make, run
from test_gpu_sass import NVCC, assert_none_spills

from tf_bn_ops import spec
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import random_forward_problem, random_problem

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not all(map(shutil.which, ("make", "g++", "nm", NVCC))),
        reason="needs make, g++, nm and nvcc",
    ),
]


def oldest_arch() -> str:
    """The first of the default build: sm_70, or the oldest that this nvcc supports."""
    try:
        listed = subprocess.run([NVCC, "--list-gpu-arch"], capture_output=True, text=True).stdout
    except OSError:
        return ""
    numbers = [int(name.removeprefix("compute_")) for name in listed.split()]
    return str(min(number for number in numbers if number >= 70))


FIRST = oldest_arch()
# ptxas reports the spills of every kernel on stderr.
VARIABLES = (f"NVCC={NVCC}", "NVCCFLAGS=-Xptxas=-v", f"CUDA_ARCHS={FIRST}")


@pytest.fixture(scope="module")
def tree(repo_root: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the checkout, built with GPU kernels."""
    copy = copy_tree(repo_root, tmp_path_factory.mktemp("gpu") / "tree")
    result = make(copy, "gpu", *VARIABLES)
    assert result.returncode == 0, result.stdout + result.stderr
    (copy / "ptxas.txt").write_text(result.stdout + result.stderr)
    return copy


def test_kernels_do_not_spill(tree):
    assert_none_spills(FIRST, (tree / "ptxas.txt").read_text())


@pytest.mark.parametrize(
    ("release", "known", "compiled"),
    [
        ("11.8", [35, 50, 61, 70, 72, 75, 80, 86, 87, 89, 90], [70, 72, 75, 80, 86, 87, 89, 90]),
        ("13.0", [75, 80, 86, 87, 88, 89, 90, 100, 120], [75, 80, 86, 87, 88, 89, 90]),
    ],
)
def test_default_architectures(repo_root, tmp_path, release, known, compiled):
    """From sm_70, or the oldest that the nvcc supports, to sm_90, and PTX of the last."""
    nvcc = tmp_path / "nvcc"
    listed = " ".join(f"compute_{number}" for number in known)
    nvcc.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*) echo "Cuda compilation tools, release {release}, V1";;\n'
        f'  *--list-gpu-arch*) printf "%s\\n" {listed};; esac\n'
    )
    nvcc.chmod(0o755)
    folder = tmp_path / "build"
    result = make(repo_root, "-n", "gpu-core", f"NVCC={nvcc}", f"BUILD_DIR={folder}", python="")
    assert result.returncode == 0, result.stderr
    commands = [line for line in result.stdout.splitlines() if f"'{nvcc}' -ccbin" in line]
    assert len(commands) == len(list(repo_root.glob("cc/gpu/**/*.cu")))
    for command in commands:
        flags = re.findall(r"-gencode arch=compute_(\d+),code=(\w+)", command)
        assert flags == [
            *((str(number), f"sm_{number}") for number in compiled),
            ("90", "compute_90"),
        ]


def test_library_loads_without_cuda(tree):
    for library in ("libtf_bn_ops.so", "libtf_bn_ops_core.so"):
        path = str(tree / "tf_bn_ops" / "lib" / library)
        symbols = run(["nm", "-D", "--undefined-only", path], tree).stdout
        assert not re.search(r"\b_*(cuda|cu[A-Z])", symbols), symbols
        assert "libcuda" not in run(["readelf", "-d", path], tree).stdout
        exported = run(["nm", "-D", "--defined-only", path], tree).stdout
        names = [line.split()[-1] for line in exported.splitlines()]
        assert all(name.startswith("tfbn_") for name in names), names


def registered() -> list:
    """Of each op: whether it has the same types on GPUs as on CPUs, and how many. Then shapes of
    results."""
    import tensorflow as tf
    from tensorflow.python.framework import kernels

    import tf_bn_ops

    tf_bn_ops.load()
    said = []
    for name in [*(op.registered_name for op in spec.OPS.values()), "TfBnOps>BatchNormGatherStats"]:
        found: dict[str, set[int]] = {"CPU": set(), "GPU": set()}
        for kernel in kernels.get_registered_kernels_for_op(name).kernel:
            for constraint in kernel.constraint:
                if kernel.device_type in found and constraint.name == "T":
                    found[kernel.device_type].update(constraint.allowed_values.list.type)
        said.append([name, found["CPU"] == found["GPU"], len(found["GPU"])])
    x, one = tf.random.normal([2, 3, 3, 4]), tf.ones([4])
    gradient = tf_bn_ops.fused_batch_norm_grad(x, x, one, 0 * one, one)
    forward = tf_bn_ops.raw_ops.FusedBatchNorm(x=x, scale=one, offset=one, mean=[], variance=[])
    return [*said, [*gradient[0].shape], [*forward[0].shape]]


def test_ops_have_gpu_kernels_and_cpu_kernels_still_run(tree):
    assert forked.call(registered, TF_BN_OPS_LIBRARY=str(tree / "tf_bn_ops" / "lib")) == [
        *([op.registered_name, True, len(op.dtypes)] for op in spec.OPS.values()),
        ["TfBnOps>BatchNormGatherStats", True, 0],  # It has no T.
        *[[2, 3, 3, 4]] * 2,
    ]


def test_c_abi_errors_without_a_gpu(tree):
    lib = ctypes.CDLL(str(tree / "tf_bn_ops" / "lib" / "libtf_bn_ops_core.so"))
    size, error = ctypes.c_int64(), ctypes.create_string_buffer(256)

    def said(function, *arguments):
        status = getattr(lib, function)(*arguments, error, ctypes.c_size_t(len(error)))
        return error.value.decode() if status else ""

    def run_in(count, call):
        memory = np.empty(count // 8 + 1)
        workspace = ctypes.c_void_p(memory.ctypes.data), ctypes.c_int64(count)
        return said("tfbn_gpu_run", ctypes.byref(call), *workspace, None)

    view = (8, 3, 49)
    unknown = c_abi.Call(c_abi.View(*view), dtype=7)
    sentence = "dtype must be one of the TFBN_ element types"
    assert said("tfbn_gpu_workspace", ctypes.byref(unknown), ctypes.byref(size)) == sentence
    sentence = "call must not be NULL"
    assert said("tfbn_gpu_run", None, None, ctypes.c_int64(), None) == sentence
    for problem, role in (
        (random_problem(view), "x"),
        (random_forward_problem(view, side_input=True), "side_input"),
    ):
        arrays = {**problem.values, **c_abi.new_outputs(problem)}
        addresses = {name: array.ctypes.data for name, array in arrays.items()}
        call = c_abi.call_at(problem, addresses)
        assert said("tfbn_gpu_workspace", ctypes.byref(call), ctypes.byref(size)) == ""
        sentence = f"workspace must have the {size.value} bytes that tfbn_gpu_workspace returns"
        assert run_in(size.value - 1, call) == sentence
        odd = c_abi.call_at(problem, {**addresses, role: addresses[role] + 2})
        assert run_in(size.value, odd) == f"{role} must be aligned to its element type"
        if not ctypes.util.find_library("cuda"):
            assert run_in(size.value, call).startswith("CUDA launch failed: ")
        call.activation = 9
        sentence = "activation must be one of the TFBN_ activations"
        assert run_in(size.value, call) == sentence


def launched_kernels(built: pathlib.Path) -> set[str]:
    """Names of the kernels that the host code of an object has launching functions of."""
    symbols = run(["nm", "-C", "--defined-only", str(built)], built.parent).stdout.splitlines()
    names = {symbol.split(maxsplit=2)[-1] for symbol in symbols}
    kernel = re.compile(r"(?!guard|.*(__device_stub|\[clone)).*\b(Pass|Finish|Gather)Kernel\b.*\)")
    return {name for name in names if kernel.fullmatch(name)}


def registered_kernels(built: pathlib.Path) -> set[str]:
    """Names of the kernels that an object registers with CUDA's runtime, from its strings."""
    strings = built.with_suffix(".strings")
    section = ["-O", "binary", "-j", ".rodata.str1.8", str(built), str(strings)]
    run(["objcopy", *section], built.parent)
    lines = strings.read_bytes().replace(b"\0", b"\n")
    done = subprocess.run(["c++filt"], input=lines, capture_output=True, check=True)
    return {*done.stdout.decode().splitlines()}


def test_every_kernel_that_is_launched_is_compiled(tree):
    """nvcc compiles the host's half of a source from other text than the device's: a kernel that
    it launches has to be one of those that are registered, by name, for the device."""
    objects = [*tree.glob("build/**/cc/gpu/kernels/*.o")]
    assert len(objects) == len([*tree.glob("cc/gpu/kernels/*.cu")])
    for built in objects:
        assert launched_kernels(built)
        assert launched_kernels(built) <= registered_kernels(built), built.name


def test_build_info_names_cuda(tree):
    info = json.loads((tree / "tf_bn_ops" / "lib" / "build_info.json").read_text())
    assert re.fullmatch(r"\d+\.\d+", info["cuda"]["version"])
    assert (info["cuda"]["archs"], info["cuda"]["ptx"]) == ([FIRST], FIRST)


def test_make_keeps_the_gpu_kernels_until_gpu_is_unset(tree):
    assert make(tree, "-q", *VARIABLES).returncode == 0, "make after make gpu is up to date"
    result = make(tree, "GPU=")
    assert result.returncode == 0, result.stderr
    info = json.loads((tree / "tf_bn_ops" / "lib" / "build_info.json").read_text())
    assert info["cuda"] is None
    assert make(tree, "-q").returncode == 0, "make after make GPU= is up to date"
    symbols = run(["nm", "-D", str(tree / "tf_bn_ops" / "lib" / "libtf_bn_ops_core.so")], tree)
    assert "tfbn_gpu" not in symbols.stdout


def test_missing_nvcc_is_an_error(repo_root):
    result = make(repo_root, "-n", "all", "GPU=1", "NVCC=/nowhere/nvcc")
    assert result.returncode != 0
    assert (
        "the CUDA compiler '/nowhere/nvcc' does not run: install the CUDA toolkit" in result.stderr
    )


@pytest.mark.release
def test_ptx_on_a_simulated_gpu(repo_root):
    """Within the bounds, bitwise the host emulator, without races; planted faults are caught."""
    folder = pathlib.Path(os.environ.get("SIM", repo_root.parent / "shared" / "gpusim"))
    if not (folder / "libcudasim.so").exists():
        pytest.skip("needs a simulated GPU: SIM=folder with libcudasim.so")
    result = make(repo_root, "gpu-ptx-test", f"SIM={folder}", f"NVCC={NVCC}")
    assert result.returncode == 0, result.stdout + result.stderr
    last = result.stdout.splitlines()[-1]
    assert re.fullmatch(r"gpu-ptx-test on .*: \d{2,} cases .* 7 planted faults; 0 failures", last)


def test_the_ptx_test_says_why_it_is_skipped(repo_root):
    result = make(repo_root, "gpu-ptx-test", "SIM=/nowhere")
    assert result.returncode == 0, result.stderr
    sentence = "gpu-ptx-test: skipped, SIM=/nowhere has no libcudasim.so; nothing was tested.\n"
    assert result.stdout == sentence


def test_scripts_for_a_gpu_machine_skip_without_one(repo_root):
    try:
        subprocess.run(["nvidia-smi"], check=True, capture_output=True)
        pytest.skip("there is a GPU")
    except (OSError, subprocess.CalledProcessError):
        pass
    for name, flags in (("test", ["--library=none"]), ("session", [])):
        result = run([sys.executable, f"tools/gpu/{name}.py", *flags], repo_root)
        assert result.returncode == 0, result.stderr
        assert re.match(rf"gpu-{name}: skipped, .*; nothing was [\w ]+\.\n", result.stdout)
    script = [sys.executable, "tools/gpu/tensorflow_test.py"]
    for flags, status in (((), 0), (("--probe",), 3)):
        result = run([*script, *flags], repo_root, TF_CPP_MIN_LOG_LEVEL="3")
        assert result.returncode == status, result.stderr
        assert "TensorFlow's ops skipped, TensorFlow" in result.stdout
        assert result.stdout.endswith(" sees no GPU; nothing of them was tested.\n")


def test_scripts_for_a_gpu_machine_run_on_the_emulator(repo_root):
    for name, flags in (("test", ["--quick"]), ("session", [])):
        command = [sys.executable, f"tools/gpu/{name}.py", "--emulated", *flags]
        result = run(command, repo_root)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "FAILED" not in result.stdout
