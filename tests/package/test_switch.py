"""The switch alone: TF_BN_OPS in processes of their own, from the first line of Python on.

Promised: TF_BN_OPS takes a list, and an unknown word fails every import with those that exist;
children of multiprocessing have it; Keras versions out of range, and other backends, are one
sentence.

What the switch puts in place is tested with the ops, graphs and layers. Where TensorFlow does not
matter a stand-in is imported, and the programs with the real one are few or long.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import sys
import types
from typing import Any, ClassVar

import pytest
from build_helpers import bare_venv, fake_tensorflow, run, site_packages

import tf_bn_ops
from tf_bn_ops import _loader, _startup

ROOT = pathlib.Path(tf_bn_ops.__file__).parents[1]
WORDS = ["kernels", "keras", "fuse"]
SENTENCE = (
    "has the word {!r}: set it to 1 for everything, to 0 for nothing, or to a list of kernels, "
    "keras and fuse, separated by commas"
)
OFF = ["", "0", "False", "0 ", " ", ",", "0,", "0\r", "\t0\n", ",false ,"]
VALUES = {
    **{value: [] for value in OFF},
    **{value: WORDS for value in ("1", "TRUE", "1\r", " 1,")},
    **{"keras": ["keras"], "Fuse,kernels": ["kernels", "fuse"], ",fuse\r": ["fuse"]},
    " kernels , keras ": ["kernels", "keras"],
}
UNKNOWN = {"kernals, keras": "kernals", "off": "off", "0,1": "0", "keras;fuse": "keras;fuse"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, repo_root: pathlib.Path) -> pathlib.Path:
    """An environment with the start-up file, as pip makes it."""
    python = editable(tmp_path_factory.mktemp("switch") / "venv")
    shutil.copy(repo_root / "tools" / "tf_bn_ops.pth", site_packages(python))
    return python


def editable(folder: pathlib.Path) -> pathlib.Path:
    """An environment that sees this package as an editable install does, without start-up file, and
    what is installed here."""
    python = bare_venv(folder)
    outer = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site_packages(python) / "outer.pth").write_text("".join(f"{p}\n" for p in [ROOT, *outer]))
    return python


def said(python: pathlib.Path, program: str, *arguments: str, **variables: str) -> str:
    """What a program prints; it has to succeed."""
    command = [str(python), "-c", program, *arguments]
    done = run(command, python.parent, TF_CPP_MIN_LOG_LEVEL="3", **variables)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", VALUES)
def test_a_value_lists_arguments_of_enable(value):
    assert [word for word, wanted in _startup.parse(value).items() if wanted] == VALUES[value]


@pytest.mark.parametrize("value", UNKNOWN)
def test_an_unknown_word_is_a_sentence_with_those_that_exist(value):
    with pytest.raises(ValueError) as caught:
        _startup.parse(f" {value}\n")
    assert str(caught.value) == f"TF_BN_OPS={value} {SENTENCE.format(UNKNOWN[value])}"


# Each value in a process of its own, which has TF_BN_OPS from its start on.
IMPORTS = """
import json, os, sys, subprocess
program = '''
import sys
hooked = [name for name in ("tf_bn_ops", "numpy", "tf_bn_ops._loader") if name in sys.modules]
said = []
for package in sys.argv[1:]:
    try:
        __import__(package)
        said.append("")
    except ImportError as error:
        said.append(str(error))
print(__import__("json").dumps([hooked, said]))
'''
for value in json.loads(sys.argv[1]):
    told = subprocess.run([sys.executable, "-c", program, *sys.argv[2:]], text=True,
                          stdout=-1, stderr=-2, env={**os.environ, "TF_BN_OPS": value})
    print(told.stdout.splitlines()[-1] if told.returncode == 0 else json.dumps(told.stdout))
"""


@pytest.fixture
def stand_ins(tmp_path: pathlib.Path) -> pathlib.Path:
    """Packages that look like TensorFlow and Keras, and import each other."""
    fake_tensorflow(tmp_path, "2.21.0", "__version__ = '2.21.0'\nimport keras\n")
    (tmp_path / "keras" / "layers").mkdir(parents=True)
    (tmp_path / "keras" / "__init__.py").write_text(
        "import tensorflow, keras.layers\n"
        "class backend:\n    backend = staticmethod(lambda: 'tensorflow')\n"
        "__version__ = '3.9.0'\n"
    )
    (tmp_path / "keras" / "layers" / "__init__.py").touch()
    return tmp_path


def test_what_is_off_imports_and_an_unknown_word_fails_every_import(python, stand_ins):
    """And no NumPy before the program's first line: variables such as OPENBLAS_NUM_THREADS count
    until it is imported."""
    values = [*OFF, *UNKNOWN]
    words = [json.dumps(values), "tensorflow", "keras", "keras.layers", "tensorflow"]
    told = said(python, IMPORTS, *words, PYTHONPATH=str(stand_ins)).splitlines()
    for value, line in zip(values, told, strict=True):
        hooked, sentences = json.loads(line)
        assert hooked == (["tf_bn_ops"] if value else []), value
        reason = SENTENCE.format(UNKNOWN[value]) if value in UNKNOWN else ""
        assert all(sentence.endswith(reason) for sentence in sentences), value
        assert all(bool(sentence) == bool(reason) for sentence in sentences), value


# ---- What cannot be loaded -----------------------------------------------------------------------


@pytest.mark.parametrize("value", [*WORDS, "1"])
def test_every_import_fails_where_a_library_is_missing(python, stand_ins, value):
    """Named by the path that was asked for.

    Promise: Asked for and not possible is an error, and nothing goes on without.
    """
    words = [json.dumps([value]), "keras", "tensorflow", "keras.layers", "keras"]
    how = {"PYTHONPATH": str(stand_ins), "TF_BN_OPS_LIBRARY": "/nowhere"}
    _, sentences = json.loads(said(python, IMPORTS, *words, **how))
    assert {*sentences} == {
        "/nowhere does not exist: set TF_BN_OPS_LIBRARY to a libtf_bn_ops.so or the folder that "
        "holds one, or unset it to use the package's own"
    }


OPTIONAL = """
import os, sys
os.environ["TF_BN_OPS"] = ""
import tensorflow, keras.layers
before = dict(sys.modules)
os.environ["TF_BN_OPS"] = sys.argv[1]
for _ in range(2):
    try:
        import tf_bn_ops
    except ImportError as error:
        print(error)
assert {name: sys.modules.get(name) for name in before} == before
"""


@pytest.mark.parametrize("value", ["kernels", "fuse", "a wrong word"])
def test_a_failing_import_of_this_package_takes_no_other_away(python, stand_ins, value):
    how = {"PYTHONPATH": str(stand_ins), "TF_BN_OPS_LIBRARY": "/nowhere"}
    told = said(python, OPTIONAL, value, **how).splitlines()
    assert len(told) == 2 and len({*told}) == 1
    assert ("'a'" if value == "a wrong word" else "/nowhere does not exist") in told[0]


class SharedLoader(importlib.abc.Loader):
    """An importer that is the loader of all its modules, as importers of frozen programs are."""

    SOURCES: ClassVar = {"stand_in": "import within; done = True", "within": "", "after": ""}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name in self.SOURCES else None

    def create_module(self, spec: Any) -> None:
        pass

    def exec_module(self, module: Any) -> None:
        exec(self.SOURCES[module.__name__], vars(module))


def test_the_end_of_an_import_is_that_of_the_package_alone(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [SharedLoader(), *sys.meta_path])
    ended = []
    _startup.call_after_imports({"stand_in": lambda: ended.append(sys.modules["stand_in"].done)})
    importlib.import_module("stand_in")
    importlib.import_module("after")
    assert ended == [True]


KERAS = """
import json, os, pathlib, sys
sys.path.insert(0, sys.argv[1])
(pathlib.Path(sys.argv[1]) / "keras.py").write_text(f"__version__ = {sys.argv[2]!r}")
import tf_bn_ops
told = tf_bn_ops.enable(kernels=False, fuse=False).refusals
try:
    import tf_bn_ops.keras
except tf_bn_ops.LibraryError as error:
    told += (str(error),)
except ModuleNotFoundError:
    pass
print(json.dumps(told))
"""


RANGE = (
    "the layers of Keras {} cannot be replaced, only those of Keras 3.0.2 and later, below 4.0.0: "
    "install one with pip install 'keras>=3.0.2,<4.0.0'"
)


def test_a_keras_out_of_range_is_refused_in_one_sentence(python, tmp_path):
    refusal, error = json.loads(said(python, KERAS, str(tmp_path), "3.0.1"))
    assert error == RANGE.format("3.0.1")
    assert refusal.startswith(f"{error}, or leave its layers out: ")


def test_the_range_of_keras():
    for version in ("3.0.2", "3.5", "3.15.1", "3.16.0.dev2026112900", "3.99.0"):
        _loader.check_keras(types.SimpleNamespace(__version__=version))
    for version in ("2.15.0", "3.0.0", "3.0.1", "4.0.0", "4.0.0rc1", "10.2"):
        with pytest.raises(_loader.LibraryError) as caught:
            _loader.check_keras(types.SimpleNamespace(__version__=version))
        assert str(caught.value) == RANGE.format(version)


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.0.1", "3.0.2"])
def test_the_oldest_keras_and_the_one_before(python, tmp_path, version):
    packages = [f"keras=={version}", "dm-tree"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", f"--target={tmp_path}"]
    if run([*pip, *packages], tmp_path).returncode != 0:
        pytest.skip("needs an index of packages")
    told = said(python, STATE, PYTHONPATH=str(tmp_path), TF_BN_OPS="1")
    assert_on(told, WORDS if version == "3.0.2" else ["kernels", "fuse"])


# ---- First calls ---------------------------------------------------------------------------------

# What is in place, found without asking this package.
STATE = """

def state():
    import json
    import keras
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow.python.framework import kernels

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.compat.v1.nn.fused_batch_norm(x, tf.ones([3]), tf.zeros([3]))[0]
            y = tf.nn.relu(y + x)
        return tape.gradient(y, x)

    context.context().enable_run_metadata()
    step(tf.random.normal([2, 4, 4, 3]))
    graphs = context.context().export_run_metadata().partition_graphs
    found = kernels.get_registered_kernels_for_op("FusedBatchNormGradV3").kernel
    return json.dumps({
        "kernels": max(kernel.priority for kernel in found) == 1,
        "keras": hasattr(keras.layers.BatchNormalization.call, "tf_bn_ops_replaces"),
        "fuse": any("TfBnOps>" in node.op for graph in graphs for node in graph.node),
    })


if __name__ == "__main__":
    print(state())
"""
ARGUMENTS = "np.ones([2, 4, 4, 3], np.float32), np.ones(3, np.float32), np.ones(3, np.float32)"
FIRST_CALLS = {
    "load": "import tf_bn_ops; tf_bn_ops.load()",
    "an op by name": f"import numpy as np, tf_bn_ops; tf_bn_ops.fused_batch_norm({ARGUMENTS})",
    "raw_ops": "import numpy as np, tf_bn_ops; x, one, _ = " + ARGUMENTS + "\n"
    "tf_bn_ops.raw_ops.FusedBatchNorm(x=x, scale=one, offset=one, mean=[], variance=[])",
    "rewrite.unfuse": "import tf_bn_ops, google.protobuf\n"
    "from tensorflow.core.framework import graph_pb2\n"
    "tf_bn_ops.rewrite.unfuse(graph_pb2.GraphDef())",
    "a layer": "from tf_bn_ops.keras import BatchNormalization",
    "enable": "import tf_bn_ops; assert not tf_bn_ops.enable().refusals",
    "doctor": "from tf_bn_ops import __main__ as c; assert c.main(['', 'doctor']) == 0",
    "TensorFlow": "import tensorflow",
    "Keras": "import keras",
    "a part of Keras": "from keras.layers import Dense",
}


def assert_on(told: str, words: list[str] = WORDS) -> None:
    assert json.loads(told.splitlines()[-1]) == {word: word in words for word in WORDS}


@pytest.mark.parametrize(
    "first", ["load", *(pytest.param(name, marks=pytest.mark.long) for name in [*FIRST_CALLS][1:])]
)
def test_whatever_is_called_first_everything_is_on(python, first):
    """Promise: TF_BN_OPS=1 needs no line in the program, whatever it imports first."""
    assert_on(said(python, FIRST_CALLS[first] + STATE, TF_BN_OPS="1"))


@pytest.mark.long
@pytest.mark.parametrize("word", WORDS)
def test_a_word_alone(python, word):
    told = said(python, "import keras, tensorflow" + STATE, TF_BN_OPS=word)
    assert_on(told, [word])


# ---- Threads -------------------------------------------------------------------------------------

THREADS = """
import faulthandler, os, sys, threading
import tf_bn_ops  # Where there is no start-up file.
from tf_bn_ops import _enable, _loader
faulthandler.dump_traceback_later(240, exit=True)
errors = []
def run(line):
    try:
        barrier.wait()
        exec(line)
    except BaseException as error:
        errors.append((line, error))
lines = sys.argv[1:]
barrier = threading.Barrier(len(lines))
threads = [threading.Thread(target=run, args=[line]) for line in lines]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not errors, errors
"""
SLEEP = "__import__('time').sleep({})\n"
AT_ONCE = {
    "Keras and enable": ["import keras", SLEEP.format(1) + "tf_bn_ops.enable()"],
    "load and load": ["tf_bn_ops.load()"] * 3,
    "TensorFlow and load": ["import tensorflow", SLEEP.format(0.5) + "tf_bn_ops.load()"],
    "Keras and our layer": ["import keras", SLEEP.format(1) + "import tf_bn_ops.keras"],
    "Keras and a part of it": ["import keras", SLEEP.format(1) + "import keras.layers"],
    "our layer and enable": ["import tf_bn_ops.keras", SLEEP.format(1) + "tf_bn_ops.enable()"],
}


@pytest.mark.long
@pytest.mark.parametrize("lines", AT_ONCE.values(), ids=AT_ONCE)
def test_threads_that_import_and_enable_at_once(python, lines):
    assert_on(said(python, THREADS + STATE, *lines, TF_BN_OPS="1"))


def test_no_thread_waits_for_another_at_the_end_of_an_import(python, stand_ins):
    """As above with stand-ins: what is enabled imports TensorFlow, while another thread that has
    begun to import it is at the end of the import and enables too."""
    told = said(python, STAND_IN_THREADS, PYTHONPATH=str(stand_ins), TF_BN_OPS="1")
    assert told.split() == ["ended"] * 4


STAND_IN_THREADS = """
import faulthandler, sys, threading, time
from tf_bn_ops import _enable, _loader
faulthandler.dump_traceback_later(60, exit=True)
errors = []
threading.excepthook = errors.append
_enable.say = lambda *_: ""
def replace():
    _loader.wrappers()
    time.sleep(0.3)
def wrappers(path):
    import tensorflow, keras
    time.sleep(0.3)
_loader.library_path = lambda: "/a/path"
_loader._wrappers = wrappers
_enable._replaced_kernels = _enable._enable_keras = _enable._enable_fusion = replace
lines = ["import tensorflow", "_enable.enable()", "_loader.wrappers()", "import keras"]
threads = [threading.Thread(target=exec, args=[line, globals()]) for line in lines]
for thread in threads:
    thread.start()
    time.sleep(0.1)
for thread in threads:
    thread.join()
    print("ended")
assert not errors, errors
"""


# ---- Child processes, other backends -------------------------------------------------------------

CHILDREN = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[2])
from module import state
with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
    print(pool.apply(state))
"""


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_have_it(python, tmp_path, method):
    (tmp_path / "module.py").write_text(STATE)
    assert_on(said(python, CHILDREN, method, str(tmp_path), TF_BN_OPS="1"))


KERAS_ON_JAX = "class backend:\n    backend = lambda: 'jax'\n__version__ = '3.9.0'\n"


def test_keras_on_another_backend_keeps_its_layers_and_says_so(python, tmp_path):
    """Once at its import, as a warning, and where it is asked for again."""
    (tmp_path / "keras.py").write_text(KERAS_ON_JAX)
    program = (
        "import keras, tf_bn_ops; print(*tf_bn_ops.enable(kernels=False, fuse=False).refusals)"
    )
    done = run([python, "-c", program], tmp_path, PYTHONPATH=str(tmp_path), TF_BN_OPS="1")
    assert "because it runs on the backend jax: set KERAS_BACKEND=tensorflow" in done.stdout
    assert "TF_BN_OPS=kernels,fuse" in done.stdout and done.stderr == 2 * done.stdout


@pytest.mark.long
def test_a_backend_of_keras_that_is_not_installed(python):
    """TensorFlow's import does without Keras then."""
    program = "import json, tensorflow, tf_bn_ops; print(json.dumps(tf_bn_ops.enable().refusals))"
    told = said(python, program, KERAS_BACKEND="jax", TF_BN_OPS="1").splitlines()[-1]
    refusals = json.loads(told)
    assert len(refusals) == (importlib.util.find_spec("jax") is None)
    assert all("Keras 3 cannot be imported" in refusal for refusal in refusals)
