"""Promised: the workflows of CI call what a developer types, for every TensorFlow that is
supported, with a Python that it has; the templates of issues ask for what an answer needs.
"""

from __future__ import annotations

import pathlib
import re
import shutil

import pytest
from build_helpers import make, run, tool

yaml = pytest.importorskip("yaml", reason="needs requirements/dev.txt")

ROOT = pathlib.Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
if not GITHUB.is_dir():
    pytest.skip("needs the repository", allow_module_level=True)
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))


def steps(workflow: pathlib.Path) -> list[dict]:
    jobs = yaml.safe_load(workflow.read_text("utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_its_commands_exist(workflow):
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert commands
    for command in commands:
        if command.startswith("make "):
            result = make(ROOT, "--dry-run", command.split()[1])
            assert result.returncode == 0, result.stderr
        elif command.startswith("."):
            assert (ROOT / command).is_file()


def test_every_tensorflow_is_tested_with_a_python_that_it_has():
    matrix = tool("matrix")
    text = (GITHUB / "workflows" / "checks.yml").read_text("utf-8")
    entries = yaml.safe_load(text)["jobs"]["tensorflow"]["strategy"]["matrix"]["include"]
    assert [entry["tensorflow"] for entry in entries] == list(matrix.PYTHONS)
    for entry in entries:
        oldest, newest = matrix.PYTHONS[entry["tensorflow"]]
        assert oldest <= tuple(map(int, entry["python"].split("."))) <= newest
    # Every Python of the wheels' is in one of them, and in the classifiers.
    minors = range(oldest[1], newest[1] + 1)
    assert {entry["python"] for entry in entries} == {f"3.{minor}" for minor in minors}
    # Make installs the newest that is released, into an environment of a Python that it has.
    released = [version for version in matrix.PYTHONS if version not in matrix.CANDIDATES][-1]
    for name in ("tensorflow", "without_dependencies"):
        required = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
        assert set(re.findall(r"==(2\.\d+)\.\*", required)) == {released}
    script = (ROOT / "tools" / "make_venv.sh").read_text("utf-8")
    assert f"VENV_NEWEST:-{matrix.PYTHONS[released][1][1]}}}" in script
    listed = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert listed == [f"3.{minor}" for minor in minors]


def test_actionlint_has_nothing_to_say():
    if not shutil.which("actionlint"):
        pytest.skip("needs actionlint")
    result = run(["actionlint", "-no-color", *WORKFLOWS], ROOT)
    assert result.returncode == 0, result.stdout


def test_issues_ask_for_what_doctor_says():
    for template in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(template.read_text("utf-8"))
        if template.stem != "config":
            asked = [field["attributes"]["description"] for field in form["body"][:1]]
            assert "`python -m tf_bn_ops doctor --format=json`" in asked[0], template
