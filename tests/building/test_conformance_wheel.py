"""Promised: the harness as a pure-Python wheel judges a vendor's library where nothing of ours is
built.
"""

import pathlib
import zipfile

import pytest
from build_helpers import build_op_library, installed, run, tool

THIRD_PARTY = pathlib.Path(__file__).resolve().parents[1] / "conformance"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    write = tool("conformance_wheel").write
    first, second = (write(tmp_path_factory.mktemp("dist")) for _ in range(2))
    assert first.read_bytes() == second.read_bytes()
    return first


def test_wheel_is_pure_and_asks_for_no_tensorflow(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(n).decode() for n in names if n.endswith("/METADATA"))
    assert not [name for name in names if name.endswith((".so", ".h", ".pyc"))]
    for needed in (
        "conformance/verdict/known_divergences.toml",
        "conformance/reports/page.html", "conformance/cases/generate.py", "__main__.py",
    ):  # fmt: skip
        assert f"tf_bn_ops/{needed}" in names
    assert "Requires-Dist: numpy" in metadata and "Requires-Dist: msgspec>=0.20,<1" in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    assert not [line for line in required if "tensorflow" in line.lower()]
    assert "Description-Content-Type: text/markdown" in metadata  # An index shows it.


@pytest.mark.long
def test_library_of_a_vendor_is_judged_where_ours_is_not(wheel, tmp_path):
    """On a machine without a compiler, or anything else, on the path."""
    python = installed(wheel, tmp_path)

    def judge(*flags):
        command = [python, "-m", "tf_bn_ops", "conformance", *flags]
        return run(command, tmp_path, PYTHONPATH=None, PATH=str(python.parent))

    without = judge("--cases=1")
    assert without.returncode == 2
    assert len(without.stderr.strip().splitlines()) == 1, without.stderr
    library = build_op_library(THIRD_PARTY / "vendor.cc")
    for op, status in (("StatelessBnGrad", 0), ("UnwrittenTailBnGrad", 1)):
        mapped = (f"--library={library}", f"--map={op}=FusedBatchNormGradV2", "--dtypes=float32")
        flags = ("--kinds=random", "--cases=20", "--execution-modes=poison", "--shrink=0")
        result = judge(*mapped, *flags, "--junit=run.xml")
        assert result.returncode == status, result.stdout + result.stderr
        assert (tmp_path / "run.xml").exists()
    assert "is not written in" in result.stdout
