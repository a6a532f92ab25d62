"""Compares this tree's kernels with another commit's: every output has to be bitwise identical.

    make bitwise-against REF=<commit>            builds the commit in a folder below build/
    python tools/bitwise_against.py --library=PATH [--cases=250] [--seed=1]

For every op, element type and layout of the specs, `--cases` cases of the conformance run, without
its right answers: both modes, every kind of inputs, one in ten of any size, the others small. Each
library runs in a process of its own, on the same inputs, with 2 threads. Digests of the outputs are
compared, in which every NaN counts as the same NaN. An op or activation that one of the libraries
lacks is left out, and named.

Exit status: 0 all outputs are bitwise identical, 1 some differ (the first are printed), 2 wrong
usage or a build that failed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import os
import pathlib
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import tool_flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tf_bn_ops import spec  # noqa: E402
from tf_bn_ops.conformance.cases import generate  # noqa: E402
from tf_bn_ops.conformance.cases.case import Case  # noqa: E402
from tf_bn_ops.conformance.execution.implementations import request  # noqa: E402
from tf_bn_ops.conformance.models.formula_models import fill  # noqa: E402
from tf_bn_ops.spec.activations import snake  # noqa: E402

LIBRARY = pathlib.Path("tf_bn_ops/lib/libtf_bn_ops.so")
# What stands for the digest where a library has no such op or activation.
_ABSENT = "absent"
# Outputs that differ are printed up to this many.
_SHOWN = 20
# Elements of most cases: tails and folded rows are there. One of this many may have any number, up
# to some beyond the L2 of a core.
_SMALL, _WHOLE_EVERY = 1 << 13, 10


def cases(count: int, seed: int) -> Iterator[Case]:
    """`count` cases of every op, element type and layout, the same for the same arguments."""
    for op in spec.OPS.values():
        for dtype, layout in itertools.product(op.dtypes, op.layouts):
            combos = generate.combinations([op.name], [dtype], [layout])
            whole = -(-count // _WHOLE_EVERY)
            yield from generate.generate(count - whole, seed, combos, _SMALL)
            yield from generate.generate(whole, seed + 1, combos)


def _digest(outputs: Any) -> str:
    digest = hashlib.sha256()
    if not isinstance(outputs, tuple):  # One output.
        outputs = [outputs]
    lists = [output if isinstance(output, list) else [output] for output in outputs]
    for output in itertools.chain(*lists):
        array = output.numpy()
        nan = np.isnan(array)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.where(nan, np.zeros((), array.dtype), array).tobytes())
        digest.update(np.packbits(nan).tobytes())
    return digest.hexdigest()


def digests(count: int, seed: int) -> None:
    """Prints the digest of every case, a line each: what the child process does with the libraries
    that TF_BN_OPS_LIBRARY names."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    import tf_bn_ops

    tf.config.threading.set_intra_op_parallelism_threads(2)
    library = tf_bn_ops.load()
    for case in cases(count, seed):
        asked = request(case, fill(case))
        given, known = asked["attrs"], op_def_registry.get(case.spec.registered_name)
        allowed = {a.name: a.allowed_values.list.s for a in known.attr} if known else {}
        activation = given.get("activation_mode", "").encode()
        if known is None or activation not in (allowed.get("activation_mode") or [activation]):
            print(_ABSENT)
            continue
        tensors = {name: tf.constant(value) for name, value in asked["inputs"].items()}
        lists = {n: [tensors[n]] if n in tensors else [] for n in asked["lists"]}
        op = getattr(tf_bn_ops.raw_ops, case.op)
        if not allowed.keys() >= given.keys():  # An older op lacks an attr.
            op = getattr(library, f"tf_bn_ops_{snake(case.op)}")
            given = {name: value for name, value in given.items() if name in allowed}
        print(_digest(op(**{**tensors, **lists}, **given)))


def _run(library: pathlib.Path, count: int, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--digests", f"--cases={count}", f"--seed={seed}"]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    environment = {**os.environ, **quiet, "TF_BN_OPS_LIBRARY": str(library.parent)}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def compare(library: pathlib.Path, other: pathlib.Path, count: int, seed: int) -> int:
    """Runs both libraries side by side; prints what differs and a summary; the exit status."""
    ours, theirs = _run(library, count, seed), _run(other, count, seed)
    assert ours.stdout is not None and theirs.stdout is not None
    total = different = 0
    absent: dict[str, None] = {}
    for case in cases(count, seed):
        a, b = ours.stdout.readline(), theirs.stdout.readline()
        if not a or not b:
            print(f"error: a library did not survive case {case}", file=sys.stderr)
            return 2
        if _ABSENT in (a.strip(), b.strip()):
            absent[f"{case.op} {fill(case).attrs.get('activation_mode', '')}".strip()] = None
            continue
        total += 1
        if a != b:
            different += 1
            if different <= _SHOWN:
                print(f"differs: {case}")
    if absent:
        print(f"not in both libraries: {', '.join(absent)}")
    print(
        f"bitwise identical: {total - different} of {total} cases, up to {count} of each "
        "combination of op, element type and layout"
    )
    return int(different > 0)


def build(commit: str) -> pathlib.Path:
    """Builds the op library of another commit below build/; kept for the next time.

    Raises:
      RuntimeError: there is no such commit, or it does not build; one sentence.
    """

    def git(*arguments: str) -> bytes:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"REF={commit} is no commit of this repository: name one of git log")
        return done.stdout

    sha = git("rev-parse", "--short=12", "--verify", f"{commit}^{{commit}}").decode().strip()
    folder = ROOT / "build" / "bitwise" / sha
    if not (folder / LIBRARY).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(git("archive", sha))) as archive:
            archive.extractall(folder)
        dropped = ("MAKE", "MFLAGS", "TF_BN_OPS")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        command = ["make", "-C", str(folder), f"PYTHON={sys.executable}", "XLA=", "GPU="]
        if subprocess.run(command, env=environment, stdout=sys.stderr).returncode:
            raise RuntimeError(f"commit {sha} does not build; its output is above")
    return folder / LIBRARY


def main() -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--ref", help="the commit to compare with")
    parser.add_argument("--library", type=pathlib.Path, help="or an op library that is built")
    parser.add_argument("--cases", type=int, default=250, help="of each combination")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--digests", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.digests:
        digests(arguments.cases, arguments.seed)
        return 0
    if bool(arguments.ref) == bool(arguments.library):
        parser.error("name the commit with --ref, or a built op library with --library")
    try:
        other = arguments.library.resolve() if arguments.library else build(arguments.ref)
    except RuntimeError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return compare(ROOT / LIBRARY, other, arguments.cases, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
