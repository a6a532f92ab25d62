"""What the subcommands of `python -m tf_bn_ops` have in common: flags, --help, errors, files."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # __main__.py says where it is missing.
    from absl import flags


class UsageError(ValueError):
    """Wrong usage, a missing part or a file that cannot be written; the message is one sentence."""


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
    from absl import flags

    def parse_and_call() -> int:
        if any(a in ("-h", "-help", "--help", "--helpfull") for a in argv):
            print(f"{help_text}\nflags:\n{values.get_help()}")
            return 0
        values.unparse_flags()  # Forgets an earlier call in this process.
        rest = values([argv[0], *map(_with_underscores, argv[1:])])[1:]
        if files is not None:
            files.extend(rest)
        elif rest:
            name = argv[0].split()[-1]
            raise UsageError(f"{rest[0]!r} is not a flag of {name}; --help lists them")
        return body()

    return guarded(argv[0], parse_and_call, (flags.Error, ImportError, UsageError, *errors))


def guarded(name: str, body: Callable[[], int], errors: tuple[type[Exception], ...] = ()) -> int:
    """Calls `body` and flushes its output; returns its exit status, 2 for OSError, MemoryError and
    `errors`, with a message that begins with `name`, 130 after an interrupt, 141 where the reader
    of the output (`| head`) has gone."""
    expected: tuple[type[Exception], ...] = (OSError, MemoryError, *errors)
    try:
        status = body()
        if sys.stdout is not None:  # As with `>&-`.
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        status, said = 130, "interrupted"
    except SystemExit as end:
        # Console.on_broken_pipe of rich raises it with status 1, which means a failed case here.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        status, said = 141, ""
    except BrokenPipeError:
        status, said = 141, ""
    except expected as error:
        status, said = 2, f"{name}: {error}"
    for stream in (sys.stdout, sys.stderr):
        try:
            if said and stream is sys.stderr:
                print(said, file=stream)
            stream.flush()
        except (AttributeError, OSError):  # Closed, or its device is full.
            if stream is not None:  # Python flushes what is left in the buffer when it ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def _with_underscores(argument: str) -> str:
    """A flag by the name that absl knows: --execution-modes is --execution_modes."""
    name, equals, value = argument.partition("=")
    if not name.startswith("--") or not name.strip("-"):
        return argument
    return "--" + name[2:].replace("-", "_") + equals + value


def check_writable(path: pathlib.Path) -> None:
    """Creates the folder of a file that `write_whole` will write after a long run.

    Raises:
      UsageError: it could not.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path if is_in_place(path) else _led_to(path).parent
        is_closed = path.is_dir() or not os.access(target, os.W_OK)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error
    if is_closed:
        raise UsageError(f"cannot write {path}: it is a folder, or it may not be written")


def write_whole(text: str, path: pathlib.Path) -> None:
    """Writes a regular file whole or not at all, and a device or pipe in place; follows links.

    Raises:
      UsageError: it cannot be written, for instance on a full disk.
    """
    try:
        if is_in_place(path):
            if sys.stdout is not None:  # What was printed to it stays before it.
                sys.stdout.flush()
            # Nonblocking: without a reader a named pipe would wait for ever.
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
            os.set_blocking(descriptor, True)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            return
        target = _led_to(path)
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder:
            new = pathlib.Path(folder, target.name)
            new.write_text(text, encoding="utf-8")
            if target.exists():
                shutil.copymode(target, new)
            new.replace(target)
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError) as error:
        why = "nothing reads from it" if getattr(error, "errno", 0) == errno.ENXIO else error
        raise UsageError(f"cannot write {path}: {why}") from error


def _led_to(path: pathlib.Path) -> pathlib.Path:
    """The path without links; a RuntimeError or OSError (Python 3.13 on) if they are a circle."""
    target = path.resolve()
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def is_in_place(path: pathlib.Path) -> bool:
    """Whether a path leads to a device, a pipe, or what this process prints to."""
    if not path.exists():
        return False
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # Closed, as with `>&-`.
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return True
    return not path.is_file()
