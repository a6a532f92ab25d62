"""Decisions (docs/adr): at most 20, a page each, all in the list; those that are cited exist."""

import re
import subprocess

import pytest

MOST, LINES = 20, 60


@pytest.fixture(scope="module")
def decisions(repo_root):
    """Number -> file."""
    return {int(path.name[:4]): path for path in (repo_root / "docs" / "adr").glob("0*.md")}


def test_there_are_few_and_short_ones(decisions):
    assert 0 < len(decisions) <= MOST
    for path in decisions.values():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES, path.name


def test_the_list_has_all(repo_root, decisions):
    text = (repo_root / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((\d{4}[\w-]+\.md)\)", text)) == sorted(
        path.name for path in decisions.values()
    )


def cited(text):
    """The numbers of the decisions that a text names."""
    named = re.findall(r"\badr/(\d{4})\b|\bADR (\d+)\b|\]\((\d{4})-[\w-]+\.md\)", text)
    return {int(number) for groups in named for number in groups if number}


def test_those_that_are_cited_exist(repo_root, decisions):
    if not (repo_root / ".git").exists():
        pytest.skip("needs the repository: without it nobody knows what was built")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=repo_root, capture_output=True, text=True, check=True
    )
    citations = 0
    for name in listed.stdout.splitlines():
        path = repo_root / name
        if path.suffix not in (".md", ".py", ".h", ".cc", ".cu", ".toml", ".mk"):
            continue
        found = cited(path.read_text(encoding="utf-8")) if path.is_file() else set()
        if path.name in ("CHANGELOG.md", "test_decisions.py"):
            continue
        citations += len(found)
        assert found <= set(decisions), f"{name} cites {sorted(found - set(decisions))}"
    assert citations > 20


def test_citations_are_found():
    assert cited("see ADR 27, [28](0028-pipelined-channel-groups.md), docs/adr/0031-x.md") == {
        27,
        28,
        31,
    }
