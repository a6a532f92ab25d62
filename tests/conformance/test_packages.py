"""Promised: imports go one way, and the packages below conformance, all their modules, need NumPy
alone.
"""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import tf_bn_ops

PACKAGE = pathlib.Path(tf_bn_ops.__file__).parent
# From the lowest to the highest; modules of conformance itself are above its packages.
LAYERS = (
    "spec", "harness", "conformance.models", "conformance.cases", "conformance.execution",
    "conformance.verdict", "conformance.reports", "conformance",
)  # fmt: skip
WITHOUT = """
import sys
for name in ("tensorflow", "ml_dtypes", "absl", "msgspec", "rich", "tomli"):
    sys.modules[name] = None
import importlib, pkgutil
from tf_bn_ops import harness, spec
from tf_bn_ops.conformance import models
for package in (harness, models, spec):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
from tf_bn_ops.harness import c_abi
from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness.problems import random_problem
from tf_bn_ops.spec import DTYPES
for dtype in DTYPES:
    problem = random_problem((9, 5, 4), dtype)
    assert not formula_models.check(problem, c_abi.run(problem)), dtype
assert DTYPES["bfloat16"].numpy == "uint16"
"""


def _layer(module):
    return max(
        (i for i, layer in enumerate(LAYERS) if f"{module}.".startswith(f"tf_bn_ops.{layer}.")),
        key=lambda i: len(LAYERS[i]),
        default=None,
    )


def _imports(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_import_goes_up():
    for file in PACKAGE.rglob("*.py"):
        module = ".".join(("tf_bn_ops", *file.relative_to(PACKAGE).with_suffix("").parts))
        if (layer := _layer(module)) is None:
            continue
        for name in _imports(file):
            other = _layer(name)
            assert other is None or other <= layer, f"{module} imports {name}"


def test_below_conformance_numpy_is_enough():
    """The core library is judged, bfloat16 as bits."""
    paths = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", paths + WITHOUT], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "package",
    [
        "harness",
        *(f"conformance/{p}" for p in ("models", "cases", "execution", "verdict", "reports")),
    ],
)
def test_a_package_lists_its_modules(package):
    """In the docstring of its __init__.py, which is what a newcomer reads first."""
    folder = PACKAGE / package
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert modules == set(re.findall(r"\b\w+\.py\b", text))
