"""The Python examples run, and show what they are there to show.

Promised: the errors of README's and docs/dropin.md's tables are the ones that
examples/raw_columns.py prints;
asked for help an example starts nothing.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import forked
import pytest
from build_helpers import environment, run

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (ROOT / "examples").exists(), reason="needs the source tree"),
]


# Runs the script that is its first argument.
RUN_PATH = """
import pathlib, runpy, sys
sys.argv = sys.argv[1:]
sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment(PYTHONPATH=str(ROOT))
    return forked.run(RUN_PATH, ROOT / "examples" / name, *arguments, env=env, cwd=ROOT)


def example(name: str, *arguments: str) -> str:
    result = start(name, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


PROGRAMS = sorted(
    path.name for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text()
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_asked_for_help_it_starts_nothing(name):
    result = start(name, "--help")
    said = result.stdout + result.stderr
    assert "--help" in said and "Traceback" not in said
    assert not re.search(r"\d ?ms|MiB \||difference|^\|", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("raw_columns.py", "--paths=sideways"), "invalid choice"),
        (("wgan_gp.py", "--steps=1"), "unrecognized arguments: --steps=1"),
    ],
)
def test_wrong_values_are_one_sentence(arguments, sentence):
    name, *flags = arguments
    result = start(name, *flags)
    assert result.returncode != 0
    assert sentence in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_digits_resnet_learns_alike():
    pytest.importorskip("sklearn", reason="needs scikit-learn (requirements/dev.txt)")
    lines = example("digits_resnet.py", "--epochs=1").splitlines()
    rows = [[float(word) for word in line.split()[1:]] for line in lines[1:-1]]
    assert len(rows) == 10
    # Rounding differs from the first step on and grows in training.
    assert rows[0][1] == pytest.approx(rows[0][0], rel=1e-4)
    for theirs, ours in rows:
        assert ours == pytest.approx(theirs, rel=0.05)
    assert rows[-1][1] < 0.8 * rows[0][1]


def test_the_first_command_prints_what_the_readme_shows():
    """But for numbers and the instruction set.

    Promise: The README's first command prints what the README shows.
    """
    command = [sys.executable, "-m", "tf_bn_ops", "run", "--report", "examples/train.py"]
    told = run(command, ROOT, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3")
    assert (told.returncode, told.stdout) == (0, ""), told.stderr
    page = (ROOT / "README.md").read_text("utf-8")
    typed = f"$ python {' '.join(command[1:])}\n"
    (shown,) = re.findall(rf"```text\n{re.escape(typed)}(.*?)```", page, re.S)

    def lines(text: str) -> list[tuple[str, ...]]:
        words = (re.sub(r"\(\w+\):", "", line).split() for line in text.splitlines())
        return sorted(tuple(w for w in line if not re.fullmatch(r"[\d.]+", w)) for line in words)

    assert set(lines(shown)) <= set(lines(told.stderr))


@pytest.mark.parametrize(
    ("page", "paths", "rows"), [("README.md", "default", 3), ("docs/dropin.md", "other", 9)]
)
def test_raw_columns_are_normalized_rightly_as_the_page_shows(page, paths, rows):
    """The program ends with 1 where an error of this library is above its bound; the errors of
    others are rounding, which a processor may do in another order."""
    shown = {row: cells for row, cells in table_rows((ROOT / page).read_text("utf-8"))}
    printed = dict(table_rows(example("raw_columns.py", f"--paths={paths}")))
    assert len(printed) == 9 and len(shown) == rows
    for row, cells in shown.items():
        assert len(cells) == len(printed[row]) == 3
        for of_page, of_run in zip(cells[:2], printed[row][:2], strict=True):
            assert 0.2 < of_page / of_run < 5, (row, cells)


def table_rows(text: str) -> Iterator[tuple[str, list[float]]]:
    """Column and result of each row of the tables of raw columns -> the errors in it."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and " ± " in cells[0]:
            yield f"{cells[0]}, {cells[1]}", [float(cell) for cell in cells[2:]]


def test_wgan_gp_has_tensorflows_gradients():
    output = example("wgan_gp.py")
    differences = re.findall(r"difference (\S+)", output)
    assert len(differences) == 4
    assert all(float(difference) < 1e-3 for difference in differences), output


def test_second_derivatives_of_keras_are_wrong_and_ours_right():
    lines = example("keras_second_derivatives.py").splitlines()
    errors = {name.strip(): float(error) for name, error in (x.split(":") for x in lines[2:])}
    # In float64 too: it is the formula, not rounding.
    assert 0.03 < errors["Keras, float64"] < 0.05
    assert 0.03 < errors["Keras, float32"] < 0.05
    assert errors["tf_bn_ops, float32"] < 1e-5


def test_saved_model_trains_alike_after_each_rewriting():
    lines = example("saved_model.py").splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["2", "2"]
    curves = [[float(word) for word in line.split()[1:]] for line in lines[2:]]
    assert len(curves) == 3
    assert curves[0][-1] < curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[2] == curves[0]
