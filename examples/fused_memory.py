"""The memory of a training step of a network of Keras: with its batch norm, ours, and ours fused.

    python examples/fused_memory.py [--network=ResNet50] [--batch=16] [--side=160]

Each kind trains in a process of its own. Prints the growth of the peak resident set size from
before the first step until after the third, in MiB, and that of each kind over Keras'.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

KINDS = ("Keras", "tf_bn_ops", "with `fuse=True`")
STEPS = 3
# malloc returns what is freed at once, so that the peak is that of what is in use.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, network: str, batch: int, side: int) -> float:
    """MiB that the peak grows by in training steps of one kind, in this process."""
    import keras
    import tensorflow as tf

    import tf_bn_ops
    from tf_bn_ops.keras import replace_batch_norm

    if not callable(getattr(keras.applications, network, None)):
        sys.exit(f"error: keras.applications has no {network!r}: name one of its functions")
    model = getattr(keras.applications, network)(weights=None, input_shape=(side, side, 3))
    if kind != KINDS[0]:
        replace_batch_norm(model)
    if kind == KINDS[2]:
        tf_bn_ops.enable(kernels=False, keras=False)
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", jit_compile=False)
    images = tf.random.normal([batch, side, side, 3])
    labels = tf.random.uniform([batch], 0, 1000, tf.int32)
    before = peak_mib()
    for _ in range(STEPS):
        model.train_on_batch(images, labels)
    return peak_mib() - before


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory of a training step by kind.")
    parser.add_argument("--network", default="ResNet50", help="a function of keras.applications")
    parser.add_argument("--batch", type=_positive, default=16)
    parser.add_argument("--side", type=_positive, default=160, help="of the images, in pixels")
    parser.add_argument("--kind", choices=KINDS, help="one kind, in this process")
    args = parser.parse_args()
    if args.kind:
        print(measure(args.kind, args.network, args.batch, args.side))
        return
    given = [f"--network={args.network}", f"--batch={args.batch}", f"--side={args.side}"]
    print(f"| {args.network}, {args.batch} images of {args.side} x {args.side} | MiB | share |")
    print("|---|---|---|")
    theirs = None
    for kind in KINDS:
        command = [sys.executable, __file__, *given, f"--kind={kind}"]
        done = subprocess.run(
            command, env={**os.environ, **MALLOC}, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"error: the process of {kind} failed")
        mib = float(done.stdout.split()[-1])
        theirs = theirs or mib
        print(f"| {kind} | {mib:.0f} | {mib / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
