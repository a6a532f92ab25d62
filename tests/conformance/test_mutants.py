"""`make mutants`: every edit fits the sources, wrong kernels are caught, and survivors are said."""

import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "mutants"
sys.path.insert(0, str(FOLDER))

import large_core  # noqa: E402
import run as mutants  # noqa: E402

from tf_bn_ops.harness import c_abi  # noqa: E402

if not (mutants.ROOT / "Makefile").exists():
    pytest.skip("needs the source tree", allow_module_level=True)


def _run(*names):
    return subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *names],
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_every_mutant_fits_the_sources_and_changes_them():
    all_of_them = mutants.load_mutants()
    assert len(all_of_them) >= 25
    assert len({m.name for m in all_of_them}) == len(all_of_them)
    for mutant in all_of_them:
        source = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.apply(source) != source
        # The TensorFlow-free core is what is built.
        assert mutant.file.startswith(("cc/core/", "cc/cpu/", "cc/c_api/"))


def test_edit_that_does_not_fit_is_said():
    stale = mutants.Mutant("m", "w", "f", (("no such text", ""),))
    with pytest.raises(mutants.MutantError, match="occurs 0 times in f"):
        stale.apply("text")


def test_unknown_name_is_one_sentence():
    result = _run("no-such-mutant")
    assert result.returncode == 2
    assert "no mutant no-such-mutant" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.long
def test_three_mutants_are_caught_and_the_unchanged_kernels_pass():
    names = ("epsilon-rounded-to-float", "tail-of-runs-not-summed", "rest-of-the-mean-dropped")
    result = _run(*names)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in names:
        assert re.search(rf"^{name} +\d+  ", result.stdout, re.M)
    assert re.search(r"^\(unchanged\) +\d+  passed", result.stdout, re.M)
    assert "3 of 3 caught" in result.stdout
    assert "NOT CAUGHT" not in result.stdout


def test_survivor_fails_the_run(monkeypatch, tmp_path, capsys):
    """A mutant that changes nothing survives; building and judging are left out."""
    harmless = mutants.Mutant("harmless", "nothing is wrong", "Makefile", ())
    monkeypatch.setattr(mutants, "load_mutants", lambda: [harmless])
    monkeypatch.setattr(mutants.Build, "library_of", lambda self, mutant: tmp_path)
    survives = mutants.Verdict(1600, "")
    monkeypatch.setattr(mutants, "judge", lambda library, op="", most=None, large=False: survives)
    assert mutants.run([], tmp_path / "sources") == 1
    assert "NOT CAUGHT: nothing is wrong" in capsys.readouterr().out


# ---- More than 2^31 elements ---------------------------------------------------------------------

SMALL = 1 << 12, 4  # Block and repeats: the same check, scaled down.


def test_right_kernel_passes_the_large_check():
    assert large_core.check(c_abi.run, *SMALL) == ""


def _reads_beginning(problem, outputs):
    """Elements from 2^14 on, where the last block begins, are read from the beginning."""
    wrapped = problem.copy()
    for role in ("y_backprop", "x"):
        flat = wrapped[role].reshape(-1)
        flat[1 << 14 :] = flat[: 1 << 12]
    return c_abi.run(wrapped, outputs=outputs)


def _leaves_last_out(problem, outputs):
    results = c_abi.run(problem)
    x_backprop = outputs["x_backprop"]
    x_backprop.reshape(-1)[: 1 << 14] = results["x_backprop"].reshape(-1)[: 1 << 14]
    return {**results, "x_backprop": x_backprop}


@pytest.mark.parametrize(
    ("kernel", "failure"),
    [(_reads_beginning, "offset_backprop"), (_leaves_last_out, "x_backprop is wrong in 4096")],
)
def test_large_check_tells_what_is_wrong_in_the_last_block_only(kernel, failure):
    assert large_core.check(kernel, *SMALL).startswith(failure)


@pytest.mark.large
def test_more_than_2_to_the_31_elements_in_a_few_megabytes():
    assert large_core.check(c_abi.run) == ""
