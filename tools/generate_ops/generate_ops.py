"""Writes what follows from the table of ops (tf_bn_ops/spec/ops.py) into folders named `generated`.

With --check (make lint) a file that is not what the table says is an error. Needs NumPy alone.
"""

from __future__ import annotations

import sys

import cc_sources
import python_sources
from op_words import ROOT, filled

sys.path.insert(0, str(ROOT / "tools"))

import tool_flags

FILES = {
    "cc/client/include/tf_bn_ops/generated/op_classes.h": cc_sources.classes,
    "cc/core/generated/layout.h": cc_sources.layout_header,
    "cc/core/generated/op_call_list.h": cc_sources.op_calls,
    "cc/core/generated/roles.h": cc_sources.roles_header,
    "cc/tf/kernels/generated/kernel_list.h": cc_sources.kernel_list,
    "cc/tf/ops/generated/op_defs.cc": cc_sources.op_defs,
    "cc/tf/ops/generated/op_signatures.h": cc_sources.signatures,
    "tf_bn_ops/generated/bindings.py": python_sources.bindings,
    "tf_bn_ops/generated/raw_op_types.pyi": python_sources.raw_op_types,
}


if __name__ == "__main__":
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    texts = {ROOT / name: filled(write()) for name, write in FILES.items()}
    stale = [p for p, text in texts.items() if not p.exists() or p.read_text("utf-8") != text]
    if stale and is_check:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.exit(f"error: not what tf_bn_ops/spec/ops.py says, run make format: {names}")
    for path in stale:
        path.write_text(texts[path], "utf-8")
