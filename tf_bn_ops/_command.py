"""What the subcommands of `python -m tf_bn_ops` have in common: flags, --help, errors, files."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Sequence

from absl import flags


class UsageError(ValueError):
    """Wrong usage or a missing part; the message is one sentence that says what to do."""


def run(
    argv: Sequence[str],
    help_text: str | None,
    values: flags.FlagValues,
    body: Callable[[], int],
    errors: tuple[type[Exception], ...] = (),
    files: list[str] | None = None,
) -> int:
    """Runs a command that takes flags, and where `files` is given, also other arguments.

    Args:
      argv: "tf_bn_ops COMMAND", then flags.
      help_text: what --help says before it lists the flags.
      values: the flags; they hold those given when `body` is called.
      body: does the work and returns the exit status.
      errors: what it may raise besides UsageError for the user to read; 2 is the status then.
      files: gets the arguments that are no flags, before `body` is called.

    Returns:
      The exit status.
    """
    if any(a in ("-h", "-help", "--help", "--helpfull") for a in argv):
        print(f"{help_text}\nflags:\n{values.get_help()}")
        return 0
    try:
        values.unparse_flags()  # Forgets an earlier call in this process.
        rest = values([argv[0], *map(_with_underscores, argv[1:])])[1:]
        if files is not None:
            files += rest
        elif rest:
            name = argv[0].split()[-1]
            raise UsageError(f"{rest[0]!r} is not a flag of {name}; --help lists them")
        status = body()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # No error of the user's: __main__.py ends quietly.
        raise
    except (flags.Error, ImportError, UsageError, *errors) as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return 2


def _with_underscores(argument: str) -> str:
    """A flag by the name that absl knows: --execution-modes is --execution_modes."""
    name, equals, value = argument.partition("=")
    if not name.startswith("--") or not name.strip("-"):
        return argument
    return "--" + name[2:].replace("-", "_") + equals + value


def write_whole(text: str, path: pathlib.Path) -> None:
    """Writes a file, whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
