"""Holds the kernels of this tree against those of another commit: every output bitwise identical.

    make bitwise-against REF=<commit>            builds the commit in a folder below build/
    python tools/bitwise_against.py --library=PATH [--cases=500] [--seed=1]

For every op, element type and layout of the specs, `--cases` random calls: shapes from one
element to a million, both modes, ordinary numbers and numbers with infinities, NaN, subnormals and
large offsets. Each library runs in a process of its own, on the same inputs, with 2 threads.
Digests of the outputs are compared, in which every NaN counts as the same NaN. An op that one of
the libraries lacks is left out, and named.

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
from typing import Any, NamedTuple

import numpy as np
import tool_flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tf_bn_ops import spec  # noqa: E402

LIBRARY = pathlib.Path("tf_bn_ops/lib/libtf_bn_ops.so")
# What stands for the digest where a library has no such op.
_ABSENT = "absent"
# Outputs that differ are printed up to this many.
_SHOWN = 20
# Elements of a case: most small, where tails and folded rows are; some beyond the L2 of a core.
_SMALL, _LARGE = 1 << 13, 1 << 20
_LARGE_EVERY = 50


class Case(NamedTuple):
    """One call; `name` says it all."""

    op: spec.OpSpec
    dtype: str
    layout: str
    shape: tuple[int, ...]
    is_training: bool
    kind: str
    seed: int

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.shape))
        mode = "training" if self.is_training else "frozen"
        return f"{self.op.name},{self.dtype},{self.layout},{shape},{mode},{self.kind},{self.seed}"


def cases(count: int, seed: int) -> Iterator[Case]:
    """`count` cases of every op, element type and layout, the same for the same arguments."""
    for op in spec.OPS.values():
        for dtype in op.dtypes:
            for layout in op.layouts:
                for i in range(1, count + 1):
                    rng = np.random.default_rng([seed, i, *f"{op.name}{dtype}{layout}".encode()])
                    yield Case(
                        op=op,
                        dtype=dtype,
                        layout=layout,
                        shape=_shape(rng, layout, _SMALL if i % _LARGE_EVERY else _LARGE),
                        is_training=bool(rng.integers(2)) or op.modes == ("training",),
                        kind=str(rng.choice(("normal", "normal", "offset", "special"))),
                        seed=i,
                    )


def _shape(rng: np.random.Generator, layout: str, most: int) -> tuple[int, ...]:
    """A shape of at most `most` elements; sizes are log-uniform, in random order."""
    rank, channels_last = spec.LAYOUTS[layout]
    left, sizes = float(most), []
    for _ in range(rank):
        sizes.append(int(np.exp(rng.uniform(0, np.log(left)))))
        left /= sizes[-1]
    rng.shuffle(sizes)
    if channels_last and rng.random() < 0.5:  # Common channel counts, which need no tail.
        sizes[-1] = int(rng.choice((1, 3, 16, 32, 64)))
    return tuple(sizes)


def inputs(case: Case) -> dict[str, Any]:
    """The inputs of a case by the op's names; of a list of tensors, none or one."""
    rng = np.random.default_rng([case.seed, *case.name.encode()])
    channels = case.shape[spec.channel_axis(case.layout)]
    result: dict[str, Any] = {}
    for arg in case.op.inputs:
        is_view = arg.kind in (spec.VIEW, spec.VIEW_LIST)
        if arg.role == "forward_coefficients":  # Every second time there are none.
            rows = spec.ops.NUM_FORWARD_COEFFICIENTS * int(rng.integers(2))
            result[arg.name] = rng.standard_normal((rows, channels)).astype(np.float32)
            continue
        shape = case.shape if is_view else () if arg.kind == spec.COUNT else (channels,)
        values = rng.standard_normal(shape)
        if case.kind == "offset" and is_view:
            values += 1000
        if case.kind == "special" and is_view:
            special = rng.choice((np.inf, -np.inf, np.nan, 1e-40, 6e-8, 0.0), shape)
            values = np.where(rng.random(shape) < 0.01, special, values)
        if arg.role in ("variance", "count"):
            values = np.abs(values)
        statistics = case.op.statistics_choices(case.dtype)[0]
        name = case.op.type_of(arg, case.dtype, statistics)
        with np.errstate(all="ignore"):
            result[arg.name] = values.astype(spec.DTYPES[name].numpy)
        if arg.kind == spec.VIEW_LIST:
            result[arg.name] = [result[arg.name]][: case.seed % 2]
    return result


def attrs(case: Case) -> dict[str, Any]:
    """The attrs of a case, of those that its op has."""
    rng = np.random.default_rng([case.seed, *case.name.encode(), 1])
    values = {
        "epsilon": 1e-3,
        "data_format": case.layout,
        "is_training": case.is_training,
        "exponential_avg_factor": (1.0, 0.1)[rng.integers(2)],
        "activation_mode": case.op.activations[rng.integers(len(case.op.activations))],
        "bessel_correction": bool(rng.integers(2)),
        "num_side_inputs": int(rng.integers(2)),
        "axis": spec.channel_axis(case.layout),
    }
    if case.op.formula in spec.ops.PARTS:  # What follows a side input needs y.
        values["num_side_inputs"] = case.seed % 2
    return {name: value for name, value in values.items() if name in case.op.attrs}


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

    import tf_bn_ops

    tf.config.threading.set_intra_op_parallelism_threads(2)
    library = tf_bn_ops.load()
    for case in cases(count, seed):
        if not hasattr(library, case.op.registered_name.replace(">", "_")):
            print(_ABSENT)
            continue
        op = getattr(tf_bn_ops.raw_ops, case.op.name)
        tensors = {
            name: [tf.constant(v) for v in value] if isinstance(value, list) else tf.constant(value)
            for name, value in inputs(case).items()
        }
        print(_digest(op(**tensors, **attrs(case))))


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
            print(f"error: a library did not survive case {case.name}", file=sys.stderr)
            return 2
        if _ABSENT in (a.strip(), b.strip()):
            absent[case.op.name] = None
            continue
        total += 1
        if a != b:
            different += 1
            if different <= _SHOWN:
                print(f"differs: {case.name}")
    combinations = total // count
    if absent:
        print(f"not in both libraries: {', '.join(absent)}")
    print(
        f"bitwise identical: {total - different} of {total} cases, {count} of each of "
        f"{combinations} combinations of op, element type and layout"
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
    parser.add_argument("--cases", type=int, default=500, help="of each combination")
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
