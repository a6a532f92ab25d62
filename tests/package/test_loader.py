"""The loader: nothing happens on import, and each way to fail is one sentence with what to do.

Promised: importing does nothing; each way in which a library is missing, broken or of another build
is one sentence with what to do; a package for several TensorFlows chooses by version.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator

import forked
import pytest
from build_helpers import edit_build_info, package_without_build, run, tensorflow_without
from test_doctor import healthy, problems, run_doctor

from tf_bn_ops import _loader, doctor

# The folder that the package is imported from.
ROOT = pathlib.Path(_loader.__file__).parent.parent


def tensorflow_version() -> str:
    import tensorflow as tf

    return tf.__version__


def refusal(finding: str | None = None) -> str:
    """The message with which load() refuses; an ImportError, in one line; of the doctor's findings
    the one with this name says the same."""
    with pytest.raises(_loader.LibraryError) as caught:
        _loader.wrappers()
    assert isinstance(caught.value, ImportError)
    message = str(caught.value)
    assert "\n" not in message
    assert finding is None or problems(doctor.diagnose(healthy()))[finding] == message
    return message


def last_words(code: str, *path: pathlib.Path) -> str:
    """The last line of code that fails, run in the first of the folders that it imports from."""
    paths = os.pathsep.join(map(str, path))
    result = run([sys.executable, "-c", code], path[0], PYTHONPATH=paths)
    assert result.returncode == 1
    return result.stderr.splitlines()[-1]


def test_build_info_names_the_tensorflow():
    built_for = _loader.build_info()["tensorflow_version"]
    assert built_for.split(".")[:2] == tensorflow_version().split(".")[:2]


def test_variable_names_a_folder_or_a_file(other_build, monkeypatch):
    expected = str(other_build / _loader.OP_LIBRARY)
    assert _loader.library_path() == expected
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, expected)
    assert _loader.library_path() == expected
    assert _loader.core_library_path() == str(other_build / _loader.CORE_LIBRARY)


def test_missing_library(tmp_path):
    """A copy of the package without lib/, as in a checkout that was not built."""
    package_without_build(tmp_path)
    message = last_words("import tf_bn_ops; tf_bn_ops.library_path()", tmp_path)
    assert "LibraryError" in message
    assert "'make'" in message
    assert "'pip install .'" in message
    told = run_doctor("--format=json", path=(tmp_path,))
    assert told.returncode == 1, told.stderr
    found = {f["name"]: f["text"] for f in json.loads(told.stdout)["findings"]}
    assert "libtf_bn_ops.so does not exist: build it with 'make'" in found["library"]
    assert "does not exist" in found["ops"]


def test_missing_library_named_by_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(tmp_path / "nowhere.so"))
    message = refusal()
    assert "nowhere.so does not exist" in message
    assert _loader.LIBRARY_VARIABLE in message


@pytest.mark.parametrize("name", [_loader.CORE_LIBRARY, _loader.BUILD_INFO])
def test_a_copy_without_what_lies_beside_it(other_build, name):
    (other_build / name).unlink()
    _loader._installation.cache_clear()
    message = refusal()
    assert f"{other_build / name} does not exist" in message
    assert "copy it there" in message and "make" not in message


@pytest.mark.parametrize("value", ["~nobody_is_called_so/lib", "/" + "a" * 5000])
def test_the_variable_names_no_path(value, monkeypatch):
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, value)
    assert f"{_loader.LIBRARY_VARIABLE} must be the path of a libtf_bn_ops.so" in refusal()


def test_unreadable_build_info(other_build):
    (other_build / _loader.BUILD_INFO).write_text('{"tensorflow_')
    _loader._installation.cache_clear()
    assert "build_info.json cannot be read" in refusal("build")


@pytest.mark.parametrize(
    "wrong",
    [{"builds_with": 3}, {"builds_with": ["2.16"]}, {"builds_with": [1, 2]}, {"cxx11_abi": "yes"}],
    ids=str,
)
def test_build_info_of_wrong_types(other_build, wrong):
    edit_build_info(other_build, **wrong)
    assert "build_info.json cannot be read" in refusal("build")


@pytest.mark.parametrize("built_for", ["2.15.1", "2.2.1", "3.21.0"])
def test_another_tensorflow_version_is_refused(other_build, built_for):
    """Promise: A library that does not fit TensorFlow is refused in a sentence."""
    edit_build_info(other_build, tensorflow_version=built_for)
    message = refusal("ABI: version")
    assert f"built for TensorFlow {built_for}" in message
    assert f"this is TensorFlow {tensorflow_version()}" in message
    assert "make PYTHON=" in message


UNTRIED = "this one builds for yours, untried, with 'TF_BN_OPS_UNTRIED=1 make PYTHON="
SEVERAL = ("2.16", "2.18")


@pytest.mark.parametrize(
    ("minors", "version", "also"),
    [
        ((), "2.18.1", "rebuild it with 'make PYTHON="),
        ((), "2.99.0rc0", f"a newer tf_bn_ops, if there is one; {UNTRIED}"),
        ((), "2.9.3", "does not build with one as old as yours"),
        (SEVERAL, "2.99.0rc0", "a newer tf_bn_ops"),
        (SEVERAL, "3.0.0", "a newer tf_bn_ops"),
        (SEVERAL, "2.17.1", "with 'make PYTHON="),
        (SEVERAL, "2.20.0", "with 'make PYTHON="),
        (SEVERAL, "2.9.3", ""),
    ],
)
def test_a_package_of_one_or_several_versions_advises_what_helps(minors, version, also):
    """make refuses what is older than all that the sources were tried with, and what is newer
    unless it is told; what lies beyond a package of several alone it builds."""
    build = {**_loader.build_info(), "tensorflow_version": "2.21.0"}
    here = dataclasses.replace(_loader.installation(), chosen="", minors=minors, build=build)
    with pytest.raises(_loader.LibraryError) as caught:
        here.check_version(version)
    message = str(caught.value)
    built_for, install = ("2.16, 2.18", "one of") if minors else ("2.21.0", "TensorFlow 2.21")
    assert f"for TensorFlow {built_for}, but this is TensorFlow {version}: " in message
    assert f"install {install}" in message and also in message
    for word in ("make", "newer"):
        assert (word in message) == (word in also)


def test_another_build_of_the_same_ops_loads_with_another_patch_version(other_build):
    minor = ".".join(tensorflow_version().split(".")[:2])
    edit_build_info(other_build, tensorflow_version=f"{minor}.99")
    code = "from tf_bn_ops import _loader; assert _loader.load().tf_bn_ops_fused_batch_norm_grad"
    forked.output(code, TF_BN_OPS_LIBRARY=str(other_build))


def test_another_cxx_abi_is_refused(other_build):
    import tensorflow as tf

    edit_build_info(other_build, cxx11_abi=1 - int(tf.sysconfig.CXX11_ABI_FLAG))
    assert "_GLIBCXX_USE_CXX11_ABI" in refusal("ABI: C++ strings")


@pytest.mark.parametrize("kept", [0.0, 0.0001, 0.5, 0.999])
def test_truncated_library(other_build, kept):
    """Handed to the dynamic loader, such a file ends the process by SIGBUS."""
    library = other_build / _loader.OP_LIBRARY
    whole = library.read_bytes()
    library.write_bytes(whole[: int(len(whole) * kept)])
    message = refusal("library")
    assert "is cut off" in message or "is no 64-bit shared library" in message
    assert "rebuild it" in message


def test_library_of_another_machine(other_build):
    """The dynamic loader says of it that there is no such file, or an invalid header."""
    library = other_build / _loader.OP_LIBRARY
    whole = bytearray(library.read_bytes())
    number_of = {name: number for number, name in _loader._MACHINES.items()}
    here = platform.machine()
    other = next(name for name in number_of if name != here)
    assert bytes(whole[0x12:0x14]) == number_of[here]
    whole[0x12:0x14] = number_of[other]
    library.write_bytes(whole)
    message = refusal("library")
    assert f"was built for {other}, but this machine is {here}" in message
    assert "rebuild it" in message


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize("missing", ["symbol", "library"])
def test_library_that_needs_what_is_missing(other_build, tmp_path, missing):
    """As one that was built against a TensorFlow whose functions or libraries have other names."""
    framework, source = tmp_path / "libtensorflow_framework.so.1", tmp_path / "source.cc"
    link = ["g++", "-shared", "-fPIC", "-Wl,--no-as-needed", source, "-o"]
    source.write_text("void gone(); int use = (gone(), 0);\n")
    subprocess.run([*link, framework], check=True)
    library = other_build / _loader.OP_LIBRARY
    library.unlink()
    needed = [framework] if missing == "library" else []
    subprocess.run([*link, library, *needed], check=True)
    framework.unlink()
    message = refusal()
    if missing == "library":
        assert "libtensorflow_framework.so.1: cannot open shared object file" in message
    else:
        assert "undefined symbol" in message and "gone" in message
    assert "rebuild it" in message


def test_missing_framework_library(tmp_path):
    """An installation of TensorFlow that lost the library which the ops link."""
    broken = tensorflow_without("libtensorflow_framework.so.2", tmp_path)
    message = last_words("from tf_bn_ops import _loader; _loader.load()", broken, ROOT)
    told = run_doctor(path=(broken, ROOT))
    (line,) = (line for line in told.stdout.splitlines() if " TensorFlow " in line[:20])
    assert told.returncode == 1 and line.startswith("problem") and "LibraryError" in message
    for sentence in (message, line):
        assert "libtensorflow_framework.so.2: cannot open shared object file" in sentence
        assert "pip install --force-reinstall" in sentence


def test_missing_tensorflow(tmp_path):
    """Said with the version to install, instead of a bare ModuleNotFoundError."""
    (tmp_path / "tensorflow.py").write_text("raise ImportError('none here')\n")
    message = last_words("from tf_bn_ops import _loader; _loader.load()", tmp_path, ROOT)
    assert "TensorFlow cannot be imported here (none here)" in message
    assert "pip install" in message


@pytest.fixture
def package_for_several(tmp_path, monkeypatch) -> Iterator[pathlib.Path]:
    """A package with libraries for two versions of TensorFlow, and folders that are none."""
    names = ["lib/" + _loader.CORE_LIBRARY, "lib_tf2.x/README", "lib_tf2.16.old/README"]
    names += [f"lib_tf2.{minor}/{_loader.OP_LIBRARY}" for minor in (9, 16)]
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    monkeypatch.setattr(_loader, "_PACKAGE", tmp_path)
    monkeypatch.delenv(_loader.LIBRARY_VARIABLE, raising=False)
    _loader._installation.cache_clear()
    yield tmp_path
    _loader._installation.cache_clear()


@pytest.mark.parametrize(("version", "chosen"), [("2.9.1", "9"), ("2.16.1", "16"), ("3.0", "16")])
def test_a_package_for_several_chooses_by_version(
    package_for_several, monkeypatch, version, chosen
):
    found = _loader.TensorFlow(version, package_for_several, "tensorflow")
    monkeypatch.setattr(_loader, "_find_tensorflow", lambda imported: found)
    here = _loader.installation()
    assert here.minors == ("2.9", "2.16")
    assert here.op_library == package_for_several / f"lib_tf2.{chosen}" / _loader.OP_LIBRARY
    assert here.path(_loader.CORE_LIBRARY) == str(package_for_several / "lib/libtf_bn_ops_core.so")


def test_the_kernels_of_a_package_for_several_are_found_without_tensorflow(
    package_for_several, monkeypatch
):
    """Which TensorFlow there is takes an import where no metadata tells it."""
    monkeypatch.setattr(_loader, "_find_tensorflow", lambda imported: None)
    monkeypatch.setattr(_loader, "_version_by_import", lambda: pytest.fail("asked"))
    assert _loader.core_library_path() == str(package_for_several / "lib" / _loader.CORE_LIBRARY)
    with pytest.raises(pytest.fail.Exception, match="asked"):
        _loader.library_path()


@pytest.mark.parametrize("name", ["tensorflow_cpu", "tf_nightly", "intel_tensorflow", "vendor"])
def test_whoever_has_installed_tensorflow_is_its_owner(name, tmp_path, monkeypatch):
    """Also under a name that does not begin as usual; a package of stubs owns nothing."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("")
    for distribution, owns in ((name, ""), ("a_tensorflow", "stubs/"), ("tensorflow_io", "io/")):
        metadata = tmp_path / f"{distribution}-2.21.0.dist-info"
        metadata.mkdir()
        (metadata / "RECORD").write_text(f"a.py,,\n{owns}tensorflow/__init__.py,sha256=x,1\n")
    (tmp_path / "no_record-1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    found = _loader._find_tensorflow("")
    assert (found.owner, found.version) == (name.replace("_", "-"), "2.21.0")
    assert found.folder == tmp_path / "tensorflow"


def test_the_installation_is_one_value_and_loaded_once():
    here = _loader.installation()
    assert _loader.installation() is here and _loader.wrappers() is _loader.wrappers()
    assert here.tensorflow is not None
    assert here.tensorflow.version == tensorflow_version()
    assert here.build["tensorflow_distribution"] == here.tensorflow.owner
    with pytest.raises(dataclasses.FrozenInstanceError):
        here.chosen = "other"


# ---- Registered twice ----------------------------------------------------------------------------

# Calls that run after each step, with a type whose kernel TensorFlow has not cached yet.
TWICE = """
import os, sys
import numpy as np, tensorflow as tf
sys.path[:0] = [sys.argv[1]]
KERNELS, XLA = "libtf_bn_ops_override.so", "libtf_bn_ops_xla.so"
copy, dtypes = sys.argv[2], [tf.float32, tf.half, tf.bfloat16]

def use():
    import tf_bn_ops
    x = tf.cast(np.arange(16).reshape(2, 2, 2, 2), dtypes.pop())
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf_bn_ops.fused_batch_norm(x, tf.ones(2), tf.zeros(2)).y
        loss = tf.reduce_sum(tf.sin(y))
    assert np.abs(tape.gradient(loss, x)).max() > 0.1
    rows = tf.vectorized_map(
        lambda x: tf_bn_ops.fused_batch_norm(x, tf.ones(2), tf.zeros(2)).y, tf.stack([x, x]))
    np.testing.assert_array_equal(rows[1], y)

def use_kernels():
    import tf_bn_ops
    assert tf_bn_ops.enable(fuse=False).kernels
    x = tf.cast(np.arange(16).reshape(2, 2, 2, 2), dtypes.pop())
    y = tf.raw_ops.FusedBatchNormV3(x=x, scale=tf.ones(2), offset=tf.zeros(2), mean=[], variance=[])
    assert float(tf.reduce_max(y[0])) > 1

def use_xla():
    import tf_bn_ops
    x = tf.cast(np.arange(16).reshape(2, 2, 2, 2), dtypes.pop())
    norm = lambda x: tf_bn_ops.fused_batch_norm(x, tf.ones(2), tf.zeros(2)).y
    np.testing.assert_allclose(tf.function(norm, jit_compile=True)(x), norm(x), atol=0.02)

def load(name="libtf_bn_ops.so"):
    tf.load_op_library(f"{copy}/{name}")

def import_anew():
    for name in [name for name in sys.modules if name.split(".")[0] == "tf_bn_ops"]:
        del sys.modules[name]
"""
STEPS = {
    "a copy, then the package": "load(); use(); use()",
    "the package, then a copy": "use(); load(); use()",
    "two copies": "load(); os.rename(copy, copy + '2'); copy += '2'; load(); use()",
    "a relative path": "import tf_bn_ops; os.chdir(tf_bn_ops.get_lib());"
    " tf.load_op_library('./libtf_bn_ops.so'); use()",
    "imported anew": "use(); import_anew(); use()",
    "kernels, imported anew": "use_kernels(); import_anew(); use_kernels(); use()",
    "kernels, then a copy of them": "use_kernels(); load(KERNELS); use_kernels()",
    "a copy of the kernels, then ours": "load(KERNELS); use_kernels()",
    "for XLA, then a copy": "use_xla(); load(XLA); use_xla()",
    "a copy for XLA, then ours": "load(XLA); use_xla(); use()",
}


@pytest.mark.parametrize("steps", STEPS)
def test_what_registers_twice_works(tmp_path, steps):
    """TensorFlow would run none of two kernels of one op, and takes a gradient once."""
    copy = tmp_path / "copy"
    shutil.copytree(_loader.installation().folder, copy)
    if "XLA" in STEPS[steps] and not (copy / _loader.XLA_LIBRARY).exists():
        pytest.skip("built without XLA")
    if not (copy / _loader.CORE_LIBRARY).exists():
        shutil.copy(_loader.core_library_path(), copy)
    forked.output(TWICE + STEPS[steps], ROOT, copy)


def test_another_version_that_has_registered_its_ops_is_refused(monkeypatch):
    from tensorflow.python.framework import op_def_registry

    monkeypatch.setattr(op_def_registry, "get", lambda name: None)
    with pytest.raises(_loader.LibraryError, match="has registered its ops in this process"):
        _loader._wrappers_of_another_copy("x.so")
