"""Prints what a run has printed, and writes its reports, from its JSON file.

Exit status: 0 all cases passed, 1 a case failed, 2 the file is no record of a run, or a report
cannot be written, 130 a signal ended the run before a case failed.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Mapping

from tf_bn_ops import _command
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.reports import junit, page, terminal
from tf_bn_ops.conformance.reports import record as record_lib

# Flag -> (text of the report, what it is).
_OUTPUTS: Mapping[str, tuple[Callable[[record_lib.Record], str], str]] = {
    "json": (record_lib.dumps, "the record of every case, docs/conformance.md describes it"),
    "junit": (junit.of_record, "JUnit XML for CI systems"),
    "html": (page.of_record, "one HTML page with tables and plots"),
}


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that name files for reports."""
    for name, (_, what) in _OUTPUTS.items():
        parser.add_argument(
            f"--{name}", type=_command.writable, metavar="FILE", help=f"also write {what}"
        )


def report(to: terminal.Console, record: record_lib.Record, flags: argparse.Namespace) -> int:
    """Prints a record, writes the files of the flags, and returns the exit status."""
    terminal.print_record(to, record)
    problems = []
    for name, (text, _) in _OUTPUTS.items():
        if path := getattr(flags, name):
            try:
                _command.write_whole(text(record), path)
            except UsageError as error:  # The other files are written all the same.
                problems.append(str(error))
    if problems:
        raise UsageError("; ".join(problems))
    return {"passed": 0, "failed": 1, "interrupted": 130}[record_lib.verdict(record)]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=pathlib.Path, metavar="FILE.json")
    add_outputs(parser)


def execute(flags: argparse.Namespace) -> int:
    return report(terminal.console(), record_lib.load(flags.file), flags)
