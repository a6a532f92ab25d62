"""What the subcommands of `python -m tf_bn_ops` have in common: flags, --help, errors, files."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NoReturn


class UsageError(argparse.ArgumentTypeError, ValueError):
    """Wrong usage, a missing part or a file that cannot be written; the message is one sentence.

    Argparse puts the name of a flag before what the conversion of its value raises.
    """


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{"max_help_position": 26, "width": 100, **settings})


def parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """A parser of flags, whose --help says `text` first and which raises UsageError.

    It is absl's: commands take --flagfile, and the flags of libraries that they have imported.
    absl.app, which would report errors in its own way, has no part in it.
    """
    from absl.flags import argparse_flags  # __main__.py says where it is missing.

    class Parser(argparse_flags.ArgumentParser):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**{"allow_abbrev": False, "formatter_class": _Help, **settings})

        def error(self, message: str) -> NoReturn:
            raise UsageError(message)

        def _print_message(self, message: str, file: Any = None) -> None:
            print(message, end="", file=file)  # Argparse's ignores that the reader has gone.

    return Parser(prog=name, description=text)


def number(least: float, most: float, kind: type = int) -> Callable[[str], Any]:
    """Reads the number of a flag, which is from `least` to `most`."""

    def read(text: str) -> Any:
        try:
            if least <= (found := kind(text)) <= most:
                return found
        except (ValueError, OverflowError):
            pass
        raise UsageError(f"{text!r} is no number from {least} to {most}")

    return read


def names(what: str, known: Sequence[str], short: str = "") -> Callable[[str], list[str]]:
    """Reads known names of a flag, separated by commas; `short` is a prefix that may be left
    out."""
    by_name = {name.lower(): name for name in known}
    by_name |= {name.lower().removeprefix(short.lower()) or name: name for name in known}

    def read(text: str) -> list[str]:
        given = [name for name in text.split(",") if name] or [""]
        for name in given:
            if name.lower() not in by_name:
                raise UsageError(f"{name!r} is not a known {what}; known: {', '.join(known)}")
        return [by_name[name.lower()] for name in given]

    return read


def guarded(name: str, body: Callable[[], int], errors: tuple[type[Exception], ...] = ()) -> int:
    """Calls `body` and flushes its output; returns its exit status, 2 for OSError, MemoryError and
    `errors`, with a message that begins with `name`, 130 after an interrupt, 141 where the reader
    of the output (`| head`) has gone."""
    expected: tuple[type[Exception], ...] = (OSError, MemoryError, *errors)
    try:
        try:
            status = body()
        except SystemExit as end:
            # Console.on_broken_pipe of rich ends with status 1, which means a failed case here.
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None
            if end.code:
                raise
            status = 0  # After --help.
        if sys.stdout is not None:  # As with `>&-`.
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        status, said = 130, "interrupted"
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


def writable(text: str) -> pathlib.Path:
    """The file of a flag that `write_whole` will write after a long run; creates its folder.

    Raises:
      UsageError: it could not.
    """
    path = pathlib.Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path if is_in_place(path) else _led_to(path).parent
        is_closed = path.is_dir() or not os.access(target, os.W_OK)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error
    if is_closed:
        raise UsageError(f"cannot write {path}: it is a folder, or it may not be written")
    return path


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
