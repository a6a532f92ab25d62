"""Renames or fuses batch-norm ops in a SavedModel, a GraphDef file or a checkpoint's .meta file.

usage: python -m tf_bn_ops rewrite IN OUT --to shim|builtin [--gradients_only]
       python -m tf_bn_ops rewrite IN OUT --fuse [--keep=NAME,...] | --unfuse

IN is a SavedModel folder, a GraphDef file (binary, or text if it ends in .pbtxt) or the .meta file
of a checkpoint, OUT a place that does not exist yet. Exit status: 0 written, 2 not, and why.
"""

from __future__ import annotations

import os

from absl import flags

from tf_bn_ops import _command
from tf_bn_ops._command import UsageError

_FLAGS = flags.FlagValues()
flags.DEFINE_enum(
    "to", None, ["shim", "builtin"],
    "shim: the ops of tf_bn_ops; builtin: those of TensorFlow.", flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_bool(
    "gradients_only", False,
    "With --to shim: leave the forward ops as they are, so that graphs that only infer go on "
    "loading without tf_bn_ops.", flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_bool(
    "fuse", False,
    "Fuse batch normalization with the addition and the activation behind it, forward and "
    "backward, and say what is left as it is, and why.", flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_bool(
    "unfuse", False,
    "The way back from --fuse, with the batch-norm ops of tf_bn_ops; --to builtin goes on to those "
    "of TensorFlow.", flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_list(
    "keep", [],
    "With --fuse: names of nodes that must stay, beside those of signatures and collections.",
    flag_values=_FLAGS,
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    paths: list[str] = []
    return _command.run(argv, __doc__, _FLAGS, lambda: _rewrite(paths), (ValueError,), paths)


def _rewrite(paths: list[str]) -> int:
    """Rewrites from the first path to the second, and says what was done."""
    if len(paths) != 2 or (_FLAGS.to is not None) + _FLAGS.fuse + _FLAGS.unfuse != 1:
        raise UsageError("name IN and OUT, and one of --to, --fuse and --unfuse (--help says more)")
    if _FLAGS.keep and not _FLAGS.fuse:
        raise UsageError("--keep goes with --fuse: renaming removes no node")
    if _FLAGS.gradients_only and _FLAGS.to != "shim":
        raise UsageError("--gradients_only goes with --to shim: to builtin all ops are renamed")
    # Nothing of TensorFlow's start concerns the user here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorflow import errors

    try:
        print(f"{paths[1]}: {_rewritten(*paths)}")
    except errors.OpError as error:
        raise UsageError(str(error)) from error
    return 0


def _rewritten(source: str, target: str) -> str:
    """Rewrites by the flags; says what was done."""
    from tf_bn_ops import rewrite
    from tf_bn_ops.rewrite import _fuse

    if _FLAGS.fuse:
        _, fusions = rewrite._fused(source, target, _FLAGS.keep)
        return _fuse.summary(fusions)
    if _FLAGS.unfuse:
        count = rewrite.unfuse(source, target)
        return f"{count} node{'' if count == 1 else 's'} unfused"
    if _FLAGS.to == "shim":
        count = rewrite.to_shim(source, target, gradients_only=_FLAGS.gradients_only)
    else:
        count = rewrite.to_builtin(source, target)
    return f"{count} node{'' if count == 1 else 's'} renamed"
