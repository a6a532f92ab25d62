"""Writes what follows from the table of ops (tf_bn_ops/spec/ops.py) into folders named `generated`.

usage: python tools/generate_ops/generate_ops.py [--check]

With --check nothing is written, and a file that is not what the table says is an error. make format
writes, make lint checks. Needs NumPy alone.
"""

from __future__ import annotations

import sys

import cc_sources
import python_sources
from op_words import ROOT

FILES = {
    "cc/kernels/generated/kernel_list.h": cc_sources.kernel_list,
    "cc/ops/generated/op_defs.cc": cc_sources.op_defs,
    "cc/ops/generated/op_signatures.h": cc_sources.signatures,
    "tf_bn_ops/generated/bindings.py": python_sources.bindings,
    "tf_bn_ops/generated/raw_op_types.pyi": python_sources.raw_op_types,
}


def main(argv: list[str]) -> int:
    if argv not in ([], ["--check"]):
        sys.exit(f"usage: {__doc__.split('usage: ')[1].splitlines()[0]}")
    stale = []
    for name, text in {name: write() for name, write in FILES.items()}.items():
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if argv and stale:
        sys.exit(f"error: not what tf_bn_ops/spec/ops.py says, run make format: {', '.join(stale)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
