"""Others' tests under TF_BN_OPS=1: each that passes without it has to pass with it.

usage: make suites [ARGS="layers/normalization models --part=1/10 --record"]

Keras' own tests, which its wheel ships, of the folders FOLDERS; TensorFlow's of fused batch norm
and tf_keras' of normalization and applications, where TF_BN_OPS_TENSORFLOW_TESTS and
TF_BN_OPS_TF_KERAS_TESTS name these folders of their repositories (docs/evidence.md). Two processes
run a folder at the same time, one with the switch; what a time limit cuts off is said. --record
keeps the results and writes the table of docs/evidence.md.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import evidence
import tool_flags

ROOT = evidence.ROOT
FOLDERS = (
    *("layers", "models", "trainers", "applications", "saving", "export", "distribution"),
    *("backend/tensorflow", "callbacks"),
)
# Of a folder, in seconds.
LIMIT = 1500
# Tests that pass without the switch alone, and why that is right.
EXCEPTIONS: dict[str, str] = {}
# A plugin of pytest: each result is in a file as soon as it is known.
PLUGIN = """
import os
def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ["TFBN_RESULTS"], "a") as file:
            file.write(f"{report.outcome} {report.nodeid}\\n")
def pytest_sessionfinish():
    import keras
    is_on = hasattr(keras.layers.BatchNormalization.call, "tf_bn_ops_replaces")
    with open(os.environ["TFBN_RESULTS"], "a") as file:
        file.write(f"{is_on} switch\\n")
def pytest_collectreport(report):
    if report.failed:
        with open(os.environ["TFBN_RESULTS"], "a") as file:
            file.write(f"uncollected {report.nodeid}\\n")
"""

Results = dict[str, str]


def folder_of(package: str) -> pathlib.Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"there is no {package}"
    return pathlib.Path(spec.origin).parent


def suites(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Name -> files; those that have to be edited are in `folder` then."""
    root = folder_of("keras") / "src"
    found: dict[str, list[pathlib.Path]] = {}
    for part in FOLDERS:
        for path in sorted((root / part).rglob("*_test.py")):
            found.setdefault(path.parent.relative_to(root).as_posix(), []).append(path)
    if given := os.environ.get("TF_BN_OPS_TENSORFLOW_TESTS"):
        found["tensorflow"] = [pathlib.Path(given, "nn_fused_batchnorm_test.py")]
    if given := os.environ.get("TF_BN_OPS_TF_KERAS_TESTS"):
        for part in ("layers/normalization", "applications"):
            for path in sorted(pathlib.Path(given, part).glob("*_test.py")):
                target = folder / "tf_keras" / path.name
                target.parent.mkdir(exist_ok=True)
                text = path.read_text("utf-8")  # In the wheel everything is below `src`.
                target.write_text(text.replace("from tf_keras", "from tf_keras.src"), "utf-8")
                found.setdefault("tf_keras", []).append(target)
    return found


def start(files: list[pathlib.Path], folder: pathlib.Path, switch: bool) -> subprocess.Popen[bytes]:
    """A pytest of its own; results go to FOLDER/SWITCH.txt, output to FOLDER/SWITCH.log."""
    (folder / "results_plugin.py").write_text(PLUGIN)
    path = [f"{folder}", *([f"{ROOT / 'tf_bn_ops' / '_children'}", f"{ROOT}"] if switch else [])]
    dropped = ("TF_BN_OPS", "PYTEST", "PYTHONPATH")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    variables |= {"PYTHONPATH": os.pathsep.join(path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    variables |= {"TFBN_RESULTS": f"{folder / f'{switch}.txt'}", "KERAS_BACKEND": "tensorflow"}
    variables |= {"TF_BN_OPS": "1"} if switch else {}
    options = ["-q", "-p", "results_plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    options.append("--continue-on-collection-errors")
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={folder}", *map(str, files)]
    with open(folder / f"{switch}.log", "wb") as log:
        return subprocess.Popen(
            command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT
        )


def compared(files: list[pathlib.Path], limit: float = LIMIT) -> dict[str, Any]:
    """What became of the tests without and with the switch."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        processes = [start(files, folder, switch) for switch in (False, True)]
        row: dict[str, Any] = {"files": len(files)}
        results: list[Results] = []
        for switch, process in zip((False, True), processes, strict=True):
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = -9
                row["stopped"] = f"after {limit:.0f} s"
            path = folder / f"{switch}.txt"
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
            results.append({name: what for what, _, name in (x.partition(" ") for x in lines)})
            found = results[-1].pop("switch", f"{switch}")
            assert found == f"{switch}", f"the switch is {found} where it should be {switch}"
            if status not in (0, 1, 2, 5, -9):
                text = (folder / f"{switch}.log").read_text("utf-8", "replace")
                row["stopped"] = f"with status {status}: {text.splitlines()[-1][:200]}"
    without, under = results
    if "stopped" in row:  # One of the two may have come further.
        without = {name: what for name, what in without.items() if name in under}
    for what in ("passed", "failed", "skipped", "uncollected"):
        row[what] = sum(each == what for each in without.values())
    row["passed with"] = sum(what == "passed" for what in under.values())
    row["differ"] = {
        name: EXCEPTIONS.get(name, "")
        for name, what in sorted(without.items())
        if what == "passed" and under.get(name, "was not run") != "passed"
    }
    return row


def faults(row: dict[str, Any]) -> list[str]:
    return [name for name, reason in row["differ"].items() if not reason]


def table(rows: evidence.Rows) -> str:
    """The table of docs/evidence.md."""
    cells = []
    for name, row in rows.items():
        numbers = [str(row[k]) for k in ("files", "passed", "passed with", "failed", "skipped")]
        said = [f"{n} ({why or '**a fault**'})" for n, why in row["differ"].items()]
        said += [f"stopped {row['stopped']}"] if "stopped" in row else []
        if row["uncollected"]:
            said.append(f"files that need other packages: {row['uncollected']}")
        cells.append([name, *numbers, "; ".join(said) or "-"])
    columns = ["tests of", "files", "pass without", "pass with", "fail without", "skipped", "other"]
    return evidence.as_table(columns, cells)


def tenth(number: int) -> list[pathlib.Path]:
    """Every tenth file of Keras' tests."""
    files = (p for part in FOLDERS for p in (folder_of("keras") / "src" / part).rglob("*_test.py"))
    return sorted(files)[number % 10 :: 10]


def main(argv: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", type=tool_flags.part, default="1/1")
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args(argv)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        known = suites(pathlib.Path(folder))
        unknown = [name for name in arguments.names if name not in known]
        if unknown:
            parser.error(f"there is no {unknown[0]}: known are {', '.join(known)}")
        for name in (arguments.names or list(known))[arguments.part]:
            row = compared(known[name], arguments.limit)
            print(name, {k: v for k, v in row.items() if k != "differ"}, flush=True)
            for each in faults(row):
                print(f"  passes without TF_BN_OPS=1 alone: {each}", flush=True)
            failed += bool(faults(row))
            if arguments.record:
                evidence.record("suites", {name: row}, table)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
