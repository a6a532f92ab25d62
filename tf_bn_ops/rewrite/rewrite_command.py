"""Renames or fuses batch-norm ops in a SavedModel, a GraphDef file or a checkpoint's .meta file.

IN is a SavedModel folder, a GraphDef file (binary, or text if it ends in .pbtxt) or the .meta file
of a checkpoint, OUT a place that does not exist yet. Exit status: 0 written, 2 not, and why.
"""

from __future__ import annotations

import argparse
import os

from tf_bn_ops._command import UsageError


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--to", choices=["shim", "builtin"],
                     help="shim: the ops of tf_bn_ops; builtin: TensorFlow's")  # fmt: skip
    how.add_argument("--fuse", action="store_true",
                     help="fuse batch normalization with the addition and the activation "
                     "behind it, and say what is left as it is, and why")  # fmt: skip
    how.add_argument("--unfuse", action="store_true",
                     help="the way back from --fuse, with the batch-norm ops of tf_bn_ops; "
                     "--to builtin goes on to TensorFlow's")  # fmt: skip
    parser.add_argument("--gradients-only", action="store_true",
                        help="with --to shim: leave the forward ops as they are, so that graphs "
                        "that only infer go on loading without tf_bn_ops")  # fmt: skip
    parser.add_argument("--keep", type=lambda text: text.split(","), default=[], metavar="NAMES",
                        help="with --fuse: names of nodes that must stay, beside those of "
                        "signatures and collections")  # fmt: skip


def execute(flags: argparse.Namespace) -> int:
    """Rewrites from the first path to the second, and says what was done."""
    if flags.keep and not flags.fuse:
        raise UsageError("--keep goes with --fuse: renaming removes no node")
    if flags.gradients_only and flags.to != "shim":
        raise UsageError("--gradients-only goes with --to shim: to builtin all ops are renamed")
    # Nothing of TensorFlow's start concerns the user here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorflow import errors

    try:
        print(f"{flags.target}: {_rewritten(flags)}")
    except (errors.OpError, ValueError) as error:
        raise UsageError(str(error)) from error
    return 0


def _rewritten(flags: argparse.Namespace) -> str:
    """Rewrites by the flags; says what was done."""
    from tf_bn_ops import rewrite
    from tf_bn_ops.rewrite import _fuse

    places = flags.source, flags.target
    if flags.fuse:
        _, fusions = rewrite._fused(*places, flags.keep)
        return _fuse.summary(fusions)
    if flags.unfuse:
        count = rewrite.unfuse(*places)
        return f"{count} node{'' if count == 1 else 's'} unfused"
    if flags.to == "shim":
        count = rewrite.to_shim(*places, gradients_only=flags.gradients_only)
    else:
        count = rewrite.to_builtin(*places)
    return f"{count} node{'' if count == 1 else 's'} renamed"
