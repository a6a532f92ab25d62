"""`make mutants`: every edit fits the sources, wrong kernels are caught, and survivors are said."""

import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "mutants"
sys.path.insert(0, str(FOLDER))

import run as mutants  # noqa: E402

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
    monkeypatch.setattr(mutants, "judge", lambda library, most=None: mutants.Verdict(1600, ""))
    assert mutants.run([], tmp_path / "sources") == 1
    assert "NOT CAUGHT: nothing is wrong" in capsys.readouterr().out
