"""The Makefile: it builds what changed and nothing else, and says clearly what is missing.

Promised: a second `make` does nothing; what changed is built again and nothing else; a switch of
environment refreshes the package; the core library needs no TensorFlow; nothing but the API is
exported; no inline function leaks from one ISA build into another; what is missing is one sentence.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

import pytest
from build_helpers import bare_venv, copy_tree, fake_tensorflow, make, run, tool

from tf_bn_ops import _loader

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not all(map(shutil.which, ("make", "g++", "nm"))), reason="needs make, g++ and nm"
    ),
]

# XLA's where this TensorFlow has what it needs.
XLA = [_loader.XLA_LIBRARY] if _loader.build_info()["xla"] else []
LIBRARIES = (_loader.OP_LIBRARY, *_loader.COMPANIONS, *XLA)
# Folders of cc whose sources, or most of them, are a translation unit.
UNITS = ("optimizer", "client", "ops", "kernels", "override")
SUPPORTED = tool("tf_env").supported_versions()
FORBIDDEN_FLAGS = ("-ffast-math", "-Ofast", "-march=native")


@pytest.fixture(scope="module")
def tree(repo_root: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the checkout that is built."""
    copy = copy_tree(repo_root, tmp_path_factory.mktemp("build") / "tree")
    result = make(copy)
    assert result.returncode == 0, result.stdout + result.stderr
    return copy


@pytest.fixture(scope="module")
def objects_folder(tree: pathlib.Path) -> pathlib.Path:
    """build/KEY of this environment."""
    key = (tree / "tf_bn_ops" / "lib" / ".environment").read_text().strip()
    return tree / "build" / key


def with_source(objects_folder: pathlib.Path, pattern: str) -> list[pathlib.Path]:
    """Its files of this pattern whose source is in the tree, or its folder where that is one unit:
    objects of sources that are gone stay in the folder of a checkout."""
    tree = objects_folder.parents[1]

    def has_source(path: pathlib.Path) -> bool:
        folder = (tree / path.relative_to(objects_folder)).parent
        if not {*UNITS}.isdisjoint(folder.parts):
            return path.stem == "unit"
        return any(folder.glob(f"{path.name.split('.')[0]}.c*"))

    return [path for path in objects_folder.rglob(pattern) if has_source(path)]


def steps(tree: pathlib.Path, *arguments: str) -> tuple[list[str], list[str]]:
    """What make would compile, and what it would link, without doing it."""
    result = make(tree, "-n", *arguments)
    assert result.returncode == 0, result.stderr
    compiled = re.findall(r"echo '  CXX +([^']*)'", result.stdout)
    linked = re.findall(r"echo '  LINK +.*/(.*)'", result.stdout)
    return sorted(compiled), sorted(linked)


def problem(result: subprocess.CompletedProcess[str]) -> str:
    """The sentence with which make refused; there must be one and no traceback."""
    output = result.stdout + result.stderr
    assert result.returncode != 0, output
    assert "Traceback" not in output
    sentences = re.findall(
        r"^(?:(?:Makefile|mk/\w+\.mk):\d+: \*\*\*|error:) (.*)$", output, re.MULTILINE
    )
    assert len(sentences) == 1, output
    return sentences[0]


def isa_names(tree: pathlib.Path, **variables: str) -> list[str]:
    """The instruction sets that make builds; all of this machine's kind with ISAS=all."""
    kind = "isa" if os.environ.get("ISAS") == "all" else "native"
    command = ["tools/list_flags.sh", kind, "cc/cpu/isa/isa_builds.txt"]
    return [line.split("|")[0] for line in run(command, tree, **variables).stdout.splitlines()]


def test_make_builds_the_instruction_sets_of_this_processor(repo_root, tmp_path, monkeypatch):
    """And the baseline, which is always there; all of them where the processor is another one's."""
    monkeypatch.delenv("ISAS", raising=False)
    flags = "flags\t\t: fpu fma avx2 avx512f\n"
    (tmp_path / "cpuinfo").write_text(flags + flags)
    of_x86 = {"CPUINFO": str(tmp_path / "cpuinfo")}
    if platform.machine() == "x86_64":
        assert isa_names(repo_root, **of_x86) == ["avx2", "baseline"]
        assert "neon" in isa_names(repo_root, ARCH="aarch64", **of_x86)
    assert make(repo_root, "-n", "ISAS=some").stderr.count("ISAS=some is neither native") == 1
    monkeypatch.setenv("ISAS", "all")
    assert set(isa_names(repo_root)) > {"baseline"}


# ---- What is built again ---------------------------------------------------------------------


def test_second_make_does_nothing(tree, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuses:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tensorflow.python':\n"
        "            raise SystemExit('an idle make must not import TensorFlow')\n"
        "sys.meta_path.insert(0, Refuses())\n"
    )
    result = make(tree, "-q", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, f"make -q finds something to do\n{result.stderr}"
    assert steps(tree) == ([], [])


@pytest.mark.parametrize(
    ("folder", "libraries"),
    [
        ("core", [_loader.CORE_LIBRARY]),
        ("c_api", [_loader.CORE_LIBRARY]),
        ("tf/kernels", [_loader.OP_LIBRARY]),
        ("tf/ops", [_loader.OP_LIBRARY, _loader.OVERRIDE_LIBRARY, *XLA]),
        ("tf/override", [_loader.OVERRIDE_LIBRARY]),
        ("tf/optimizer", [_loader.OPTIMIZER_LIBRARY]),
        *([("tf/xla", XLA)] if XLA else []),
        ("client", [_loader.CLIENT_LIBRARY]),
    ],
)
def test_touching_a_source_rebuilds_it_alone(tree, folder, libraries):
    source = str(sorted((tree / "cc" / folder).glob("*.cc"))[0].relative_to(tree))
    compiled = f"cc/{folder}/*.cc" if folder.split("/")[-1] in UNITS else source
    assert steps(tree, "-W", source) == ([compiled], libraries)


def test_touching_an_isa_source_rebuilds_its_builds(tree):
    compiled, _ = steps(tree, "-W", "cc/cpu/isa/gradient_kernels.cc")
    assert compiled == sorted(
        f"cc/cpu/isa/gradient_kernels.cc ({name})" for name in isa_names(tree)
    )


def test_touching_a_header_rebuilds_what_includes_it(tree, objects_folder):
    header = "cc/core/view.h"
    users = [path for path in with_source(objects_folder, "*.d") if header in path.read_text()]
    compiled, _ = steps(tree, "-W", header)
    assert users
    assert len(compiled) == len(users)


def test_touched_sources_alone_are_really_built_again_without_a_warning(tree, objects_folder):
    """One object of each kind: the whole build would take too long."""
    before = {path: path.stat().st_mtime_ns for path in objects_folder.rglob("*.o")}
    (tree / "cc" / "core" / "partition.cc").touch()
    sorted((tree / "cc" / "tf" / "ops").glob("*.cc"))[0].touch()
    result = make(tree)
    assert (result.returncode, result.stderr) == (0, "")
    changed = {path for path, when in before.items() if path.stat().st_mtime_ns != when}
    folder = objects_folder / "cc"
    assert changed == {folder / "core" / "partition.o", folder / "tf" / "ops" / "unit.o"}
    assert make(tree, "-q").returncode == 0


def test_changed_flags_rebuild_everything(tree, objects_folder):
    compiled, linked = steps(tree, "CXXFLAGS=-g1")
    examples = objects_folder / "examples"
    objects = [path for path in with_source(objects_folder, "*.o") if path.parent != examples]
    assert len(compiled) == len(objects)
    assert linked == sorted(LIBRARIES)
    assert make(tree, "-q").returncode == 0, "make -n must not leave anything behind"


def test_a_new_source_is_picked_up_and_a_removed_one_forgotten(tree):
    source = tree / "cc" / "core" / "new_source.cc"
    source.write_text("// Empty.\n")
    try:
        compiled, linked = steps(tree)
    finally:
        source.unlink()
    assert compiled == ["cc/core/new_source.cc"]
    assert linked == sorted(LIBRARIES)
    assert steps(tree) == ([], [])


def test_switching_the_environment_refreshes_the_package(tree):
    library = tree / "tf_bn_ops" / "lib"
    built = (library / "libtf_bn_ops.so").read_bytes()
    (library / "libtf_bn_ops.so").write_bytes(b"of another environment")
    (library / ".environment").write_text("cp310-tf2.16.2-000000\n")
    assert make(tree, "-q").returncode == 1
    assert make(tree).returncode == 0
    assert (library / "libtf_bn_ops.so").read_bytes() == built
    assert make(tree, "-q").returncode == 0


def test_flags_are_asked_again_when_tensorflow_changed(tree, objects_folder):
    config = objects_folder / "config.mk"
    before = config.stat().st_mtime_ns
    (objects_folder / "environment.txt").write_text("an earlier TensorFlow\n")
    assert make(tree).returncode == 0
    assert config.stat().st_mtime_ns != before


# ---- What is built ---------------------------------------------------------------------------


def test_build_info(tree):
    info = json.loads((tree / "tf_bn_ops" / "lib" / "build_info.json").read_text())
    version = re.search('"(.*)"', (tree / "tf_bn_ops" / "_version.py").read_text().split("=")[1])
    assert info["version"] == version.group(1)
    assert info["isa_builds"] == isa_names(tree)
    assert info["cxx11_abi"] in (0, 1)
    assert "g++" in info["compiler"] or "clang" in info["compiler"]
    assert not set(FORBIDDEN_FLAGS) & set(info["cxxflags"].split())


@pytest.mark.skipif(not XLA, reason="TensorFlow lacks the headers")
def test_xla_kernels_can_be_left_out_and_come_back(tree):
    library = tree / "tf_bn_ops" / "lib" / "libtf_bn_ops_xla.so"
    info = tree / "tf_bn_ops" / "lib" / "build_info.json"
    result = make(tree, "XLA=")
    assert result.returncode == 0, result.stderr
    assert "XLA     left out: jit_compile=True will not find the ops" in result.stdout
    assert not library.exists()
    assert json.loads(info.read_text())["xla"] is False
    assert make(tree).returncode == 0
    assert library.exists()
    assert json.loads(info.read_text())["xla"] is True


def test_a_tensorflow_without_headers_of_xla(tree, objects_folder):
    """As TensorFlow's wheels before 2.20: left out by itself; asking for it is one sentence."""
    config = objects_folder / "config.mk"
    text = config.read_text()
    config.write_text(re.sub("^XLA_INCLUDES := .*$", "XLA_INCLUDES :=", text, flags=re.M))
    try:
        compiled, linked = steps(tree)
        assert not [name for name in (*compiled, *linked) if "xla" in name]
        assert "lacks headers of XLA" in problem(make(tree, "-n", "XLA=1"))
    finally:
        config.write_text(text)


def exported_symbols(tree: pathlib.Path, library: str) -> list[str]:
    command = ["nm", "-D", "-C", "--defined-only", "--format=posix", f"tf_bn_ops/lib/{library}"]
    result = run(command, tree)
    assert result.returncode == 0, result.stderr
    return [re.sub(r" \w [0-9a-f]+ *[0-9a-f]*$", "", line) for line in result.stdout.splitlines()]


def test_exported_symbols(tree):
    """Only the C ABI and the C++ API: others could clash with TensorFlow's or be relied upon."""
    for name in sorted({*LIBRARIES} - {"libtf_bn_ops_client.so"}):
        symbols = exported_symbols(tree, name)
        assert [symbol for symbol in symbols if not symbol.startswith("tfbn_")] == []
        assert any(part in name for part in ("core", "optimizer")) == bool(symbols), symbols
    classes = set()
    for symbol in exported_symbols(tree, "libtf_bn_ops_client.so"):
        found = re.match(r"tf_bn_ops::(ops::)?(\w+)", symbol)
        assert found, symbol
        assert "Impl" not in symbol
        classes.add(found.group(2))
    # Op classes are in the headers alone; what they call is ops::internal::AddNode.
    assert classes == {"internal", "BatchNormGradBlock", "LoadOpLibrary"}


def test_core_library_needs_no_tensorflow(tree):
    result = run(["readelf", "-d", "tf_bn_ops/lib/libtf_bn_ops_core.so"], tree)
    assert "tensorflow" not in result.stdout


def test_isa_objects_define_only_symbols_of_their_own(tree, objects_folder):
    """An inline function compiled for AVX-512 and chosen by the linker for all would be fatal.

    Hence each build's global symbols carry its name, and none is weak, as symbols of
    inline functions and templates are.
    """
    for name in isa_names(tree):
        objects = list((objects_folder / "cc" / "cpu" / "isa").glob(f"*.{name}.o"))
        assert objects
        for path in objects:
            result = run(["nm", "--defined-only", "--extern-only", "--format=posix", path], tree)
            symbols = [line.split()[:2] for line in result.stdout.splitlines()]
            assert symbols
            for symbol, kind in symbols:
                assert name in symbol, f"{path.name} exports {symbol}"
                assert kind not in "wWvVu", f"{path.name} has the weak symbol {symbol}"


# ---- What is missing -------------------------------------------------------------------------


def test_another_machine_without_its_parts(tree):
    """Of a machine that is none of ours, and of one whose Python and compiler are not there."""
    other = "sparc" if platform.machine() != "sparc" else "s390x"
    assert f"ARCH={other} is none" in problem(make(tree, f"ARCH={other}"))
    if platform.machine() == "aarch64":
        return
    assert "make aarch64-parts" in problem(make(tree, "ARCH=aarch64", python=""))
    sentence = problem(make(tree, "ARCH=aarch64"))
    assert f"{sys.executable} is a Python of {platform.machine()}, but ARCH is aarch64" in sentence


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return bare_venv(tmp_path_factory.mktemp("bare") / "venv")


def test_what_is_missing_is_one_sentence(tree, bare_python):
    for arguments, python, words in (
        (["CXX=/nonexistent/g++"], sys.executable, ("/nonexistent/g++", "apt install g++")),
        ([], "/nonexistent/python", ("PYTHON=/nonexistent/python",)),
        ([], bare_python, ("no TensorFlow", str(bare_python), SUPPORTED)),
        (["lint-types"], bare_python, ("mypy", "pip install")),
    ):
        sentence = problem(make(tree, *arguments, python=str(python)))
        assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize("version", ["2.15.1", "2.23.0", "3.0.0rc1"])
def test_unsupported_tensorflow(tree, bare_python, tmp_path, version):
    fake_tensorflow(tmp_path, version, "raise SystemExit('must not be imported')")
    changes = {"PYTHONPATH": str(tmp_path)}
    if version < SUPPORTED:
        changes["TF_BN_OPS_UNTRIED"] = "1"  # No help for what was dropped.
    sentence = problem(make(tree, python=str(bare_python), **changes))
    assert f"TensorFlow {version}" in sentence
    assert SUPPORTED in sentence
    assert ("TF_BN_OPS_UNTRIED=1" in sentence) == (version > SUPPORTED.split()[-1])


def test_an_untried_tensorflow_is_built_for_where_that_is_wanted(tree, bare_python, tmp_path):
    """It is asked for its flags, as any other; make may be told before its name or behind it."""
    fake_tensorflow(tmp_path, "2.99.0rc1", "raise RuntimeError('asked for its flags')")
    path, wanted = str(tmp_path), "TF_BN_OPS_UNTRIED=1"
    told = [
        make(tree, python=str(bare_python), PYTHONPATH=path, TF_BN_OPS_UNTRIED="1"),
        make(tree, wanted, python=str(bare_python), PYTHONPATH=path),
    ]
    for result in told:
        assert "asked for its flags" in problem(result)


def test_broken_tensorflow(tree, bare_python, tmp_path):
    fake_tensorflow(tmp_path, "2.20.0", "import no_such_module_of_tensorflow")
    sentence = problem(make(tree, python=str(bare_python), PYTHONPATH=str(tmp_path)))
    assert "cannot be imported" in sentence
    assert "no_such_module_of_tensorflow" in sentence


def stub_python(folder: pathlib.Path, refuses: str) -> str:
    """A program that acts as this Python, but fails for code that contains `refuses`."""
    stub = folder / "stub_python"
    stub.write_text(
        f'#!/bin/sh\ncase "$2" in *"{refuses}"*) exit 1 ;; esac\nexec {sys.executable} "$@"\n'
    )
    stub.chmod(0o755)
    return str(stub)


@pytest.mark.parametrize(
    ("refuses", "expected"),
    [("version_info", "no Python 3.10 to 3.13"), ("ensurepip", "apt install python3-venv")],
)
def test_python_that_cannot_make_the_venv(tree, tmp_path, refuses, expected):
    stub = stub_python(tmp_path, refuses)
    sentence = problem(make(tree, python="", VENV=str(tmp_path / "venv"), VENV_PYTHON=stub))
    assert expected in sentence
    assert not (tmp_path / "venv").exists()


# ---- The rest --------------------------------------------------------------------------------


def test_help_lists_every_target(tree):
    text = "".join(path.read_text() for path in (tree / "Makefile", *tree.glob("mk/*.mk")))
    help_text = make(tree, "help").stdout
    targets = "all examples conformance test wheel bazel lint format sanitize fuzz bench"
    for target in targets.split():
        assert re.search(rf"^{target}:", text, re.MULTILINE)
        assert f"make {target} " in help_text
