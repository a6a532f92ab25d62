"""What a release's wheel has to hold beyond what twine asks: tag, requirements, licence, libraries.

`problems(wheel, versions)` returns a sentence for each thing that is wrong. Reads libraries with
pyelftools, which auditwheel brings along.
"""

from __future__ import annotations

import email
import email.message
import io
import pathlib
import re
import zipfile
from collections.abc import Iterator

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LICENCE = "Apache-2.0"
# What libraries may link: the system's, TensorFlow's, our own. All else would have a licence of its
# own, which the wheel would have to hold.
LINKED = re.compile(
    r"(libc|libm|libdl|libpthread|libgcc_s|libstdc\+\+|ld-linux.*|libtensorflow_(framework|cc)"
    r"|libtf_bn_ops(_\w+)?)\.so(\.\d+)?"
)
OF_EACH = ("libtf_bn_ops.so", "libtf_bn_ops_override.so", "libtf_bn_ops_optimizer.so",
           "libtf_bn_ops_client.so", "build_info.json")  # fmt: skip


def problems(wheel: pathlib.Path, versions: list[str]) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        files = {name: archive.read(name) for name in names}
    (info,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    metadata = email.message_from_bytes(files[f"{info}/METADATA"])
    return [
        *_of_name(wheel.name),
        *_of_metadata(metadata),
        *_of_licence(metadata, files.get(f"{info}/licenses/LICENSE")),
        *_of_layout(set(files), versions),
        *_of_libraries(files),
    ]


def _of_name(name: str) -> Iterator[str]:
    if not re.fullmatch(
        r"tf_bn_ops-[\d.]+((a|b|rc)\d+)?-py3-none-manylinux_\d+_\d+_\w+\.whl", name
    ):
        yield f"{name} is not tagged py3-none-manylinux, or has a local version"


def _of_metadata(metadata: email.message.Message) -> Iterator[str]:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    payload = metadata.get_payload(decode=True)
    text = payload.decode() if isinstance(payload, bytes) else ""
    if text.strip() != readme.strip():
        yield "the long description is not README.md"
    if metadata["Description-Content-Type"] != "text/markdown":
        yield f"the long description is {metadata['Description-Content-Type']}, not Markdown"
    required = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    if any("tensorflow" in requirement for requirement in required):
        yield f"it requires {', '.join(required)}: pip would put another TensorFlow over a user's"


def _of_licence(metadata: email.message.Message, licence: bytes | None) -> Iterator[str]:
    if metadata["License-Expression"] != LICENCE:
        yield f"License-Expression is {metadata['License-Expression']}, not {LICENCE}"
    if licence != (ROOT / "LICENSE").read_bytes():
        yield "it does not hold the file LICENSE"


def _of_layout(names: set[str], versions: list[str]) -> Iterator[str]:
    wanted = {f"tf_bn_ops/lib_tf{version}/{name}" for version in versions for name in OF_EACH}
    headers = ("ops.h", "tf_bn_ops_c.h")
    wanted |= {"tf_bn_ops/lib/libtf_bn_ops_core.so"}
    wanted |= {f"tf_bn_ops/include/tf_bn_ops/{name}" for name in headers}
    for name in sorted(wanted - names):
        yield f"it lacks {name}"
    for name in sorted(names):
        if name.startswith(("tests/", "tools/", "cc/", "build/")) or name.endswith((".o", ".pyc")):
            yield f"it holds {name}"


def _of_libraries(files: dict[str, bytes]) -> Iterator[str]:
    for name, content in sorted(files.items()):
        if not content.startswith(b"\x7fELF"):
            continue
        dynamic = ELFFile(io.BytesIO(content)).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        for tag in dynamic.iter_tags():
            kind, text = tag.entry.d_tag, vars(tag)  # What tags of names have, by kind.
            if kind == "DT_NEEDED" and not LINKED.fullmatch(text["needed"]):
                yield f"{name} links {text['needed']}, which users may not have"
            paths = (text["runpath"] if kind == "DT_RUNPATH" else "$ORIGIN").split(":")
            if kind == "DT_RPATH" or any(not re.match(r"\$ORIGIN(/|$)", path) for path in paths):
                yield f"{name} looks for libraries in {':'.join(paths)}"
