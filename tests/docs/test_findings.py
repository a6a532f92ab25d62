"""Promised: every program of docs/findings.md runs and prints what the page says.

A program is a python block; the text block behind it has the commands that run it, each a line
that begins with "$", and what they printed. Words have to be the same; numbers of one finding are
held to what makes it one (CLAIMS), since their digits depend on the processor and on what memory
held.
"""

from __future__ import annotations

import math
import os
import pathlib
import re
import shlex
from collections.abc import Callable
from typing import NamedTuple

import forked
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "findings.md"
if not PAGE.is_file():
    pytest.skip("needs the source tree", allow_module_level=True)

# How the page says that a process was ended by a signal.
ABORTED = "Aborted"
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)(?![\w])")


class Run(NamedTuple):
    """A command of a program, and what it printed."""

    command: str
    printed: str

    @property
    def words(self) -> list[str]:
        """What was printed but for numbers."""
        return _NUMBER.sub("", self.printed).replace("[", " ").replace("]", " ").split()

    @property
    def numbers(self) -> list[float]:
        return [float(number) for number in _NUMBER.findall(self.printed)]


class Finding(NamedTuple):
    """A section of the page."""

    title: str
    program: str
    runs: list[Run]


def findings() -> list[Finding]:
    found = []
    for section in PAGE.read_text("utf-8").split("\n### ")[1:]:
        title = section.partition("\n")[0]
        program, text = re.findall(r"^```(?:python|text)\n(.*?)^```$", section, re.M | re.S)
        runs = [Run(*part.split("\n", 1)) for part in text.split("$ ")[1:]]
        found.append(Finding(title, program, runs))
    return found


FINDINGS = {finding.title: finding for finding in findings()}


def run(finding: Finding, command: str, folder: pathlib.Path) -> Run:
    """Runs a program by one of its commands."""
    *settings, _python, _script = shlex.split(command.partition("program.py")[0] + "program.py")
    arguments = shlex.split(command.partition("program.py")[2])
    dropped = ("TF_", "ONEDNN", "KERAS", "XLA_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    # TensorFlow's default on processors with AVX512-VNNI, such as the page's; not on others.
    environment["TF_ENABLE_ONEDNN_OPTS"] = "1"
    environment |= dict(setting.split("=", 1) for setting in settings)
    done = forked.run(finding.program, *arguments, env=environment, cwd=folder, timeout=300)
    if done.returncode < 0:
        return Run(command, f"{ABORTED}\n")
    assert done.returncode == 0, done.stderr[-2000:]
    return Run(command, done.stdout)


# What makes a finding one, of the numbers of its runs.
CLAIMS: dict[str, Callable[[list[list[float]]], bool]] = {
    # Errors at mean 0, 1e2, 1e3, 1e5, each behind its mean.
    "y loses all digits where the mean is large": lambda runs: all(
        errors[1] < 1e-3 and errors[7] > 0.05 for errors in runs
    ),
    "XLA: NaN where the mean is a thousand deviations": lambda runs: (
        all(abs(v - 1) < 0.1 for v in runs[0][:8])
        and max(abs(v - 1) for v in runs[0][8:16]) > 0.5
        and runs[0][-1] > 0
    ),
    "Keras: the synchronized formula has no variance at mean 1000": lambda runs: (
        all(abs(v - 1) < 0.1 for v in runs[0][27:35])
        and max(abs(v - 1) for v in runs[0][35:39]) > 0.1
    ),
    "oneDNN: results change with the number of threads": lambda runs: (
        len({tuple(numbers) for numbers in runs}) > 1
    ),
    # What is right, 1 and 2 four times each, is not what is there.
    "Inference: the reserve spaces hold whatever their memory held": lambda runs: (
        runs[0] != 3 * [1.0] * 4 + 3 * [2.0] * 4 and len(runs[0]) == 24 and set(runs[0]) != {1, 2}
    ),
    "Inference: an empty batch turns the moving averages into NaN": lambda runs: all(
        numbers[:5] == [4, 1, 2, 3, 4] and all(map(math.isnan, numbers[6:])) for numbers in runs
    ),
}


def test_every_claim_belongs_to_a_finding():
    assert set(CLAIMS) <= set(FINDINGS)
    assert len(FINDINGS) >= 10


def test_the_table_leads_to_every_finding():
    table = PAGE.read_text("utf-8").split("\n## ")[0]
    assert len(re.findall(r"^\| \[[^]]*\]\(#", table, re.M)) == len(FINDINGS)


@pytest.mark.parametrize("title", FINDINGS)
def test_a_finding_is_complete(title):
    """A sentence, a program of ten lines, its output, why, what would mend it, who knows."""
    finding = FINDINGS[title]
    section = PAGE.read_text("utf-8").split(f"\n### {title}\n")[1].split("\n#")[0]
    assert all(f"*{part}.* " in section for part in ("Why", "What would mend it", "Upstream"))
    assert len([line for line in finding.program.splitlines() if line.strip()]) <= 10
    assert finding.runs and all(run.printed.strip() for run in finding.runs)
    assert "tf_bn_ops" not in finding.program


@pytest.mark.long
@pytest.mark.parametrize("title", FINDINGS)
def test_a_program_prints_what_the_page_says(title, tmp_path):
    import tensorflow as tf

    version = re.search(r"TensorFlow (\S+) with Keras", PAGE.read_text("utf-8"))
    assert version is not None
    finding = FINDINGS[title]
    found = [run(finding, of_page.command, tmp_path) for of_page in finding.runs]
    if tf.__version__ != version[1]:
        pytest.skip(f"the page speaks of TensorFlow {version[1]}")  # It has run all the same.
    for of_page, now in zip(finding.runs, found, strict=True):
        assert now.words == of_page.words
        if title not in CLAIMS:
            assert now.numbers == of_page.numbers
    if title in CLAIMS:
        assert CLAIMS[title]([now.numbers for now in found])
        assert CLAIMS[title]([of_page.numbers for of_page in finding.runs])
