"""`make mutants`: every edit fits the sources, each output of each formula has a mutant of its own,
wrong kernels are caught, survivors are said with the reason, and a page has the score.

Promised: every edit of a mutant fits the sources; each output of each formula has a mutant that is
wrong in it alone; wrong kernels are caught; docs/evidence.md has the score.
"""

import dataclasses
import datetime
import pathlib
import re
import subprocess
import sys

import build_helpers
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "mutants"
sys.path.insert(0, str(FOLDER))

import run as mutants  # noqa: E402
import score  # noqa: E402

from tf_bn_ops import spec  # noqa: E402

if not (mutants.ROOT / "Makefile").exists():
    pytest.skip("needs the source tree", allow_module_level=True)


def _run(*names):
    return subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *names],
        capture_output=True,
        text=True,
        timeout=3 * 3600,
    )


def test_every_mutant_fits_the_sources_and_changes_them():
    all_of_them = mutants.load_mutants()
    assert len([m for m in all_of_them if not m.survives]) >= 60
    assert len({m.name for m in all_of_them}) == len(all_of_them)
    for mutant in all_of_them:
        source = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.apply(source) != source
        # The TensorFlow-free core is what is built.
        assert mutant.file.startswith(("cc/core/", "cc/cpu/", "cc/c_api/"))


def test_every_output_of_every_formula_has_a_mutant_of_its_own():
    own: dict[str, set[str]] = {}
    for mutant in mutants.load_mutants():
        if mutant.output:
            own.setdefault(score.formula_of(mutant.op), set()).add(mutant.output)
    assert own == {formula: set(roles) for formula, roles in score.outputs_of_formulas().items()}
    judged = {op.formula for op in spec.OPS.values() if op.formula in spec.ops.FORMULAS}
    assert judged < set(own)


def test_kernels_of_every_formula_are_in_a_file_of_their_own():
    """Kernels of other formulas, which do not judge a mutant, are not compiled again."""
    for formula in score.outputs_of_formulas():
        if formula != score.formula_of(score.GATHER_STATS):  # It has no vectors.
            name = mutants.kernels_of(formula)
            assert (mutants.ROOT / "cc" / "cpu" / "isa" / f"{name}.cc").exists()


def _outcome(name="m", caught_by="y", reason="", formula="batch_norm", output="y"):
    return score.Outcome(name, "a | b_c", formula, output, caught_by, reason)


def test_score_counts_by_formula_and_says_why_mutants_survive():
    text = score.as_text([
        _outcome(), _outcome("lost", ""), _outcome("same", "", "speed alone"),
        _outcome("other", formula="batch_norm_stats", output=""),
    ])  # fmt: skip
    assert re.search(r"^batch_norm +1 of 2 +2  y$", text, re.M)
    assert re.search(r"^batch_norm_stats +1 of 1 +0$", text, re.M)
    assert "batch_norm_grad " not in text
    assert "survives: lost: a | b_c; NOT EXPECTED" in text
    assert "survives: same: a | b_c; speed alone" in text


def test_what_is_recorded_of_mutants_that_did_not_run_stays(monkeypatch, tmp_path):
    monkeypatch.setattr(score, "FILE", tmp_path / "mutants.json")
    monkeypatch.setattr(score.evidence, "PAGE", tmp_path / "page.md")
    score.evidence.PAGE.write_text("<!-- mutants: here -->\n<!-- end of mutants -->\n")
    first, second = (m.name for m in mutants.load_mutants()[:2])
    mutants.record([_outcome(first), _outcome(second, "", "speed alone", output="")])
    mutants.record([_outcome(second)])
    assert list(score.recorded().values()) == [_outcome(first), _outcome(second)]
    assert "| `batch_norm` | 2 of 2 | 0 | y |" in score.evidence.PAGE.read_text()


def test_mutant_of_one_output_is_caught_by_that_output_alone():
    mutant = mutants.Mutant("m", "w", "f", (), op="FusedBatchNormV3", output="batch_mean")
    failure = "FusedBatchNormV3,half,NHWC: batch_mean 3 times the bound at [0]"
    assert mutants.outcome_of(mutant, mutants.Verdict(7, failure)).caught_by == "batch_mean"
    other = failure.replace("batch_mean", "y")
    assert mutants.outcome_of(mutant, mutants.Verdict(7, other)).caught_by == ""


def test_the_page_shows_what_was_recorded_of_all_mutants():
    said = score.recorded()
    want = {
        m.name: (m.what, score.formula_of(m.op), m.output, m.survives)
        for m in mutants.load_mutants()
    }
    assert {o.name: (o.what, o.formula, o.output, o.reason) for o in said.values()} == want
    page = score.evidence.PAGE.read_text("utf-8")
    table = score.as_table(list(said.values()))
    assert score.evidence.with_table(page, "mutants", table) == page


def test_edit_that_does_not_fit_is_said():
    stale = mutants.Mutant("m", "w", "f", (("no such text", ""),))
    with pytest.raises(mutants.MutantError, match="occurs 0 times in f"):
        stale.apply("text")


def test_unknown_name_is_one_sentence():
    result = _run("no-such-mutant")
    assert result.returncode == 2
    assert "no mutant no-such-mutant" in result.stderr
    assert "Traceback" not in result.stderr


ALL = mutants.load_mutants()
# Some each day, in turn.
TODAY = [m.name for m in (ALL + ALL)[datetime.date.today().toordinal() * 4 % len(ALL) :][:4]]


@pytest.mark.long
@pytest.mark.parametrize(
    "names",
    [TODAY, pytest.param([m.name for m in ALL], marks=pytest.mark.release)],
    ids=["4", "all"],
)
def test_mutants_are_caught_and_the_unchanged_kernels_pass(names):
    result = _run(*names)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in names:
        assert re.search(rf"^{name} +\d+  ", result.stdout, re.M)
    assert re.search(r"^\(unchanged\) +\d+  passed", result.stdout, re.M)
    caught = sum(m.name in names and not m.survives for m in ALL)
    assert f"mutants: {caught} of {caught} caught" in result.stdout
    assert "NOT CAUGHT" not in result.stdout


class Optimized(mutants.Build):
    """Billions of elements take minutes without."""

    flags = "-O1 -w"


@pytest.fixture(scope="module")
def optimized(tmp_path_factory):
    return Optimized(tmp_path_factory.mktemp("mutants") / "tree")


@pytest.mark.long
@pytest.mark.release
@pytest.mark.parametrize(
    "mutant", mutants.load_mutants(FOLDER / "index_mutants.toml", key="tests"), ids=lambda m: m.name
)
def test_an_index_that_wraps_at_2_to_the_31_is_noticed(mutant, optimized, repo_root):
    library = optimized.library_of(mutant, whole=True)
    options = ["-q", "-x", "-m", "", "-p", "no:cacheprovider", "-k", mutant.tests]
    result = build_helpers.run(
        [sys.executable, "-m", "pytest", *options, "tests/core/test_large_views.py"],
        repo_root, TF_BN_OPS_LIBRARY=f"{library}",
    )  # fmt: skip
    # A mutant that accesses what it must not may end the process.
    assert result.returncode < 0 or " failed" in result.stdout.splitlines()[-1], result.stdout


def test_survivor_fails_the_run(monkeypatch, tmp_path, capsys):
    """A mutant that changes nothing survives; building and judging are left out."""
    harmless = mutants.Mutant("harmless", "nothing is wrong", "Makefile", ())
    monkeypatch.setattr(mutants, "load_mutants", lambda: [harmless])
    monkeypatch.setattr(mutants.Build, "library_of", lambda *_: tmp_path)
    survives = mutants.Verdict(1600, "")
    monkeypatch.setattr(mutants, "judge", lambda library, op="", most=None: survives)
    assert mutants.run([], tmp_path / "sources") == 1
    assert "NOT CAUGHT: nothing is wrong" in capsys.readouterr().out
    # One that no case can catch may survive, and may not be caught.
    known = dataclasses.replace(harmless, survives="it changes nothing")
    monkeypatch.setattr(mutants, "load_mutants", lambda: [known])
    assert mutants.run([], tmp_path / "again") == 0
    assert "survives: it changes nothing" in capsys.readouterr().out
    outcome = mutants.outcome_of(known, mutants.Verdict(1, "case: y is wrong"))
    monkeypatch.setattr(mutants, "judge_all", lambda *args: ([outcome], {}))
    assert mutants.run([], tmp_path / "caught") == 1
