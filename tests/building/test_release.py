"""A release: one wheel for all TensorFlows, as users install it; version, changelog.

Promised: the wheel is installed by pip without a compiler, and the loader chooses; two builds give
the same bytes; a release without changes or with a wrong version is refused before anything
changes.

The wheel is built for the TensorFlow of this environment, and for a second one where
TF_BN_OPS_ENVIRONMENTS (or build/matrix) holds environments as `make matrix` makes them; without, a
copy of the libraries stands in for the second, which is chosen and not loaded.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys
import time
import zipfile

import pytest
from build_helpers import bare_venv, copy_tree, installed, run, site_packages, tool

from tf_bn_ops import _loader, _version

OWN = ".".join(str(_loader.build_info()["tensorflow_version"]).split(".")[:2])


# ---- Version and changelog ---------------------------------------------------------------------


@pytest.fixture
def sources(repo_root: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """What new_version.py changes, of a release 1.2.0 with one change since."""
    (tmp_path / "tf_bn_ops").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "tf_bn_ops" / "_version.py").write_text('"""Text."""\n\n__version__ = "1.2.0"\n')
    (tmp_path / "docs" / "page.md").write_text("install tf_bn_ops_conformance-1.2.0-py3-none-any\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- A change.\n\n## [1.2.0] - 2026-01-01\n\n- First.\n"
    )
    return tmp_path


def test_a_release_names_its_changes(sources):
    new_version = tool("new_version")
    changed = new_version.release(sources, "1.3.0rc1", "2026-02-03")
    assert changed == ["tf_bn_ops/_version.py", "CHANGELOG.md", "docs/page.md"]
    assert '"1.3.0rc1"' in (sources / "tf_bn_ops" / "_version.py").read_text()
    assert "tf_bn_ops_conformance-1.3.0rc1-py3" in (sources / "docs" / "page.md").read_text()
    headings = re.findall(r"^(?:## .*|- .*)$", (sources / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings == [
        "## [Unreleased]", "## [1.3.0rc1] - 2026-02-03", "- A change.",
        "## [1.2.0] - 2026-01-01", "- First.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("1.3", "'1.3' is no version"),
        ("1.2.0", "1.2.0 is not higher than 1.2.0"),
        ("1.2.0rc1", "1.2.0rc1 is not higher than 1.2.0"),
    ],
)
def test_a_wrong_version_is_refused_before_anything_changes(sources, version, sentence):
    new_version = tool("new_version")
    before = {path: path.read_bytes() for path in sources.rglob("*.*")}
    with pytest.raises(new_version.Refused, match=re.escape(sentence)):
        new_version.release(sources, version, "2026-02-03")
    assert {path: path.read_bytes() for path in sources.rglob("*.*")} == before


def test_a_release_without_changes_is_refused(sources):
    new_version = tool("new_version")
    new_version.release(sources, "1.3.0", "2026-02-03")
    with pytest.raises(new_version.Refused, match="lists no change since the last version"):
        new_version.release(sources, "1.4.0", "2026-02-04")


# ---- The same bytes twice ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"same", "w.whl: the same bytes from another folder, with TensorFlow 2.16, 2.21 compiled"),
        (b"other", "two builds differ in w.whl"),
        (None, "dist/ has no w.whl"),
    ],
    ids=["same", "differ", "missing"],
)
def test_two_builds_are_compared(tmp_path, monkeypatch, first, said):
    """What is built the second time, and how, is the command's; here it writes a file."""
    pytest.importorskip("elftools", reason="needs auditwheel (requirements/dev.txt)")
    check = tool("check")
    commands = []

    def run(log: str, command: list[str], cwd: pathlib.Path, **changes: str) -> str:
        commands.append((command, changes))
        (cwd / "dist").mkdir(exist_ok=True)
        (cwd / "dist" / "w.whl").write_bytes(b"same")
        return ""

    versions = ["2.16", "2.17", "2.21"]
    arguments = f"--versions={' '.join(versions)} --environments={tmp_path} --folder={tmp_path}/f"
    rehearsal = check.Rehearsal(check.parse(re.split(" (?=--)", arguments)))
    assert rehearsal.versions == versions
    monkeypatch.setattr(rehearsal, "run", run)
    rehearsal.dist = tmp_path / "dist"
    rehearsal.dist.mkdir()
    if first:
        (rehearsal.dist / "w.whl").write_bytes(first)
    try:
        result = check.reproducible(rehearsal)
    except check.Failed as failure:
        result = str(failure)
    assert said in result
    (command, changes), _ = commands
    assert "--versions=2.16 2.21" in command and command[-1].startswith("--others=")
    assert not pathlib.Path(changes["CCACHE_DIR"]).exists(), "a compiler cache that is empty"


# ---- The wheel ---------------------------------------------------------------------------------

long = pytest.mark.long


def second_environment(repo_root: pathlib.Path) -> tuple[str, pathlib.Path] | None:
    """(version, its site-packages) of another TensorFlow than this one, newest first."""
    folder = pathlib.Path(os.environ.get("TF_BN_OPS_ENVIRONMENTS", repo_root / "build" / "matrix"))
    found = [path for path in folder.glob("2.*/venv/bin/python") if path.parts[-4] != OWN]
    for python in sorted(found, reverse=True):
        return python.parts[-4], site_packages(python)
    return None


@pytest.fixture(scope="module")
def environments(repo_root: pathlib.Path, tmp_path_factory) -> pathlib.Path:
    """FOLDER/VERSION/venv for the versions of the wheel."""
    folder = tmp_path_factory.mktemp("environments")
    (folder / OWN).mkdir()
    (folder / OWN / "venv").symlink_to(sys.prefix)
    second = second_environment(repo_root)
    if second:
        (folder / second[0]).mkdir()
        (folder / second[0] / "venv").symlink_to(second[1].parents[2])
    return folder


@pytest.fixture(scope="module")
def wheel(repo_root: pathlib.Path, environments: pathlib.Path, tmp_path_factory) -> pathlib.Path:
    """Built by the command of a release, in a copy of the tree with its objects; its path has a
    blank, as many have."""
    for name in ("auditwheel", "setuptools"):
        pytest.importorskip(name, reason="needs requirements/dev.txt and build.txt")
    tree = copy_tree(repo_root, tmp_path_factory.mktemp("release") / "a tree")
    versions = sorted(path.name for path in environments.iterdir())
    if len(versions) == 1:
        add_stand_in(tree)
    command = [sys.executable, "tools/release/wheels.py", f"--versions={' '.join(versions)}"]
    result = run([*command, f"--environments={environments}"], tree)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = (tree / "dist").glob("*.whl")
    return path


def add_stand_in(tree: pathlib.Path) -> None:
    """Makes the copy's wheels.py stage its one version twice, as a TensorFlow 2.16 too."""
    path = tree / "tools" / "release" / "wheels.py"
    text = path.read_text()
    before = "        arguments.dist.mkdir("
    copy = f'        shutil.copytree(stage / "lib_tf{OWN}", stage / "lib_tf2.16")\n'
    assert text.count(before) == 1
    path.write_text(text.replace(before, copy + before))


def minors_of(wheel: pathlib.Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(set(re.findall(r"lib_tf([\d.]+)/", " ".join(archive.namelist()))))


@long
def test_the_wheel_is_one_file_for_every_tensorflow(wheel):
    """Its name, requirements, licence and libraries; smaller than one version's was before.

    Promise: One wheel serves every TensorFlow that is supported.
    """
    contents = tool("contents")
    assert contents.problems(wheel, minors_of(wheel)) == []
    assert len(minors_of(wheel)) == 2
    assert wheel.stat().st_size < 10_000_000
    with zipfile.ZipFile(wheel) as archive:
        cores = [name for name in archive.namelist() if name.endswith(_loader.CORE_LIBRARY)]
    assert cores == [f"tf_bn_ops/lib/{_loader.CORE_LIBRARY}"]


@long
def test_a_spoiled_wheel_is_found_out(wheel, tmp_path):
    contents = tool("contents")
    spoiled = tmp_path / wheel.name.replace("-manylinux", "-linux")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(spoiled, "w") as target:
        for name in whole.namelist():
            content = whole.read(name)
            if name.endswith("/METADATA"):
                content = b"Requires-Dist: tensorflow-cpu==2.21.*\n" + content
            if name.endswith(_loader.OVERRIDE_LIBRARY):
                content = content.replace(b"$ORIGIN:$ORIGIN/../lib", b"/tmp/x:/tmp/abcdef1234")
            if not name.endswith("/LICENSE"):
                target.writestr(name, content)
    told = " ".join(contents.problems(spoiled, [*minors_of(wheel), "2.99"]))
    for wrong in (
        "is not tagged py3-none-manylinux", "it requires tensorflow-cpu==2.21.*",
        "does not hold the file LICENSE",
        "it lacks tf_bn_ops/lib_tf2.99/libtf_bn_ops.so", "looks for libraries in /tmp/x",
    ):  # fmt: skip
        assert wrong in told, told


# The line that Python runs at every start has put the package there.
USES_ALL = """
import sys
assert "tf_bn_ops" in sys.modules
import numpy as np, tensorflow as tf, tf_bn_ops
x, one = np.arange(8, dtype=np.float32).reshape(2, 2, 2, 1), np.ones(1, np.float32)
print(tf.__version__, tf_bn_ops.library_path(), tf_bn_ops._loader.core_library_path())
print(float(tf_bn_ops.fused_batch_norm_grad(x, x, one, one, one).offset_backprop[0]))
print(len(tf_bn_ops.enable(keras=False, fuse=False).kernels))
"""


@long
def test_pip_installs_it_and_the_loader_chooses(wheel, environments, tmp_path):
    """In a fresh environment for each TensorFlow, with nothing that compiles on the path."""
    for folder in sorted(environments.iterdir()):
        version, place = folder.name, tmp_path / folder.name
        place.mkdir()
        begin = time.monotonic()
        python = installed(wheel, place, [site_packages(folder / "venv" / "bin" / "python")])
        assert time.monotonic() - begin < 10, "what users wait for beside TensorFlow"
        how = {"PATH": str(place), "TF_CPP_MIN_LOG_LEVEL": "3", "TF_BN_OPS": "kernels"}
        result = run([python, "-c", USES_ALL], place, **how)
        assert result.returncode == 0, result.stderr
        (tensorflow, library, core), (total,), (overridden,) = map(
            str.split, result.stdout.splitlines()
        )
        assert tensorflow.startswith(f"{version}.")
        assert f"/lib_tf{version}/" in library and library.startswith(str(place))
        assert core.endswith("/tf_bn_ops/lib/libtf_bn_ops_core.so")
        assert (float(total), int(overridden)) == (28.0, 34)
        doctor = run([python, "-m", "tf_bn_ops", "doctor"], place)
        assert doctor.returncode == 0, doctor.stdout


# ---- The first hour ----------------------------------------------------------------------------


class User:
    """Somebody with README.md, an environment with the wheel, and one without."""

    def __init__(self, root: pathlib.Path, wheel: pathlib.Path, folder: pathlib.Path):
        self.page = (root / "README.md").read_text("utf-8")
        self.dropin = (root / "docs" / "dropin.md").read_text("utf-8")
        self.folder = folder
        shutil.copytree(root / "examples", folder / "examples")
        self.here = installed(wheel, folder)
        self.elsewhere = bare_venv(folder / "elsewhere")
        shutil.copy(site_packages(self.here) / "outer.pth", site_packages(self.elsewhere))

    def block(self, language: str, heading: str = "# tf_bn_ops") -> str:
        """The first block behind a heading."""
        found = re.search(rf"```{language}\n(.*?)```", self.page.partition(heading)[2], re.S)
        assert found, f"README.md has no {language} behind {heading!r}"
        return found[1]

    def types(self, command: str, python: pathlib.Path | None = None, **changes: str) -> str:
        """A line of shell; `python` is the environment's, with the wheel unless told otherwise."""
        path = f"{(python or self.here).parent}:{os.environ['PATH']}"
        how = {"PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", **changes}
        result = run(["bash", "-e", "-c", command], self.folder, **how)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout + result.stderr

    def runs(self, code: str, python: pathlib.Path | None = None) -> str:
        (self.folder / "program.py").write_text(code, "utf-8")
        return self.types("python program.py", python)


@pytest.fixture(scope="module")
def user(repo_root: pathlib.Path, wheel: pathlib.Path, tmp_path_factory) -> User:
    return User(repo_root, wheel, tmp_path_factory.mktemp("hour"))


@long
def test_a_program_runs_on_it_in_each_way_of_the_page(user):
    """Promise: The first hour, typed from the README where the wheel is installed: a program runs
    on the library by `run`, by TF_BN_OPS and by `enable`; what it saves loads where the library is
    not, and becomes TFLite and ONNX; SavedModels are rewritten there and back; C++ compiles; a
    kernel is judged."""
    calls = re.compile(r"^\d+ calls of this library's kernels", re.M)
    (command,) = re.findall(r"^\$ (python -m tf_bn_ops run .*)", user.page, re.M)
    assert calls.search(user.types(command))
    assert "`TF_BN_OPS=1`" in user.page and "`tf_bn_ops.enable()`" in user.page
    assert calls.search(user.types("python examples/train.py", TF_BN_OPS="1", TF_BN_OPS_REPORT="1"))
    code = (user.folder / "examples" / "train.py").read_text("utf-8")
    edited = f"import tf_bn_ops\ntf_bn_ops.enable()\n{code}\nprint(tf_bn_ops.report())"
    assert calls.search(user.runs(edited))
    assert user.types("python -m tf_bn_ops doctor").rstrip().endswith("everything fits")


LOADS = """
import sys
import keras, numpy as np, tensorflow as tf
x, y = np.load("x.npy"), np.load("y.npy")
near = {"rtol": 1e-4, "atol": 1e-5}
served, back = map(tf.saved_model.load, ("served", "BACK"))
np.testing.assert_allclose(served.serve(x), y, **near)
np.testing.assert_allclose(keras.models.load_model("model.keras").predict(x, verbose=0), y, **near)
lite = tf.lite.TFLiteConverter.from_saved_model("served").convert()
lite = tf.lite.Interpreter(model_content=lite)
(given,), (result,) = lite.get_input_details(), lite.get_output_details()
lite.resize_tensor_input(given["index"], x.shape)
lite.allocate_tensors()
lite.set_tensor(given["index"], x)
lite.invoke()
np.testing.assert_allclose(lite.get_tensor(result["index"]), y, **near)
trained = back.signatures["train"](tf.constant(x))["output_0"]
np.testing.assert_allclose(trained, np.load("trained.npy"), **near)
assert "tf_bn_ops" not in sys.modules
"""
ONNX = """
import numpy as np, onnxruntime
x, y = np.load("x.npy"), np.load("y.npy")
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
(answer,) = session.run(None, {session.get_inputs()[0].name: x})
np.testing.assert_allclose(answer, y, rtol=1e-4, atol=1e-5)
"""


@long
def test_what_is_saved_loads_where_the_library_is_not(user):
    user.runs(
        user.block("python", "## Python") + "import numpy as np\n"
        "model.compile('sgd', 'mse')\n"
        "x = np.random.default_rng(0).normal(3, 2, (16, *model.input_shape[1:])).astype('f')\n"
        "model.fit(x, x, epochs=2, verbose=0)\n"
        "np.save('x', x); np.save('y', model.predict(x, verbose=0))\n"
        "model.export('served', verbose=False)\n"
        "tf_bn_ops.keras.restore_batch_norm(model).save('model.keras')\n"
        "class Trains(tf.Module):\n"
        "    @tf.function(input_signature=[tf.TensorSpec([None, *x.shape[1:]])])\n"
        "    def train(self, x):\n"
        "        return tf.compat.v1.nn.fused_batch_norm(x, tf.ones(3), tf.zeros(3))[0]\n"
        "module = Trains()\n"
        "np.save('trained', module.train(x))\n"
        "tf.saved_model.save(module, 'IN', signatures={'train': module.train})\n"
    )
    (command,) = re.findall(r"`(python -m tf_bn_ops rewrite IN OUT --to shim)`", user.dropin)
    user.types(command)
    with pytest.raises(AssertionError, match="Op type not registered"):
        user.runs("import tensorflow as tf; tf.saved_model.load('OUT')", user.elsewhere)
    user.types("python -m tf_bn_ops rewrite OUT BACK --to builtin")
    user.runs(LOADS, user.elsewhere)
    for name in ("tf2onnx", "onnxruntime"):
        pytest.importorskip(name, reason=f"needs {name} (requirements/dev.txt)")
    user.types("python -m tf2onnx.convert --saved-model served --output model.onnx", user.elsewhere)
    user.runs(ONNX, user.elsewhere)


@long
def test_the_other_commands_of_the_page(user):
    shown = re.search(r"```text\n\$ (g\+\+ .*?)\n(.*?)```", user.page, re.S)
    assert shown and shown[2] in user.types(shown[1])
    (command,) = re.findall(r"`(python -m tf_bn_ops conformance [^`]*)`", user.page)
    library = user.runs("import tf_bn_ops; print(tf_bn_ops.library_path())").split()[-1]
    command = command.replace("yours.so", library).replace("YourOp", "TfBnOps>FusedBatchNormGradV3")
    command = re.sub(r"--map=(\S+)", r"'--map=\1'", command)
    assert "conformance passed" in user.types(f"{command} --cases=40")


@long
def test_the_sdist_is_the_same_twice(repo_root, tmp_path):
    code = "import sys; sys.path.insert(0, 'tools'); import backend; backend.build_sdist('dist')"
    packed = []
    for name in ("one", "other place"):
        tree = copy_tree(repo_root, tmp_path / name)
        shutil.rmtree(tree / "build", ignore_errors=True)
        result = run([sys.executable, "-c", code], tree, SOURCE_DATE_EPOCH="1000000000")
        assert result.returncode == 0, result.stderr
        (path,) = (tree / "dist").glob("*.tar.gz")
        assert path.name == f"tf_bn_ops-{_version.__version__}.tar.gz"
        packed.append(path.read_bytes())
        time.sleep(1.1)  # Dates of files and archives have seconds.
    assert packed[0] == packed[1]
