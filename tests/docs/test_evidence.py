"""Promised: the page docs/evidence.md shows what was recorded, of the sources that are built, and
the promises of the tests; every test file has one.
"""

from __future__ import annotations

import json
import pathlib

import pytest
from build_helpers import tool

evidence, promises = tool("evidence"), tool("promises")
RECORDED = {"networks": tool("train_networks"), "suites": tool("suites")}


@pytest.mark.parametrize("name", RECORDED)
def test_the_page_shows_what_was_recorded(name):
    page, rows = evidence.PAGE.read_text("utf-8"), evidence.rows(name)
    assert rows
    shown = evidence.with_table(page, name, RECORDED[name].table(rows))
    assert shown == page, f"make {name} ARGS=--record writes it"


def test_the_page_shows_the_promises_of_the_tests(repo_root):
    assert promises.main(["--check"]) == 0
    sentences, places = zip(*promises.promises(), strict=True)
    assert len(sentences) == len(set(sentences))
    files = {
        path.relative_to(repo_root).as_posix()
        for path in (repo_root / "tests").glob("*/**/test_*.py")
    }
    assert files == {place.partition("::")[0] for place in places}, "a file without a promise"


def test_a_change_of_what_is_built_is_another_source(tmp_path, monkeypatch):
    assert all(map(pathlib.Path.exists, map(evidence.ROOT.joinpath, evidence._INSTALLED)))
    for name in ("cc/core", "tf_bn_ops/lib", "docs"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    (tmp_path / "Makefile").write_text("")
    for name in ("pyproject.toml", "setup.py", "cc/core/view.h"):
        (tmp_path / name).write_text("")
    before = evidence.source()
    for name in ("tf_bn_ops/lib/built.so", "docs/page.md", "tf_bn_ops/notes.md"):
        (tmp_path / name).write_text("new")
        assert evidence.source() == before, name
    (tmp_path / "cc/core/view.h").write_text("new")
    assert evidence.source() != before


@pytest.mark.release
@pytest.mark.parametrize("name", ["versions", "networks", "suites"])
def test_every_row_was_run_on_these_sources(name):
    if name == "versions":
        rows = json.loads((evidence.ROOT / "docs" / "versions.json").read_text("utf-8"))
    else:
        rows = evidence.rows(name)
    others = [key for key, row in rows.items() if row.get("source") != evidence.source()]
    assert not others, f"run again: {', '.join(others)}"
