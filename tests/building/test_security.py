"""What SECURITY.md promises: hardened libraries, and no code of whoever sets the environment.

Promised: stacks and buffers are guarded; libraries load on older systems; isolated runs of Python
ignore the variables; the hook runs only where it is asked for.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from build_helpers import assert_hardened, bare_venv, run, site_packages

from tf_bn_ops import _environment, _loader

ROOT = pathlib.Path(_loader.__file__).resolve().parent.parent
CORE = pathlib.Path(_loader.core_library_path())
LIBRARIES = sorted({CORE, *_loader.installation().folder.glob("libtf_bn_ops*.so")})


needs_readelf = pytest.mark.skipif(
    shutil.which("readelf") is None, reason="needs readelf (binutils)"
)


@needs_readelf
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.stem)
def test_libraries_are_hardened(library):
    """Promise: Libraries are hardened."""
    assert_hardened(library)


def needed_symbols(library: pathlib.Path) -> dict[str, str]:
    """Symbol -> the version of it that the library asks of the system's libraries."""
    command = ["readelf", "--wide", "--dyn-syms", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r" UND ([^@\s]+)@(\S+)", text))


@needs_readelf
def test_stacks_and_buffers_are_guarded():
    """The flags of mk/cxxflags.txt have arrived where there is something to guard."""
    needed = {path.stem.removeprefix("lib"): needed_symbols(path) for path in LIBRARIES}
    for name, symbols in needed.items():
        assert "__stack_chk_fail" in symbols, name
    # The core formats messages into buffers of its callers.
    assert "__snprintf_chk" in needed["tf_bn_ops_core"]


@needs_readelf
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.stem)
def test_libraries_load_on_older_systems(library):
    """glibc 2.17 and the libstdc++ of GCC 6, which RHEL 8 and Ubuntu 18.04 have, whatever this one
    was built on: cc/portable makes newer symbols of older ones."""
    newest = {"GLIBC": (2, 17), "GLIBCXX": (3, 4, 22), "CXXABI": (1, 3, 10), "GCC": (4, 3, 0)}
    for symbol, version in needed_symbols(library).items():
        of, _, number = version.partition("_")
        if number and of in newest:
            assert tuple(map(int, number.split("."))) <= newest[of], (symbol, version)


# Both variables are set to what would be visible if it were read.
SEES_THE_ENVIRONMENT = """
import os, site, sys
{before}
sys.path.insert(0, sys.argv[1])
site.addsitedir(sys.argv[2])
hook_ran = "tf_bn_ops" in sys.modules
import tf_bn_ops
from tf_bn_ops import _loader, _startup
print(hook_ran, bool(_startup.requested()), str(_loader.installation().folder) == "/somewhere")
"""


def sees_the_environment(folder: pathlib.Path, *options: str, before: str = "") -> list[bool]:
    """Whether the hook in site-packages, the switches and the loader follow the environment."""
    program = SEES_THE_ENVIRONMENT.format(before=before)
    command = [sys.executable, *options, "-c", program, str(ROOT), str(folder)]
    result = run(command, ROOT, TF_BN_OPS="1", TF_BN_OPS_LIBRARY="/somewhere/lib.so")
    assert result.returncode == 0, result.stderr
    return [word == "True" for word in result.stdout.split()]


RUNS = {
    "ordinary": ((), "", True),
    **{f"isolated by {option}": ((option,), "", False) for option in ("-I", "-E")},
    **{
        f"with the rights of another {who}": ((), f"os.{call}(65534, 0, 0)", False)
        for who, call in (("user", "setresuid"), ("group", "setresgid"))
    },
}


@pytest.mark.parametrize("how", RUNS)
def test_an_ordinary_run_alone_follows_the_environment(startup_file, how):
    options, before, follows = RUNS[how]
    if before and os.geteuid() != 0:
        pytest.skip("needs root, to give up the real user's rights")
    assert sees_the_environment(startup_file, *options, before=before) == [follows] * 3


def test_a_program_with_capabilities_does_not(monkeypatch):
    """It has the caller's ids: the kernel's own flag decides, as for LD_LIBRARY_PATH.

    Promise: A program that runs with more rights than its user ignores the variables.
    """
    page_size = 6  # AT_PAGESZ: that this is the vector which the kernel filled.
    assert _environment._auxiliary(page_size) == os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setenv("TF_BN_OPS", "1")
    assert _environment.variable("TF_BN_OPS") == "1"
    monkeypatch.setattr(_environment, "_auxiliary", {_environment._AT_SECURE: 1}.get)
    assert _environment.variable("TF_BN_OPS") == ""


def test_the_hook_runs_only_where_it_is_asked_for(startup_file, tmp_path):
    """In an environment as pip makes it, with a package that says that it was imported."""
    python = bare_venv(tmp_path)
    site = site_packages(python)
    shutil.copy(startup_file / "tf_bn_ops.pth", site)
    (site / "tf_bn_ops.py").write_text("print('imported')\n")
    for options, variables, runs in (
        ([], {"TF_BN_OPS": "1"}, True),
        (["-s"], {"TF_BN_OPS": "keras"}, True),
        (["-S"], {"TF_BN_OPS": "1"}, False),  # Python loads no site at all.
        (["-I"], {"TF_BN_OPS": "1"}, False),
        ([], {"TF_BN_OPS_REPORT": "1"}, True),
        (["-E"], {"TF_BN_OPS_REPORT": "1"}, False),
        ([], {"TF_BN_OPS": ""}, False),
    ):
        result = run([python, *options, "-c", ""], tmp_path, **variables)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == ("imported\n" if runs else ""), (options, variables)
