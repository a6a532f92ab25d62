"""Prints what a run has printed, and writes its reports, from its JSON file.

usage: python -m tf_bn_ops conformance merge FILE.json [--json=PATH --junit=PATH --html=PATH]

Exit status: 0 all cases passed, 1 a case failed, 2 the file is no record of a run, or a report
cannot be written, 130 a signal ended the run before a case failed.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence

from absl import flags

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


def define_outputs(values: flags.FlagValues) -> None:
    """Defines the flags that name files for reports."""
    for name, (_, what) in _OUTPUTS.items():
        flags.DEFINE_string(name, None, f"Also writes {what}, to this file.", flag_values=values)


def check_outputs(values: flags.FlagValues) -> None:
    """Raises UsageError where a report's file could not be written."""
    for name in _OUTPUTS:
        if values[name].value is not None:
            _command.check_writable(pathlib.Path(values[name].value))


def report(to: terminal.Console, record: record_lib.Record, values: flags.FlagValues) -> int:
    """Prints a record, writes the files of the flags, and returns the exit status."""
    terminal.print_record(to, record)
    problems = []
    for name, (text, _) in _OUTPUTS.items():
        if values[name].value is not None:
            try:
                _command.write_whole(text(record), pathlib.Path(values[name].value))
            except UsageError as error:  # The other files are written all the same.
                problems.append(str(error))
    if problems:
        raise UsageError("; ".join(problems))
    return {"passed": 0, "failed": 1, "interrupted": 130}[record_lib.verdict(record)]


_FLAGS = flags.FlagValues()
define_outputs(_FLAGS)


def main(argv: Sequence[str]) -> int:
    """Runs the command; argv is its name, then flags and the file; returns the exit status."""
    files: list[str] = []

    def body() -> int:
        check_outputs(_FLAGS)
        if len(files) != 1:
            raise UsageError("name the JSON file of one run")
        return report(terminal.console(), record_lib.load(pathlib.Path(files[0])), _FLAGS)

    try:
        return _command.run(argv, __doc__, _FLAGS, body, files=files)
    finally:
        _FLAGS.unparse_flags()
