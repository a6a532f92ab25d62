"""Writes tf_bn_ops/raw_ops.pyi, the types of raw_ops: those of the bindings, by keyword only.

usage: python tools/raw_ops_stub.py

Python's types cannot say "the same parameters, but by keyword only", so that type checkers would
let through calls by position, which raw_ops refuses at run time. make format runs this.
"""

from __future__ import annotations

import inspect
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tf_bn_ops import _results, raw_ops  # noqa: E402

STUB = ROOT / "tf_bn_ops" / "raw_ops.pyi"
HEAD = """\
# Types of raw_ops; written by tools/raw_ops_stub.py from the bindings' signatures.

from collections.abc import Sequence
from typing import Any

from tf_bn_ops import _results
from tf_bn_ops._split_ops import Activation
from tf_bn_ops.spec import DataFormat
"""


def _parameter(parameter: inspect.Parameter) -> str:
    has_default = parameter.default is not inspect.Parameter.empty
    default = f" = {parameter.default!r}".replace("'", '"') if has_default else ""
    return f"    {parameter.name}: {parameter.annotation}{default},\n"


def _function(name: str) -> str:
    signature = inspect.signature(getattr(raw_ops, name))
    parameters = "".join(map(_parameter, signature.parameters.values()))
    result = signature.return_annotation
    result = f"_results.{result}" if hasattr(_results, result) else result
    return f"def {name}(\n    *,\n{parameters}) -> {result}: ...\n"


def stub() -> str:
    return HEAD + "\n" + "".join(map(_function, raw_ops.__all__))


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
