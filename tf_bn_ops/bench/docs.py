"""Writes the figures of a run between two markers of a Markdown file."""

from __future__ import annotations

import pathlib
from typing import Any

from tf_bn_ops.bench import implementations, plots, report

BEGIN = "<!-- figures: begin (python -m tf_bn_ops bench --write_docs writes up to the end) -->"
END = "<!-- figures: end -->"

# Tables of more rows are folded.
_LONG = 30


class DocsError(ValueError):
    """A file without the markers; the message is one sentence."""


def _machine(run: dict[str, Any]) -> list[str]:
    machine = run["machine"]
    caches = ", ".join(f"{k} {_size(v)}" for k, v in machine["caches"].items())
    memory = machine["memory_bytes"]
    versions = []
    for name, facts in run["versions"].items():
        if name in (implementations.CANDIDATE, implementations.STREAM):
            continue
        versions.append(f"{report.label(name)} {', '.join(facts.values())}")
    settings = run["settings"]
    facts = {
        "processor": f"{machine['cpu']}, {machine['architecture']}, {machine['cores']} cores",
        "caches": caches or "unknown",
        "memory": _size(memory) if memory else "unknown",
        "system": f"{machine['system']}, Python {machine['python']}",
        "tf_bn_ops": f"{machine['tf_bn_ops']}, {machine['isa']} build, {machine['compiler']}",
        "peers": ", ".join(versions),
        "left out": "; ".join(f"{report.label(n)}: {r}" for n, r in run["missing"].items()),
        "run": (
            f"{machine['date']}, {settings['threads']} threads, {run['seconds'] / 60:.0f} minutes, "
            f"load of the machine before it {machine['load_before']:.1f}"
        ),
        "repeat it": f"`{run['command']}`",
    }
    lines = ["| | |", "| --- | --- |"]
    return lines + [f"| {name} | {text} |" for name, text in facts.items() if text]


def _size(value: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.3g} {unit}"
    return f"{value >> 10} KiB"


def figures(run: dict[str, Any], pictures: list[str]) -> str:
    """The text between the markers."""
    lines = ["## Machine", "", *_machine(run), "", "## Summary", ""]
    if report.results.of_section(run, "layers"):
        for table in report.summary_tables(run):
            lines += [table.markdown(3), ""]
        lines += report.limit_sentences(run)
    own, others = report.wrong(run)
    if not own:
        lines += ["", "Every result of ours was right: within its error bound of float64."]
    for text in own:
        lines += ["", f"**Wrong:** {text}"]
    for text in others:
        lines += ["", f"Wrong, left out of the ratios: {text}"]
    for text in report.skipped_sentences(run):
        lines += ["", text]
    if pictures:
        lines += ["", "## Plots"]
        for picture in pictures:
            title = plots.TITLES[pathlib.Path(picture).stem]
            lines += ["", f"![{title}]({picture})"]
    lines += ["", "## Tables"]
    for table in report.tables(run):
        text = table.markdown(3)
        if len(table.rows) > _LONG:
            heading, _, rest = text.partition("\n\n")
            text = f"{heading}\n\n<details>\n\n{rest}\n\n</details>"
        lines += ["", text]
    return "\n".join(lines)


def check(path: pathlib.Path) -> str:
    """The text of the file.

    Raises:
      DocsError: it cannot be read, or has not one pair of markers.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise DocsError(f"{path} cannot be read: {e.strerror}") from e
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise DocsError(f"{path} needs one line {BEGIN!r} and after it one line {END!r}")
    return text


def write(run: dict[str, Any], path: pathlib.Path) -> None:
    """Replaces what is between the markers; the plots go into a folder named like the file."""
    text = check(path)
    folder = path.with_suffix("")
    pictures = [
        f"{folder.name}/{written.name}" for written in plots.write(run, folder, formats=("svg",))
    ]
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{figures(run, pictures)}\n\n{END}{after}", "utf-8")
