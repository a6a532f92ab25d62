"""Writes the conformance harness as a wheel of its own: pure Python, no ops, no compiler.

usage: python tools/conformance_wheel.py [FOLDER]

The distribution tf-bn-ops-conformance holds the package tf_bn_ops without its libraries. It judges
the op library of a vendor against whatever TensorFlow is there (docs/conformance.md). Who has
tf-bn-ops has the harness already, and does not need this one beside it. The same sources give the
same file, bit by bit.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import re
import zipfile

import tool_flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
DISTRIBUTION = "tf_bn_ops_conformance"
# Not Python's, or of no use without the ops.
_LEFT_OUT = ("lib", "include", "__pycache__")
_SUFFIXES = (".py", ".toml", ".html", ".txt", ".json", ".yaml", ".typed")
_DESCRIPTION = """# tf-bn-ops-conformance

Judges the batch-norm ops of any TensorFlow op library, forward and gradient, against TensorFlow's
own and a float64 oracle, with an error bound for each output element. Pure Python; needs
TensorFlow, and no compiler.

    python -m tf_bn_ops conformance --library=other.so --map="TheirOp=FusedBatchNormGradV3"

The package tf-bn-ops has the same command, and ops.
"""
_WHEN = (1980, 1, 1, 0, 0, 0)


def _version() -> str:
    text = (ROOT / "tf_bn_ops" / "_version.py").read_text(encoding="utf-8")
    match = re.search(r'__version__ = "(.+)"', text)
    assert match, "tf_bn_ops/_version.py has no version"
    return match.group(1)


def _requirements(name: str) -> list[str]:
    """Lines of the metadata for a list in requirements/."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    found = []
    for line in filter(lambda line: line.strip() and not line.startswith("#"), lines):
        what, _, marker = (part.strip() for part in line.partition(";"))
        found.append(f"Requires-Dist: {what}" + (f"; {marker}" if marker else ""))
    return found


def _metadata(version: str) -> str:
    lines = [
        "Metadata-Version: 2.1",
        "Name: tf-bn-ops-conformance",
        f"Version: {version}",
        "Summary: Judges TensorFlow batch-norm ops of any library against a float64 oracle",
        "License: Apache-2.0",
        "Requires-Python: >=3.10",
        *_requirements("runtime"),
        *_requirements("commands"),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + _DESCRIPTION


def _files() -> dict[str, bytes]:
    """Path in the wheel -> content, but for RECORD."""
    version = _version()
    files = {}
    for path in sorted((ROOT / "tf_bn_ops").rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.suffix in _SUFFIXES and not set(parts) & set(_LEFT_OUT):
            files["/".join(parts)] = path.read_bytes()
    info = f"{DISTRIBUTION}-{version}.dist-info"
    files[f"{info}/METADATA"] = _metadata(version).encode()
    files[f"{info}/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    wheel = "Wheel-Version: 1.0\nGenerator: tf_bn_ops\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/WHEEL"] = wheel.encode()
    return files


def write(folder: pathlib.Path) -> pathlib.Path:
    """Writes the wheel into a folder, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    files, version = _files(), _version()
    record = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}")
    name = f"{DISTRIBUTION}-{version}.dist-info/RECORD"
    files[name] = "\n".join([*record, f"{name},,"]).encode() + b"\n"
    target = folder / f"{DISTRIBUTION}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _WHEN)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content)
    return target


if __name__ == "__main__":
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "dist")
    print(write(parser.parse_args().folder))
