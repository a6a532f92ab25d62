"""The commands of tools/: what is wrong with their flags.

Promised: a wrong flag of a command of tools/ is one sentence and status 2, before anything is done.
"""

import pathlib
import subprocess
import sys

import pytest
from build_helpers import environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
# But for processes that a command starts and speaks with.
COMMANDS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "tools").rglob("*.py"))
    if '__name__ == "__main__"' in (text := path.read_text("utf-8")) and "serve(" not in text
]


def answer(command: str, *words: str) -> tuple[int, str, str]:
    result = subprocess.run(
        [sys.executable, command, *words],
        cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_is_one_sentence(command):
    status, out, error = answer(command, "--no-such-flag")
    assert (status, out, error.count("\n")) == (2, "", 1), error


@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        ("bench/pairs", ["folding", "NoNet"], "invalid choice: 'NoNet'"),
        ("matrix", ["--versions=1.15"], "there is no TensorFlow 1.15: known are 2.16"),
        ("matrix", ["--every"], "--every: expected one argument"),
        ("matrix", ["--every=x"], "invalid int value: 'x'"),
        ("release/check", ["--steps=build sing"], "there is no step sing: known are build"),
        ("release/check", ["--versions=2.20", "--twice=2.21"], "--twice is of --versions"),
        ("release/wheels", ["--versions=2.20 1.0"], "there is no TensorFlow 1.0"),
        ("report_picture", ["picture.svg"], "standard input is not a conformance report"),
        ("suites", ["--part=3/2"], "'3/2' is not K/N"),
        ("suites", ["nonsense"], "there is no nonsense: known are layers"),
        ("tf_env", ["key"], "usage: tf_env.py key BUILD_DIR"),
        ("tf_env", ["folder", "x"], "usage: tf_env.py key BUILD_DIR"),
        ("train_networks", ["--part=x"], "'x' is not K/N"),
        ("train_networks", ["--side=left"], "invalid choice: 'left'"),
        ("write_build_info", ["info.json", "xla=yes"], "no value is given for compiler"),
    ],
)
def test_a_wrong_or_missing_value_is_one_sentence(command, words, sentence):
    status, out, error = answer(f"tools/{command}.py", *words)
    assert (status, out, error.count("\n")) == (2, "", 1) and sentence in error, (out, error)
