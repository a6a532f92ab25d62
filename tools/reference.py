"""Reference sections that `make docs` generates: C ABI (from headers), commands (from --help), the
file of a conformance run (from its schema), and the ops (from their table)."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tf_bn_ops import _run as run  # noqa: E402
from tf_bn_ops.__main__ import _COMMANDS, parser  # noqa: E402
from tf_bn_ops.conformance.reports import record  # noqa: E402
from tf_bn_ops.spec import OPS  # noqa: E402
from tf_bn_ops.spec.ops import BATCH_NORM_GATHER_STATS  # noqa: E402

HEADERS = ("cc/c_api/tf_bn_ops_c.h", "cc/c_api/tf_bn_ops_gpu_c.h")
COMMENT = r"/\* ((?:(?!\*/).)*) \*/"
# A comment, and the declarations that follow it up to an empty line.
DECLARATION = re.compile(
    rf"^{COMMENT}\n((?:typedef|enum|TFBN_EXPORT|#define TFBN_CUDA).*?)(?=\n\n|\n#)", re.S | re.M
)
NAME = re.compile(r"\b(tfbn_\w+)\(|^\} (tfbn_\w+);$|#define (\w+)", re.M)


def c_abi() -> str:
    """A section for each commented declaration of the headers."""
    sections = []
    for header in HEADERS:
        text = (ROOT / header).read_text(encoding="utf-8")
        introduction = re.search(COMMENT, text, re.S)
        assert introduction
        sections.append(f"`{header}`: {_prose(introduction[1])}")
        for comment, code in DECLARATION.findall(text):
            names = [name for match in NAME.findall(code) for name in match if name]
            title = ", ".join(f"`{name}`" for name in names) or _first_words(comment)
            code = re.sub(r"\n {16,}", "\n    ", code.replace("TFBN_EXPORT ", ""))
            sections.append(f"### {title}\n\n{_prose(comment)}\n\n```c\n{code}\n```")
    return "\n\n".join(sections)


def _first_words(comment: str) -> str:
    """What stands before the first punctuation: the title of constants without a name."""
    return re.split(r"(?<!:):(?!:)|[.,;(]", " ".join(_prose(comment).split()))[0].strip()


def _prose(comment: str) -> str:
    """The text of a block comment."""
    lines = [line.strip().removeprefix("*").strip() for line in comment.splitlines()]
    return "\n".join(lines).strip()


def commands() -> str:
    """What --help says of each command, at the width that it has in a terminal of 100 columns."""
    os.environ["COLUMNS"] = "100"
    texts = {"": parser("").format_help(), "run": run.__doc__ or ""}
    for name in _COMMANDS:
        if name != "run":
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
                parser(name).parse_args([name, "--help"])
            texts[name] = said.getvalue()
    return "\n\n".join(
        f"### python -m tf_bn_ops {name}\n\n```text\n{text.strip()}\n```"
        for name, text in texts.items()
    )


def ops() -> str:
    """The docstring of each function of `raw_ops`."""
    names = sorted([*(op.name for op in OPS.values()), BATCH_NORM_GATHER_STATS.name])
    return "\n".join(
        f"::: tf_bn_ops.generated.bindings.{_python_name(name)}\n"
        f"    options: {{ heading: tf_bn_ops.raw_ops.{name} }}"
        for name in names
    )


def _python_name(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def record_schema() -> str:
    """A table of fields for each object of the JSON file of a conformance run."""
    sections = []
    for name, fields in record.SCHEMA.items():
        rows = [f"| `{field}` | {meaning} |" for field, meaning in fields.items()]
        title = f"`{name}`" if name else "The file"
        sections.append("\n".join([f"### {title}", "", "| field | meaning |", "|---|---|", *rows]))
    return "\n\n".join(sections)
