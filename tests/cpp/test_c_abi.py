"""The C ABI of the installed package: its header is plain C, and needs nothing of the tree.

Promised: the headers of the C ABI are plain C, need nothing of the tree, and compile as docs/api.md
has it.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import tf_bn_ops
from tf_bn_ops.harness import c_abi

HERE = pathlib.Path(__file__).resolve().parent
INSTALLED = pathlib.Path(tf_bn_ops.get_include(), "tf_bn_ops")


def test_a_program_as_the_page_compiles_it(repo_root, tmp_path):
    """In C99, and a header that a compiler of C++ takes, too."""
    code = re.search(
        r"^```sh\n(.*?gcc.*?)^```", (repo_root / "docs/api.md").read_text(), re.S | re.M
    )
    assert code
    shutil.copy(HERE / "c_abi.c", tmp_path)
    strict = code[1].replace("-std=c99", "-std=c99 -Wall -Wextra -Wpedantic -Werror")
    both = f"{strict}\ng++ -fsyntax-only -I$(ours get_include) -include {INSTALLED}/tf_bn_ops_c.h "
    both += "-x c++ /dev/null\n./c_abi"
    path = f"{tmp_path}:{os.environ['PATH']}"
    (tmp_path / "python").symlink_to(sys.executable)
    ran = subprocess.run(
        ["sh", "-e", "-c", both],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(repo_root)},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "4 20 0 1\n4 3 12\n"


@pytest.mark.parametrize("name", ["tf_bn_ops_c.h", "tf_bn_ops_gpu_c.h"])
def test_a_header_includes_what_is_installed(name):
    included = re.findall(r'#include "(.*)"', (INSTALLED / name).read_text())
    assert all((INSTALLED / each).exists() for each in included)


@pytest.mark.parametrize(
    ("name", "struct"), [("tfbn_call", c_abi.Call), ("tfbn_gather_stats", c_abi.GatherStats)]
)
def test_a_struct_is_the_one_of_the_core(name, struct, tmp_path):
    """Which ctypes declares by the same table; in the tree its header has types of C++ in it."""
    fields = [field for field, *_ in struct._fields_]
    prints = "".join(f'printf("%zu ", offsetof({name}, {field}));' for field in fields)
    source = tmp_path / "offsets.c"
    source.write_text(
        "#include <stdio.h>\n#include <tf_bn_ops/tf_bn_ops_c.h>\n"
        f'int main(void) {{ {prints} printf("%zu", sizeof({name})); return 0; }}'
    )
    program = tmp_path / "offsets"
    subprocess.run(["gcc", f"-I{INSTALLED.parent}", source, "-o", program], check=True)
    told = subprocess.run([program], capture_output=True, check=True, text=True).stdout.split()
    want = [*(getattr(struct, field).offset for field in fields), ctypes.sizeof(struct)]
    assert [*map(int, told)] == want
