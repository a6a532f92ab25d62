"""The harness as a pure-Python wheel judges a vendor's library where nothing of ours is built."""

import os
import pathlib
import shutil
import subprocess
import zipfile
from xml.etree import ElementTree

import pytest
from build_helpers import build_op_library, installed, run, site_packages, tool

THIRD_PARTY = pathlib.Path(__file__).resolve().parents[1] / "conformance" / "third_party"


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
        "conformance/reports/page.html", "conformance/cases/relations/table.py", "__main__.py",
    ):  # fmt: skip
        assert f"tf_bn_ops/{needed}" in names
    assert "Requires-Dist: numpy" in metadata and "Requires-Dist: jinja2>=3.1,<4" in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    assert not [line for line in required if "tensorflow" in line.lower()]
    assert "Description-Content-Type: text/markdown" in metadata  # An index shows it.


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    return installed(wheel, tmp_path_factory.mktemp("vendor"))


def _judge(python, folder, *flags):
    """As a vendor's machine has it: without a compiler, or anything else, on the path."""
    command = [python, "-m", "tf_bn_ops", "conformance", *flags]
    return run(command, folder, PYTHONPATH=None, PATH=str(python.parent))


@pytest.mark.long
def test_library_of_a_vendor_is_judged_where_ours_is_not(python, tmp_path):
    where = "import tf_bn_ops.conformance as c; print(c.__file__)"
    done = subprocess.run(
        [python, "-c", where], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""},
        capture_output=True, text=True,
    )  # fmt: skip
    assert str(site_packages(python)) in done.stdout, done.stdout + done.stderr
    library = build_op_library(THIRD_PARTY / "bn_grad_ops.cc")
    for op, status in (("StatelessBnGrad", 0), ("UnwrittenTailBnGrad", 1)):
        mapped = (f"--library={library}", f"--map={op}=FusedBatchNormGradV2", "--dtypes=float32")
        flags = (*mapped, "--junit=run.xml", "--shrink=0")
        more = ("--kinds=relations", "--cases=20", "--execution_modes=poison")
        result = _judge(python, tmp_path, *flags, *more)
        assert result.returncode == status, result.stdout + result.stderr
        assert (tmp_path / "run.xml").exists()
    assert "is not written in" in result.stdout


@pytest.mark.long
def test_shards_in_a_vendors_ci_are_merged_into_one_report(python, tmp_path):
    """The workflow of docs/conformance.md: each shard has a status and files of its own; the merged
    ones have all cases. A shard that fails makes the report fail, too."""
    shutil.copy(build_op_library(THIRD_PARTY / "bn_grad_ops.cc"), tmp_path / "libvendor.so")
    mapping = (THIRD_PARTY / "vendor.toml").read_text(encoding="utf-8")
    strict = mapping[: mapping.index("[[op.tolerance]]")].replace("gamma", "GAMMA")
    cases = []
    for shard in ("1/2", "2/2"):
        (tmp_path / "vendor.toml").write_text(mapping)
        name = shard[0]
        flags = ("--library=libvendor.so", "--mapping=vendor.toml", "--cases=40")
        flags += ("--kinds=random,contract,relations",)
        files = (f"--json={name}.json", f"--junit={name}.xml")
        result = _judge(python, tmp_path, *flags, f"--shard={shard}", *files)
        assert result.returncode == 0, result.stdout + result.stderr
        cases.append(_junit_cases(tmp_path / f"{name}.xml"))
    assert all(cases) and not set(cases[0]) & set(cases[1])
    merged = ("--html=all.html", "--junit=all.xml")
    result = _judge(python, tmp_path, "merge", "1.json", "2.json", *merged)
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(_junit_cases(tmp_path / "all.xml")) == sorted([*cases[0], *cases[1]])
    assert "Vendor&gt;BnGrad" in (tmp_path / "all.html").read_text(encoding="utf-8")
    # A mapping that does not fit the library: no verdict, one sentence.
    (tmp_path / "vendor.toml").write_text(strict)
    result = _judge(python, tmp_path, *flags)
    assert result.returncode == 2
    assert "GAMMA" in result.stderr and "Traceback" not in result.stderr


def _junit_cases(path):
    """But for what every shard lists: known divergences that it shows, signatures of the ops."""
    found = ElementTree.parse(path).iter("testcase")
    of_all = ("known divergences", "signatures")
    return [case.get("name") for case in found if case.get("classname") not in of_all]


@pytest.mark.long
def test_without_a_library_it_says_that_there_are_no_ops(python, tmp_path):
    result = _judge(python, tmp_path, "--cases=1")
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
