"""An index of wheels in a folder, as pip reads it from a server (PEP 503), and sums of its files.

Installing from `--index-url=file:///...` takes the way of a user: pip reads the project's page,
chooses a file by its tags, checks the hash that the page names, and installs.
"""

from __future__ import annotations

import hashlib
import html
import pathlib
import re
import shutil
from collections.abc import Iterable


def sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def project_of(file: str) -> str:
    """The normalized name of a wheel's or sdist's project."""
    name = re.match(r"(.+?)-\d", file)
    if name is None:
        raise ValueError(f"{file} is neither a wheel nor an sdist")
    return re.sub(r"[-_.]+", "-", name[1]).lower()


def write(files: Iterable[pathlib.Path], folder: pathlib.Path) -> str:
    """Writes the index of these files into an empty folder; returns its URL."""
    shutil.rmtree(folder, ignore_errors=True)
    pages: dict[str, list[str]] = {}
    for file in sorted(files):
        project = project_of(file.name)
        (folder / project).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / project / file.name)
        name = html.escape(file.name)
        link = f'<a href="{name}#sha256={sha256(file)}">{name}</a><br>'
        pages.setdefault(project, []).append(link)
    for project, links in pages.items():
        page = "<!DOCTYPE html>\n" + "\n".join(links) + "\n"
        (folder / project / "index.html").write_text(page, encoding="utf-8")
    return folder.resolve().as_uri()


def write_sums(files: Iterable[pathlib.Path], target: pathlib.Path) -> None:
    """As `sha256sum -c` reads them."""
    lines = [f"{sha256(file)}  {file.name}\n" for file in sorted(files)]
    target.write_text("".join(lines), encoding="utf-8")
