"""Checks every internal link of the built documentation site.

usage: python tools/release/links.py [FOLDER]      (default: build/docs/site)

MkDocs checks links between pages of Markdown; this reads the HTML that came out: pages, pictures,
styles and scripts that it refers to exist, and so do the anchors. Links to other hosts are counted,
not followed. Exit status: 0 all there, 1 some missing (a line each), 2 no site.
"""

from __future__ import annotations

import html.parser
import pathlib
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Page(html.parser.HTMLParser):
    """What a page refers to, and the anchors that it has."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value or "")


def target_of(page: pathlib.Path, path: str, site: pathlib.Path) -> pathlib.Path:
    """The file that a link's path means; a folder means its index."""
    decoded = urllib.parse.unquote(path)
    target = site / decoded.lstrip("/") if decoded.startswith("/") else page.parent / decoded
    if decoded == "":
        return page
    return target / "index.html" if target.is_dir() else target


def broken_links(site: pathlib.Path) -> tuple[list[str], int, int]:
    """A sentence for each broken link, and how many links there are inside and to outside."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    broken, inside, outside = [], 0, 0
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in sorted(page.links):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                outside += 1
                continue
            inside += 1
            target = target_of(path, parts.path, site).resolve()
            if not target.is_file():
                broken.append(f"{name} refers to {link}, which is not in the site")
            elif parts.fragment and target.suffix == ".html":
                other = pages.get(target)
                if other is None or urllib.parse.unquote(parts.fragment) not in other.anchors:
                    broken.append(f"{name} refers to {link}, which has no such anchor")
    return broken, inside, outside


def main(argv: list[str]) -> int:
    site = pathlib.Path(argv[0] if argv else ROOT / "build" / "docs" / "site").resolve()
    if not (site / "index.html").is_file():
        print(f"error: {site} holds no site: run make docs first.", file=sys.stderr)
        return 2
    broken, inside, outside = broken_links(site)
    for sentence in broken:
        print(f"error: {sentence}.", file=sys.stderr)
    print(f"{inside} links inside of the site, {len(broken)} broken; {outside} to other hosts")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
