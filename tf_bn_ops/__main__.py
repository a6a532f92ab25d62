"""`python -m tf_bn_ops COMMAND`: finds the module of a command, reads its flags and executes it."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys

from tf_bn_ops import _command

# Command -> (module with `add_flags(parser)` and `execute(flags) -> exit status`, what it does);
# the module's text is what --help says first.
_COMMANDS = {
    "conformance": (
        "tf_bn_ops.conformance.conformance_command",
        "compare the ops with TensorFlow and an oracle",
    ),
    "conformance export": (
        "tf_bn_ops.conformance.export_command",
        "write cases that any system can be judged by",
    ),
    "conformance report": (
        "tf_bn_ops.conformance.reports.report_command",
        "print and write the reports of an earlier run",
    ),
    "rewrite": ("tf_bn_ops.rewrite.rewrite_command", "rename ops in a GraphDef or SavedModel"),
    "run": ("tf_bn_ops._run", "run a program with batch normalization on this library"),
    "doctor": ("tf_bn_ops.doctor", "say what is installed and what is wrong with it"),
    "explain": ("tf_bn_ops.explain", "print what a call on the CPU would do, and why"),
}

# Modules that commands need and `import tf_bn_ops` does not -> their packages
# (requirements/commands.txt).
_NEEDED = {
    "absl": "absl-py",
    "jinja2": "jinja2",
    "msgspec": "msgspec",
    "rich": "rich",
    "tomli": "tomli",
}


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # Its package is missing.
        return False


def split(words: list[str]) -> tuple[str, list[str]]:
    """The command that words begin with, "" if with none, and the words behind it."""
    for count in (2, 1):
        if (name := " ".join(words[:count])) in _COMMANDS:
            return name, words[count:]
    return "", words


def parser(chosen: str) -> argparse.ArgumentParser:
    """Reads a command, and its flags if it is the chosen one: others are not imported."""
    top = _command.parser("python -m tf_bn_ops", "Batch normalization for TensorFlow and Keras.")
    top.usage = f"{top.prog} COMMAND [flags]"
    commands = top.add_subparsers(
        title="commands, each with --help", metavar="COMMAND", required=True, prog=top.prog
    )
    for name, (module, what) in _COMMANDS.items():
        if _exists(module):
            of_command = commands.add_parser(name, help=what)
            if name == chosen:
                command = importlib.import_module(module)
                of_command.description = command.__doc__
                command.add_flags(of_command)
                places = [str(a.metavar) for a in of_command._get_positional_actions()]
                of_command.usage = " ".join([of_command.prog, "[flags]", *places])
                of_command.set_defaults(execute=command.execute)
    return top


def main(argv: list[str]) -> int:
    """Runs the command named by `argv[1]`; returns the exit status (2: wrong usage)."""
    if argv[1:2] == ["run"]:  # Its output, signals and errors are the program's.
        from tf_bn_ops import _run as command

        return command.main(["tf_bn_ops run", *argv[2:]])
    name, words = split(argv[1:])
    said_by = f"tf_bn_ops {name}".strip()
    errors = (ImportError, _command.UsageError)
    return _command.guarded(said_by, lambda: _execute(name, words), errors)


def _execute(name: str, words: list[str]) -> int:
    try:
        reads = parser(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in _NEEDED:
            raise
        raise _command.UsageError(
            f"{f'the command {name} needs ' if name else 'commands need '}{_NEEDED[missing]}, "
            "which is not installed: pip install 'tf-bn-ops[commands]'"
        ) from error
    flags = reads.parse_args([name, *words] if name else words)
    flags.words = words
    return int(flags.execute(flags))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
