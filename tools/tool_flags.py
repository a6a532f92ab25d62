"""Flags of the commands of tools/: --help is a command's own text, what is wrong is one sentence.

Uses the standard library alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose error is one line without the usage before it; the exit status is 2."""

    def __init__(self, text: str | None) -> None:
        how = argparse.RawDescriptionHelpFormatter
        super().__init__(description=text, formatter_class=how, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def names(what: str, known: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads names of `known`, at least one, separated by blanks."""

    def read(text: str) -> list[str]:
        given = text.split()
        unknown = [name for name in given if name not in known]
        if unknown or not given:
            named = ", ".join(unknown) or repr(text)
            raise argparse.ArgumentTypeError(
                f"there is no {what} {named}: known are {', '.join(known)}"
            )
        return given

    return read


def part(text: str) -> slice:
    """Reads K/N, the K-th of every N."""
    first, _, step = text.partition("/")
    if not (first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N")
    return slice(int(first) - 1, None, int(step))
