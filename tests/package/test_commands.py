"""What the package and its commands need to run.

Promised: `import tf_bn_ops` needs NumPy alone and imports no TensorFlow; a command whose packages
are missing says in one sentence which, and how to install it; a flag has one spelling and one
meaning in all commands.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys

import pytest
from build_helpers import environment, run

from tf_bn_ops import _loader
from tf_bn_ops.__main__ import _COMMANDS, _NEEDED, main, parser

ROOT = pathlib.Path(_loader.__file__).parent.parent


def command_of(name: str) -> argparse.ArgumentParser:
    """What reads the flags of a command."""
    (commands,) = (a for a in parser(name)._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices[name]


def run_without(modules: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python in which these modules cannot be imported."""
    block = f"import sys\nfor name in {modules}: sys.modules[name] = None\n"
    return run([sys.executable, "-c", block + code], ROOT, PYTHONPATH=str(ROOT))


def test_import_needs_neither_the_packages_of_commands_nor_tensorflow():
    """Promise: `import tf_bn_ops` imports NumPy and nothing else."""
    blocked = [*_NEEDED, "tensorflow", "keras", "ml_dtypes"]
    result = run_without(blocked, "import tf_bn_ops\nprint(tf_bn_ops.library_path())")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == _loader.library_path()


@pytest.mark.parametrize("command", [name for name in _COMMANDS if name != "run"])
def test_a_command_without_its_packages_says_what_to_install(command):
    code = f"from tf_bn_ops.__main__ import main\nsys.exit(main(['tf_bn_ops', *{command.split()}]))"
    result = run_without(["absl", "rich"], code)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"the command {command} needs " in result.stderr
    assert "pip install 'tf-bn-ops[commands]'" in result.stderr


def test_a_program_runs_without_them(tmp_path):
    (tmp_path / "script.py").write_text("print('ran')")
    words = ["tf_bn_ops", "run", str(tmp_path / "script.py")]
    result = run_without([*_NEEDED], f"from tf_bn_ops.__main__ import main\nmain({words})")
    assert (result.returncode, result.stdout, result.stderr) == (0, "ran\n", "")


def test_a_flag_is_spelled_and_means_the_same_in_all_commands():
    """Kinds of values stand for meanings; a list is plural, so no name has both spellings. The
    help of a command, with the flags of no other, is at most a screen."""
    kinds: dict[str, set[str]] = {}
    for name in (name for name in _COMMANDS if name != "run"):
        reads = command_of(name)
        assert reads.format_help().count("\n") <= 48, name
        for action in (a for a in reads._actions if a.help != argparse.SUPPRESS):  # Absl's own.
            for flag in action.option_strings:
                assert "_" not in flag, f"{name} {flag}"
                kinds.setdefault(flag, set()).add(repr((action.nargs, action.choices)))
    assert {"--dtypes", "--json", "--fuse", "--side-input", "-x"} <= kinds.keys()
    assert {flag: kind for flag, kind in kinds.items() if len(kind) > 1} == {}
    assert [flag for flag in kinds if flag + "s" in kinds] == []


def test_what_no_command_takes_is_one_sentence(capsys):
    """An unknown command or flag; a flag without its value, or with none of its choices."""
    wrong = [[], ["nonsense"], ["doctor", "now"], *([*name.split(), "--x_y"] for name in _COMMANDS)]
    for name in (name for name in _COMMANDS if name != "run"):
        for action in (a for a in command_of(name)._actions if a.help != argparse.SUPPRESS):
            if action.option_strings and action.nargs is None:
                wrong.append([*name.split(), action.option_strings[-1]])
                if action.choices is not None:
                    wrong.append([*wrong[-1], "nonsense"])
    assert len(wrong) > 40
    for words in wrong:
        assert main(["tf_bn_ops", *words]) == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1 and not said.out, said


def test_the_packages_of_commands_are_an_extra(repo_root):
    listed = (repo_root / "requirements" / "commands.txt").read_text("utf-8")
    assert all(f"\n{package}" in listed for package in _NEEDED.values())
    assert "commands = { file" in (repo_root / "pyproject.toml").read_text("utf-8")
    runtime = (repo_root / "requirements" / "runtime.txt").read_text("utf-8")
    assert not any(f"\n{package}" in runtime for package in _NEEDED.values())


PROGRAMS = [
    "--help",
    "doctor --help",
    "explain 64x64x64x64 NHWC half",
    "conformance --help",
]
BENCH = "tools/bench/bench_command.py --load=docs/benchmarks/results.json"


@pytest.mark.parametrize("program", [*(f"-m tf_bn_ops {words}" for words in PROGRAMS), BENCH])
def test_a_reader_that_has_gone_is_no_error(program):
    """As behind `| head`: nothing on stderr, and the status of a program that SIGPIPE ends."""
    if program == BENCH and not (ROOT / "tools").exists():
        pytest.skip("needs the source tree")
    command = [sys.executable, *program.split()]
    read, write = os.pipe()
    os.close(read)
    how = {"env": environment(PYTHONPATH=str(ROOT)), "cwd": ROOT, "text": True}
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, **how)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")
