"""Builds the documentation site: puts its pages together and runs MkDocs on them.

usage: python tools/docs.py [--mermaid] [FOLDER]      (default: build/docs; the site is FOLDER/site)

With --mermaid npm, where there is one, brings the script that draws figures into the site.

The pages come from the repository: README.md is the first one, CONTRIBUTING.md, CHANGELOG.md and
docs/ follow. Links between them are adapted to their places in the site, and files of the
repository that they link to are copied beside them. docs/benchmarks.md gets the tables of
docs/benchmarks/results.json, docs/api.md the ops, the C ABI, the flags of the commands and the
fields of a conformance run's file. Every warning of MkDocs is an error: links, anchors, docstrings.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable

import reference
import tool_flags

ROOT = reference.ROOT  # Its import puts the package on sys.path.

from bench import report, results  # noqa: E402

# Page of the repository -> page of the site. docs/ is the site's root.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
# The order of the menu; what is not named here comes last, by name.
ORDER = (
    *("index", "dropin", "keras", "faster", "cpp", "synchronized", "own_kernel", "support"),
    *("troubleshooting", "api", "conformance", "evidence", "findings", "benchmarks"),
    *("math", "design", "gpu", "adr/README", "contributing", "changelog"),
)


def place(path: str) -> str:
    """The path of a repository's file in the site."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}"


def put_together(target: pathlib.Path) -> list[str]:
    """Writes the pages and what they link to; returns the pages."""
    sources = [*PAGES, *(p.relative_to(ROOT).as_posix() for p in sorted(ROOT.glob("docs/**/*.md")))]
    for source in sources:
        page = place(source)

        def moved(link: re.Match[str], source: str = source, page: str = page) -> str:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
            if (ROOT / path).is_dir():
                path += "/README.md"
            if not (ROOT / path).is_file():
                sys.exit(f"error: {source} links to {link[2]}, which does not exist.")
            if not path.endswith(".md"):
                (target / place(path)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, target / place(path))
            there = posixpath.relpath(place(path), posixpath.dirname(page) or ".")
            return f"{link[1]}{there}{link[3]}"

        text = (ROOT / source).read_text(encoding="utf-8")
        parts, end = [], 0
        for fence in FENCE.finditer(text):  # Code is left alone.
            parts += [LINK.sub(moved, text[end : fence.start()]), fence[0]]
            end = fence.end()
        parts.append(LINK.sub(moved, text[end:]))
        (target / page).parent.mkdir(parents=True, exist_ok=True)
        (target / page).write_text("".join(parts), encoding="utf-8")
    return [place(source) for source in sources]


# Page of the site -> line of it -> what to put there.
GENERATED: dict[str, dict[str, Callable[[pathlib.Path], str]]] = {
    "benchmarks.md": {
        report.ALL_TABLES: lambda _: report.site_page(results.load(report.RECORDED)),
    },
    "api.md": {
        "<!-- make docs inserts the ops here -->": lambda _: reference.ops(),
        "<!-- make docs inserts the C ABI here -->": lambda _: reference.c_abi(),
        "<!-- make docs inserts the commands here -->": lambda _: reference.commands(),
        "<!-- make docs inserts the record here -->": lambda _: reference.record_schema(),
    },
}


def insert_generated(target: pathlib.Path) -> None:
    """Replaces the marker lines of GENERATED."""
    for page, parts in GENERATED.items():
        text = (target / page).read_text(encoding="utf-8")
        for marker, generate in parts.items():
            before, found, after = text.partition(f"{marker}\n")
            if not found:
                sys.exit(f"error: {page} has no line {marker}")
            text = f"{before}{generate(target)}\n{after}"
        (target / page).write_text(text, encoding="utf-8")


# Draws the figures, in the browser; without it Material's theme fetches it there.
MERMAID = ROOT / "build" / "mermaid" / "mermaid.min.js"


def fetch_mermaid() -> None:
    """By npm, where there is one, and once."""
    npm = shutil.which("npm")
    if MERMAID.exists() or npm is None:
        return
    MERMAID.parent.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", "--silent", "mermaid@11.17.2"]
    packed = subprocess.run(command, cwd=MERMAID.parent, capture_output=True, text=True)
    if packed.returncode == 0:
        with tarfile.open(MERMAID.parent / packed.stdout.split()[-1]) as archive:
            script = archive.extractfile("package/dist/mermaid.min.js")
            assert script
            MERMAID.write_bytes(script.read())


def bring_mermaid(target: pathlib.Path) -> None:
    """Has pages with figures load the script from the site."""
    if not MERMAID.exists():
        return
    for page in target.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if "\n```mermaid\n" in text:
            shutil.copy(MERMAID, page.parent)
            script = f'\n<script src="{MERMAID.name}"></script>\n'
            page.write_text(text + script, encoding="utf-8")


def menu(pages: list[str]) -> str:
    """The nav section of mkdocs.yml: pages in their order, decisions in a section."""
    known = [f"{name}.md" for name in ORDER if f"{name}.md" in pages]
    rest = [page for page in pages if page not in known]
    lines = ["nav:"]
    for page in known + [page for page in rest if not page.startswith("adr/")]:
        if page == "adr/README.md":
            lines.append("  - Decisions:")
            lines += [
                f"      - {one}" for one in [page, *(p for p in rest if p.startswith("adr/"))]
            ]
        else:
            lines.append(f"  - {page}")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "build" / "docs")
    parser.add_argument("--mermaid", action="store_true")
    flags = parser.parse_args(argv)
    folder = flags.folder.resolve()
    pages, site = folder / "pages", folder / "site"
    shutil.rmtree(folder, ignore_errors=True)
    pages.mkdir(parents=True)
    written = put_together(pages)
    shutil.copy(ROOT / "docs" / "site.css", pages)
    insert_generated(pages)
    if flags.mermaid:
        fetch_mermaid()
    bring_mermaid(pages)
    # Beside the original: paths in it are relative.
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    with (folder / "mkdocs.yml").open("w", encoding="utf-8") as file:
        file.write(config.replace("paths: [.]", f"paths: [{str(ROOT)!r}]") + menu(written))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", f"{file.name}"]
    environment = {
        **os.environ, "TF_BN_OPS_DOCS": str(pages), "TF_BN_OPS_SITE": str(site),
        # A notice of the theme about another project's plans.
        "NO_MKDOCS_2_WARNING": "1",
    }  # fmt: skip
    status = subprocess.run(command, env=environment).returncode
    if status == 0:
        print(site / "index.html")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
