"""`make bitwise-against`: a library equals itself, a difference is named, errors are sentences.

Promised: a library equals itself bit by bit in every combination of op, type and layout; where two
differ, or one lacks an op, it is named.
"""

import pathlib
import subprocess
import sys

import build_helpers
import pytest

from tf_bn_ops import _loader


@pytest.fixture(scope="module")
def tool():
    return build_helpers.tool("bitwise_against")


@pytest.mark.long
def test_a_library_is_bitwise_identical_to_itself_in_every_combination(tool, capsys):
    library = pathlib.Path(_loader.library_path())
    assert tool.compare(library, library, 1, 7) == 0
    combinations = len(list(tool.cases(1, 7)))
    assert f"bitwise identical: {combinations} of {combinations} cases" in capsys.readouterr().out


def lines_of(tool, monkeypatch, ours, theirs):
    """Compares two libraries whose processes print these lines; its status."""
    library = pathlib.Path(_loader.library_path())

    def printed(path, count, seed):
        code = f"print(*{ours if path == library else theirs}, sep=chr(10))"
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(tool, "_run", printed)
    return tool.compare(library, pathlib.Path("other"), 1, 7)


def test_differences_and_ops_that_one_library_lacks_are_named(tool, monkeypatch, capsys):
    """A commit from before an op has no digest of it; its other ops are compared all the same."""
    cases = list(tool.cases(1, 7))
    ours = [str(i) for i in range(len(cases))]
    lacks = "FusedBatchNormEx"
    theirs = ["absent" if case.op == lacks else str(i) for i, case in enumerate(cases)]
    present = len(theirs) - theirs.count("absent")
    assert lines_of(tool, monkeypatch, ours, theirs) == 0
    out = capsys.readouterr().out
    assert f"not in both libraries: {lacks} " in out
    assert f"bitwise identical: {present} of {present} cases" in out
    wrong = theirs.index(next(i for i in theirs if i != "absent"))
    theirs[wrong] = "-1"
    assert lines_of(tool, monkeypatch, ours, theirs) == 1
    out = capsys.readouterr().out
    assert f"differs: {cases[wrong]}\n" in out and f"{present - 1} of {present} cases" in out


def test_a_library_that_ends_early_is_an_error(tool, monkeypatch, capsys):
    assert lines_of(tool, monkeypatch, [], []) == 2
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
