"""The docs are tested: their code runs, their links lead somewhere, the site builds.

Promised: links of README.md, CONTRIBUTING.md, CHANGELOG.md and docs/ lead somewhere, and the site
builds; every fenced block has a language. python runs, and prints what comments behind its prints
say; c++ compiles; toml and json parse; of sh every `make` line has its targets, and every `python
-m tf_bn_ops` line flags that its command knows; text is output, or a picture.

A block that cannot be run in this way says so in a comment on the line before it:

    <!-- run by tests/FILE.py -->     that test does what the block says
    <!-- all run by tests/FILE.py -->     the same of all blocks of a page
    <!-- not run: REASON -->
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import xml.etree.ElementTree
from typing import NamedTuple

import forked
import pytest
from build_helpers import make, run, tool

from tf_bn_ops import __main__ as commands
from tf_bn_ops import _loader, _run
from tf_bn_ops.conformance.cases.mapping import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not (ROOT / "docs").is_dir():
    pytest.skip("needs the source tree", allow_module_level=True)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMANDS = ("make", "python", "pip", "bazel", "git", "g++", "nvcc", "tools/", "TF_BN_OPS_")


class Block(NamedTuple):
    """A fenced block: its language, its text, and the comment on the line before it."""

    language: str
    code: str
    remark: str


FENCE = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: pathlib.Path) -> list[Block]:
    text = page.read_text("utf-8")
    of_all = re.search(r"^<!-- all (run by [^\n]*) -->$", text, re.MULTILINE)
    return [
        Block(language, code, remark or (of_all[1] if of_all else ""))
        for remark, language, code in FENCE.findall(text)
    ]


def blocks_in(*languages: str) -> list:
    """(file, number, block) of every block in these languages that is to be run here; of sh, what
    is a command within a line, too."""
    found = []
    for page in PAGES:
        name = page.relative_to(ROOT)
        text = page.read_text("utf-8") if "sh" in languages else ""
        inline = re.findall(r"`(python -m tf_bn_ops [a-z][^`]*)`", text)
        for i, block in enumerate([*blocks(page), *(Block("sh", code, "") for code in inline)]):
            if block.language in languages and not block.remark:
                found.append(pytest.param(block.code, id=f"{name}-{i}"))
    return found


def prose(text: str) -> str:
    """Without code: what looks like a link or heading there is none."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_has_a_language_and_its_exceptions_a_reason(page):
    known = ("python", "c++", "toml", "json", "yaml", "sh", "text", "mermaid")
    for block in blocks(page):
        assert block.language in known, block.code
        if block.remark:
            run_by = re.fullmatch(r"run by (tests/\S+\.py)", block.remark)
            assert run_by or re.fullmatch(r"not run: .{10,}", block.remark), block.remark
            assert run_by is None or (ROOT / run_by[1]).is_file(), block.remark
    # An indented command is a block without a check.
    rest = FENCE.sub("", page.read_text("utf-8"))
    assert not re.findall(r"^ *#[^ #].*", rest, re.M), "a heading, where a line was wrapped"
    assert not re.findall(rf"^ {{4,}}(?:{'|'.join(map(re.escape, COMMANDS))})\S* .*", rest, re.M)


@pytest.mark.long
@pytest.mark.parametrize("code", blocks_in("python"))
def test_python_blocks_run(code, tmp_path):
    if "jit_compile=True" in code and not _loader.build_info()["xla"]:
        pytest.skip("built without XLA")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    run = forked.run(code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert run.returncode == 0, run.stderr
    shown = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    printed = iter(run.stdout.splitlines())
    assert all(line in printed for line in shown), run.stdout  # In this order.


# What the blocks take as given.
CXX_CONTEXT = """
#include "tf_bn_ops/batch_norm_grad_block.h"
#include "tf_bn_ops/ops.h"
void Block{number}(const tensorflow::Scope& scope, tensorflow::Output y_backprop,
                   tensorflow::Output x, tensorflow::Output scale, tensorflow::Output offset,
                   tensorflow::Output mean, tensorflow::Output variance,
                   tensorflow::Output shortcut) {{
  {given}
{body}
}}
"""


@pytest.mark.long
def test_cxx_blocks_compile(tmp_path):
    """All in one file, a function each: TensorFlow's headers take the time."""
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    import tensorflow as tf

    import tf_bn_ops

    text = ""
    for number, param in enumerate(blocks_in("c++")):
        code = param.values[0]
        body = "\n".join(line for line in code.splitlines() if not line.startswith("#include"))
        given = "" if "absl::Status status" in code else "absl::Status status;"
        text += CXX_CONTEXT.format(number=number, given=given, body=body)
    assert text.count("void Block") >= 2
    source = tmp_path / "blocks.cc"
    source.write_text(text)
    flags = [*tf.sysconfig.get_compile_flags(), f"-I{tf_bn_ops.get_include()}", "-w"]
    result = run(["g++", "-fsyntax-only", *flags, source], tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("code", blocks_in("toml", "json"))
def test_data_blocks_parse(code):
    assert tomllib.loads(code) if "=" in code else json.loads(code)


def command_lines(code: str) -> list[list[str]]:
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("code", blocks_in("sh"))
def test_commands_exist(code):
    for words in command_lines(code):
        if words[0] == "make":
            result = make(ROOT, "--dry-run", *words[1:])
            assert result.returncode == 0, result.stderr
        elif words[:4] == ["python", "-m", "tf_bn_ops", "run"]:
            flags, program = _run._split(words[4:])
            assert _run._parser().parse_args(flags) and program
        elif words[:3] == ["python", "-m", "tf_bn_ops"]:
            name, rest = commands.split(words[3:])
            assert name and (not rest or commands.parser(name).parse_args([name, *rest]))
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file()
        else:
            pytest.fail(
                f"{words}: only make and python are checked here; see this file's first lines"
            )


# ---- Links ---------------------------------------------------------------------------------------


def anchors(page: pathlib.Path) -> set[str]:
    """Of its headings, as both GitHub and MkDocs make them of ASCII words."""
    text = FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page):
    links = re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", prose(page.read_text("utf-8")))
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def test_every_page_can_be_reached_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#:\s]+)", page.read_text("utf-8"))
        waiting += [page.parent / link for link in links]
    assert {page.resolve() for page in PAGES} - seen == set()


def test_pages_are_short():
    """The README is read in one go; pages that grow are rewritten."""
    evidence = ROOT / "docs" / "evidence.md"  # Its tables are generated, and not read in one go.
    lines = {page: len(page.read_text("utf-8").splitlines()) for page in PAGES}
    lines[evidence] -= evidence.read_text("utf-8").count("\n|")
    assert lines[ROOT / "README.md"] <= 120
    assert sum(n for page, n in lines.items() if page.is_relative_to(ROOT / "docs")) <= 3600


# ---- Decisions -----------------------------------------------------------------------------------

DECISIONS = {int(path.name[:4]): path for path in ROOT.glob("docs/adr/0*.md")}


def test_decisions_are_few_and_short_and_the_list_has_all():
    assert 0 < len(DECISIONS) <= 20
    for path in DECISIONS.values():
        assert len(path.read_text("utf-8").splitlines()) <= 60, path.name
    listed = re.findall(
        r"\]\((\d{4}[\w-]+\.md)\)", (ROOT / "docs/adr/README.md").read_text("utf-8")
    )
    assert sorted(listed) == sorted(path.name for path in DECISIONS.values())


def test_decisions_that_are_cited_exist():
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository: without it nobody knows what was built")
    citations = 0
    for path in map(ROOT.joinpath, run(["git", "ls-files"], ROOT).stdout.splitlines()):
        sources = (".md", ".py", ".h", ".cc", ".cu", ".toml", ".mk")
        if path.suffix not in sources or path.name == "CHANGELOG.md" or not path.is_file():
            continue
        pattern = r"\badr/(\d{4})\b|\bADR (\d+)\b|\]\((\d{4})-[\w-]+\.md\)"
        found = {int("".join(number)) for number in re.findall(pattern, path.read_text("utf-8"))}
        citations += len(found)
        assert found <= set(DECISIONS), f"{path} cites {sorted(found - set(DECISIONS))}"
    assert citations > 20


# ---- What docs say of the code -------------------------------------------------------------------


def test_troubleshooting_has_messages_as_they_are_in_the_sources():
    """The fixed parts of each heading, up to the section on TensorFlow's own."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8").split("\n## Messages of")[0]
    sources = ""
    for pattern in (
        "tf_bn_ops/**/*.py",
        "tools/*",
        "cc/**/*.cc",
        "cc/**/*.h",
        "Makefile",
        "mk/*.mk",
    ):
        for path in ROOT.glob(pattern):
            if path.is_file():
                sources += path.read_text("utf-8")
    # Strings that are broken over lines.
    sources = re.sub(r"[\"']\s*\n\s*f?[\"']", "", sources)
    messages = re.findall(r"`([^`]*)`", "\n".join(re.findall(r"^### (.*)$", text, re.M)))
    assert len(messages) > 6
    # Names of constants stand for their values in the sources.
    values = ("build it with 'make'", "TF_BN_OPS_LIBRARY", "TF_BN_OPS_CPU_ISA", "build_info.json")
    for message in messages:
        for part in re.split("|".join(map(re.escape, ["…", *values])), message):
            if len(part.strip(" ,:'")) > 3:
                assert part.strip(" ,:'") in sources, f"{message}: {part!r}"


def test_the_page_shows_the_versions_that_were_run():
    matrix, page = tool("matrix"), (ROOT / "docs" / "support.md").read_text("utf-8")
    results = json.loads((ROOT / "docs" / "versions.json").read_text())
    shown = matrix.evidence.with_table(page, "versions", matrix.table(results))
    assert shown == page, "make matrix writes it"
    assert set(results) <= set(matrix.PYTHONS)


def test_pages_name_the_oldest_and_the_newest_tensorflow():
    supported = tuple(tool("tf_env").supported_versions().split(" to "))
    for name in ("README.md", "docs/support.md", "docs/dropin.md"):
        text = (ROOT / name).read_text("utf-8")
        found = re.findall(r"(?:TensorFlow|Verified:) (2\.\d+) to (2\.\d+)", text)
        assert set(found) == {supported}, name


def test_the_picture_of_the_readme_is_small_and_whole():
    """What it shows: test_the_readme_shows_a_run_that_finds_a_wrong_op."""
    text = (ROOT / "docs" / "conformance.svg").read_text("utf-8")
    xml.etree.ElementTree.fromstring(text)
    assert len(text) < 15_000 and "href" not in text


@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path):
    for module in ("mkdocs", "mkdocstrings", "material"):
        pytest.importorskip(module, reason="needs requirements/dev.txt")
    result = run([sys.executable, "tools/docs.py", tmp_path / "docs"], ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    site = tmp_path / "docs" / "site"
    api = (site / "api.html").read_text("utf-8")
    import tf_bn_ops

    for name in tf_bn_ops.__all__:
        assert f'id="tf_bn_ops.{name}"' in api, f"docs/api.md lacks {name}"
    header = (ROOT / "cc" / "c_api" / "tf_bn_ops_c.h").read_text("utf-8")
    for name in set(re.findall(r"\btfbn_\w+", header)):
        assert name in api, f"the C ABI of docs/api.md lacks {name}"
    for flag in ("--execution-modes", "--junit", "--side-input", "--gradients-only", "--report"):
        assert flag in api, f"docs/api.md lacks {flag}"
    from tf_bn_ops.conformance.reports import record

    for field in {field for fields in record.SCHEMA.values() for field in fields}:
        assert f"<code>{field}</code>" in api, f"docs/api.md lacks {field} of a run's file"
    recorded = (ROOT / "docs" / "benchmarks" / "results.json").read_text("utf-8")
    rows = (site / "benchmarks.html").read_text("utf-8").count("<tr>")
    assert rows > recorded.count('"section":')
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        fetched = re.findall(r"<(?:link|script|img)[^>]*(?:href|src)=\"(https?:[^\"]*)", text)
        assert not fetched, page
