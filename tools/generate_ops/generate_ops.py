"""Writes what follows from the table of ops (tf_bn_ops/spec/ops.py) into folders named `generated`.

usage: python tools/generate_ops/generate_ops.py [--check]

With --check nothing is written, and a file that is not what the table says is an error. make format
writes, make lint checks. Needs NumPy alone.
"""

from __future__ import annotations

import sys

import call_sources
import cc_sources
import client_sources
import python_sources
from op_words import ROOT

FILES = {
    "cc/client/include/tf_bn_ops/generated/op_classes.h": client_sources.classes,
    "cc/core/generated/roles.h": call_sources.roles_header,
    "cc/kernels/generated/kernel_list.h": cc_sources.kernel_list,
    "cc/ops/generated/op_defs.cc": cc_sources.op_defs,
    "cc/ops/generated/op_signatures.h": cc_sources.signatures,
    "tf_bn_ops/generated/bindings.py": python_sources.bindings,
    "tf_bn_ops/generated/raw_op_types.pyi": python_sources.raw_op_types,
}


if __name__ == "__main__":
    stale = []
    for name, text in {name: write() for name, write in FILES.items()}.items():
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if sys.argv[1:] != ["--check"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale and sys.argv[1:] == ["--check"]:
        sys.exit(f"error: not what tf_bn_ops/spec/ops.py says, run make format: {', '.join(stale)}")
