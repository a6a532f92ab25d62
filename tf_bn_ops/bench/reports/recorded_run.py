"""The recorded run (docs/benchmarks/results.json) in the documentation.

`record` keeps a run and writes the overview table of README.md and docs/benchmarks.md, between
markers; `page` is what `make docs` inserts into docs/benchmarks.md.
"""

from __future__ import annotations

import pathlib

from tf_bn_ops.bench import implementations, results
from tf_bn_ops.bench.bench_rows import FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU
from tf_bn_ops.bench.reports import plots, report
from tf_bn_ops.bench.reports.text_table import label
from tf_bn_ops.bench.results import Run

ROOT = pathlib.Path(__file__).resolve().parents[3]
RECORDED = ROOT / "docs" / "benchmarks" / "results.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")

BEGIN = "<!-- written by make bench ARGS=--record from docs/benchmarks/results.json -->"
END = "<!-- end of what make bench ARGS=--record writes -->"
# Replaced by `page`.
ALL_TABLES = "<!-- make docs inserts all tables and plots here -->"

_LONG = 30  # Tables of more rows are folded.


class DocsError(ValueError):
    """No source tree, or a page without the markers; the message is one sentence."""


# ---- The overview in the repository's pages ------------------------------------------------------


def overview(run: Run, with_slower: bool = False) -> str:
    """The tables by layout and dtype, of whole networks, and a few sentences on the run; perhaps
    each row in which a peer is faster."""
    lines = [report.overview_table(run).markdown(), "", _caption(run, GRADIENT)]
    if with_slower:
        lines += ["", slower(run)]
    for call, text in (
        (FORWARD, "The forward op, likewise:"),
        (LAYER, "A layer in training, the forward op and that of the gradient:"),
        (LAYER_RELU, "A layer with ReLU behind it, likewise; TensorFlow's is a chain of ops:"),
        (LAYER_ADD_RELU, "A layer with the addition of a side input and ReLU behind it, likewise:"),
    ):
        if run.of_section(call):
            lines += ["", text, "", report.overview_table(run, call).markdown()]
    return "\n".join([*lines, *_networks(run)])


def summary(run: Run) -> str:
    """The tables of layers by layout and dtype, or of the gradient alone where no layer was
    measured, and of whole networks."""
    call = LAYER if run.of_section(LAYER) else GRADIENT
    lines = [report.overview_table(run, call).markdown(), "", _caption(run, call)]
    if run.of_section(LAYER_RELU):
        lines += ["", "With ReLU behind it; TensorFlow's is a chain of ops:", ""]
        lines.append(report.overview_table(run, LAYER_RELU).markdown())
    return "\n".join([*lines, *_networks(run)])


def _caption(run: Run, call: str) -> str:
    shapes = len({m.row.shape for m in run.of_section(call)})
    versions = ", ".join(
        f"{label(peer)} {next(iter(run.versions[peer].values()))}"
        for peer in run.peers
        if peer in run.versions and peer != "eigen"
    )
    return (
        f"Median over {shapes} layer shapes of the peer's time over that of tf_bn_ops, "
        f"{report.CALL_TITLES[call]}: above 1 tf_bn_ops is faster; -: the peer refuses. "
        f"{run.machine['cpu']}, {run.settings['threads']} threads, {versions}, "
        f"{run.machine['date']}."
    )


def _networks(run: Run) -> list[str]:
    if not run.networks:
        return []
    return [
        *("", "A training step of whole networks, with Keras' batch norm, with"),
        "`tf_bn_ops.keras.replace_batch_norm`, and with nothing in place of batch norm:",
        *("", report.network_table(run).markdown()),
        *("", "With batch norm fused with the activations behind it (`fuse=True`), and with"),
        *("nothing in place of both:", "", report.fused_network_table(run).markdown()),
    ]


def on_page(page: pathlib.Path, run: Run) -> str:
    """What stands between the markers of a page: on that of the benchmarks every row that is slower
    than a peer's, too; in the README what whole layers and networks gain."""
    if page.name == "README.md":
        return summary(run)
    return overview(run, with_slower=page.name == "benchmarks.md")


def slower(run: Run) -> str:
    """The rows in which a peer is faster."""
    table = report.slower_table(run)
    if not table.rows:
        return "In no row is a peer faster."
    return (
        "Rows in which a peer is faster, with its time over that of tf_bn_ops:\n\n"
        f"{table.markdown()}"
    )


def with_overview(text: str, written: str) -> str:
    """A page with what is between its markers replaced.

    Raises:
      DocsError: it has not one pair of markers.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise DocsError(f"the page needs one line {BEGIN!r} and after it one line {END!r}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{written}\n{END}{rest.split(END)[1]}"


def check() -> None:
    """Raises DocsError where there is no source tree to record into."""
    for page in PAGES:
        if not page.is_file():
            raise DocsError(f"--record needs the source tree: {page} does not exist")


def record(run: Run) -> list[pathlib.Path]:
    """Writes results.json and the overviews; returns the files."""
    check()
    results.save(run, RECORDED)
    run = results.load(RECORDED)  # The file's figures are rounded, and the pages show the file.
    for page in PAGES:
        page.write_text(with_overview(page.read_text("utf-8"), on_page(page, run)), "utf-8")
    return [RECORDED, *PAGES]


# ---- The page of the site ------------------------------------------------------------------------


def _machine(run: Run) -> list[str]:
    machine = run.machine
    caches = ", ".join(f"{k} {_size(v)}" for k, v in machine["caches"].items())
    memory = machine["memory_bytes"]
    ours = (implementations.CANDIDATE, implementations.MEMORY_BANDWIDTH)
    facts = {
        "processor": f"{machine['cpu']}, {machine['architecture']}, {machine['cores']} cores",
        "caches": caches or "unknown",
        "memory": _size(memory) if memory else "unknown",
        "system": f"{machine['system']}, Python {machine['python']}",
        "tf_bn_ops": f"{machine['tf_bn_ops']}, {machine['isa']} build, {machine['compiler']}",
        "peers": ", ".join(
            f"{label(name)} {', '.join(versions.values())}"
            for name, versions in run.versions.items()
            if name not in ours
        ),
        "left out": "; ".join(f"{label(n)}: {r}" for n, r in run.missing.items()),
        "run": (
            f"{machine['date']}, {run.settings['threads']} threads, {run.seconds / 60:.0f} minutes,"
            f" load of the machine before it {machine['load_before']:.1f}"
        ),
        "command": f"`{run.command}`",
    }
    lines = ["| | |", "| --- | --- |"]
    return lines + [f"| {name} | {text} |" for name, text in facts.items() if text]


def _size(value: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.3g} {unit}"
    return f"{value >> 10} KiB"


def page(run: Run, pictures: list[str]) -> str:
    """All tables, and the plots with these paths."""
    lines = ["## Machine", "", *_machine(run), "", "## Summary"]
    for table in report.summary_tables(run):
        lines += ["", f"### {table.title}", "", table.markdown()]
    lines += ["", *report.limit_sentences(run), "", *report.layer_sentences(run)]
    own, others = report.wrong(run)
    lines += ["", *([] if own else ["Every result of tf_bn_ops was within its error bound."])]
    lines += [f"\n**Wrong:** {text}" for text in own]
    lines += [f"\nWrong, left out of the ratios: {text}" for text in others]
    lines += [f"\n{text}" for text in report.skipped_sentences(run)]
    lines += ["", "## Plots"]
    for picture in pictures:
        lines += ["", f"![{plots.TITLES[pathlib.Path(picture).stem]}]({picture})"]
    if not pictures:
        lines += ["", "None: matplotlib is not installed where this page was generated."]
    lines += ["", "## Tables"]
    for table in report.tables(run):
        text = table.markdown()
        if len(table.rows) > _LONG:
            text = f"<details markdown>\n\n{text}\n\n</details>"
        lines += ["", f"### {table.title}", "", text]
    return "\n".join([*lines, "", "## results.json", "", *_schema()])


def _schema() -> list[str]:
    lines = []
    for title, fields in results.SCHEMA.items():
        lines += [f"{title}:", "", "| field | meaning |", "| --- | --- |"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in fields.items()]
        lines.append("")
    return lines
