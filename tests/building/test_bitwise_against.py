"""`make bitwise-against`: a library equals itself, a difference is named, errors are sentences."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

from tf_bn_ops import _loader


@pytest.fixture(scope="module")
def tool():
    path = pathlib.Path(__file__).resolve().parents[2] / "tools" / "bitwise_against.py"
    if not path.exists():
        pytest.skip("needs the source tree")
    spec = importlib.util.spec_from_file_location("bitwise_against", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_a_library_is_bitwise_identical_to_itself_in_every_combination(tool, capsys):
    library = pathlib.Path(_loader.library_path())
    assert tool.compare(library, library, 1, 7) == 0
    combinations = len(list(tool.cases(1, 7)))
    assert f"bitwise identical: {combinations} of {combinations} cases" in capsys.readouterr().out


def test_one_different_output_fails_and_is_named(tool, monkeypatch, capsys):
    library = pathlib.Path(_loader.library_path())
    wrong = 3

    def digests(path, count, seed):
        ours = path == library
        text = [f"print({i if ours or i != wrong else -1})" for i in range(len(names))]
        return subprocess.Popen(
            [sys.executable, "-c", "\n".join(text)], stdout=subprocess.PIPE, text=True
        )

    names = [case.name for case in tool.cases(1, 7)]
    monkeypatch.setattr(tool, "_run", digests)
    assert tool.compare(library, pathlib.Path("other"), 1, 7) == 1
    out = capsys.readouterr().out
    assert f"differs: {names[wrong]}\n" in out
    assert f"{len(names) - 1} of {len(names)} cases" in out


def test_an_op_that_one_library_lacks_is_left_out_and_named(tool, monkeypatch, capsys):
    """A commit from before the op; its other ops are compared all the same."""
    library = pathlib.Path(_loader.library_path())
    lines = [
        ("absent" if case.op.name == "FusedBatchNormEx" else str(i), str(i))
        for i, case in enumerate(tool.cases(1, 7))
    ]

    def digests(path, count, seed):
        text = "\n".join(f"print({line[path == library]!r})" for line in lines)
        return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(tool, "_run", digests)
    assert tool.compare(library, pathlib.Path("other"), 1, 7) == 0
    out = capsys.readouterr().out
    assert "not in both libraries: FusedBatchNormEx\n" in out
    present = sum(theirs != "absent" for theirs, _ in lines)
    assert f"bitwise identical: {present} of {present} cases" in out


def test_a_library_that_ends_early_is_an_error(tool, monkeypatch, capsys):
    def nothing(path, count, seed):
        return subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(tool, "_run", nothing)
    library = pathlib.Path(_loader.library_path())
    assert tool.compare(library, library, 1, 7) == 2
    assert "did not survive case" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [([], "name the commit with --ref"), (["--ref=no-such-commit"], "is no commit")],
)
def test_wrong_usage_is_one_sentence(tool, flags, message):
    done = subprocess.run([sys.executable, tool.__file__, *flags], capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
