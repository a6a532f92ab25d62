"""`python -m tf_bn_ops COMMAND`: finds the module of a command and runs its `main(argv)`."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from tf_bn_ops import _command

# Command -> (module with `main(argv) -> exit status`, what it does).
_COMMANDS = {
    "conformance": (
        "tf_bn_ops.conformance.conformance_command",
        "compare the ops with TensorFlow and an oracle",
    ),
    "rewrite": ("tf_bn_ops.rewrite.rewrite_command", "rename ops in a GraphDef or SavedModel"),
    "run": ("tf_bn_ops._run", "run a program with batch normalization on this library"),
    "doctor": ("tf_bn_ops.doctor", "say what is installed and what is wrong with it"),
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


def _usage() -> str:
    lines = ["usage: python -m tf_bn_ops COMMAND [flags]   (COMMAND --help lists the flags)", ""]
    lines += [f"  {name:12} {what}" for name, (mod, what) in _COMMANDS.items() if _exists(mod)]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Runs the command named by `argv[1]`; returns the exit status (2: wrong usage)."""
    if argv[1:2] == ["run"]:  # Its output, signals and errors are the program's.
        from tf_bn_ops import _run as command

        return command.main(["tf_bn_ops run", *argv[2:]])
    return _command.guarded("tf_bn_ops", lambda: _run(argv))


def _run(argv: list[str]) -> int:
    if len(argv) > 1 and argv[1] in ("-h", "--help", "--helpfull", "help"):
        print(_usage())
        return 0
    if len(argv) < 2:
        print(_usage(), file=sys.stderr)
        return 2
    name = argv[1]
    if name not in _COMMANDS or not _exists(_COMMANDS[name][0]):
        known = ", ".join(n for n, (mod, _) in _COMMANDS.items() if _exists(mod))
        print(f"tf_bn_ops: no command {name!r}; there is: {known}", file=sys.stderr)
        return 2
    try:
        command = importlib.import_module(_COMMANDS[name][0])
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in _NEEDED:
            raise
        print(
            f"tf_bn_ops: the command {name} needs {_NEEDED[missing]}, which is not installed: "
            "pip install 'tf-bn-ops[commands]'",
            file=sys.stderr,
        )
        return 2
    return int(command.main([f"tf_bn_ops {name}", *argv[2:]]))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
