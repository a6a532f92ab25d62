"""Gives the sources a new version: its number, and the heading of its changes.

usage: python tools/release/new_version.py VERSION [--date=YYYY-MM-DD]

Writes the version into tf_bn_ops/_version.py, names of wheels in docs/, and a heading with the date
into CHANGELOG.md, below an empty "Unreleased". Refuses a version that is not higher than the last
released one, and a changelog without a change. Commits nothing: look at `git diff` first.
Exit status: 0 done, 2 refused.
"""

from __future__ import annotations

import datetime
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import tool_flags  # noqa: E402

VERSION_FILE = "tf_bn_ops/_version.py"
CHANGELOG = "CHANGELOG.md"
# PEP 440 without what a release of this project has no use for: epochs, post releases, local parts.
PATTERN = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
UNRELEASED = "## [Unreleased]\n"


class Refused(Exception):
    """The sentence says why, and what to do."""


def order(version: str) -> tuple[int, int, int, str, int]:
    """For comparisons: 1.0.0a1 < 1.0.0rc1 < 1.0.0."""
    found = PATTERN.fullmatch(version)
    if found is None:
        raise Refused(f"{version!r} is no version: write it as 1.2.3 or 1.2.3rc1")
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch), stage or "z", int(number or 0)


def with_heading(changelog: str, version: str, date: str) -> str:
    """The changelog with what was unreleased below the heading of `version`."""
    before, found, after = changelog.partition(UNRELEASED)
    if not found:
        raise Refused(f'{CHANGELOG} has no line "{UNRELEASED.strip()}": add it above the changes')
    changes = after.partition("\n## ")[0]
    if not re.search(r"^- ", changes, re.MULTILINE):
        raise Refused(f"{CHANGELOG} lists no change since the last version: write what changed")
    return f"{before}{UNRELEASED}\n## [{version}] - {date}\n{after}"


def release(root: pathlib.Path, version: str, date: str) -> list[str]:
    """Changes the files below `root`; returns their names."""
    source = (root / VERSION_FILE).read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.+)"', source)
    if found is None:
        raise Refused(f'{VERSION_FILE} has no line __version__ = "..."')
    old = found[1]
    changelog = (root / CHANGELOG).read_text(encoding="utf-8")
    released = f"\n## [{old}]" in changelog
    if order(version) < order(old) or (released and order(version) == order(old)):
        raise Refused(f"{version} is not higher than {old}, the version that is there")
    changed = {
        VERSION_FILE: source.replace(f'"{old}"', f'"{version}"'),
        CHANGELOG: with_heading(changelog, version, date),
    }
    for page in sorted((root / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = re.sub(rf"(tf_bn_ops(?:_\w+)?-){re.escape(old)}(-py3)", rf"\g<1>{version}\2", text)
        if new != text:
            changed[page.relative_to(root).as_posix()] = new
    for name, text in changed.items():
        (root / name).write_text(text, encoding="utf-8")
    return list(changed)


def main(argv: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("version")
    parser.add_argument("--date", default=f"{datetime.date.today()}")
    arguments = parser.parse_args(argv)
    try:
        changed = release(ROOT, arguments.version, arguments.date)
    except Refused as refused:
        print(f"error: {refused}.", file=sys.stderr)
        return 2
    print(f"{arguments.version}: {', '.join(changed)}; see git diff, then make release-check")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
