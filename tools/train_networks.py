"""Whole networks, three training steps: Keras alone and this library, each against float64.

    make networks                                   all of keras.applications and, where it is
                                                    installed, backbones of keras-hub: an hour
    make networks ARGS="ResNet50 DenseNet121"       some
    make networks ARGS="--record --part=1/10"       every tenth; results are kept and the table of
                                                    docs/evidence.md is written

Each network is built at the smallest input size that it takes, without dropout, with weights that
tests/distances.py sets, and gets two images. One without batch normalization is not trained. Four
processes compute it: Keras in float64, Keras, Keras under TF_BN_OPS=1, and Keras after
`replace_batch_norm`. tests/distances.py has the rule.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, os.path.join(sys.path[0], "tests"))

import backbones
import distances
import evidence
import numpy as np
import tool_flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Below, the last maps have one pixel, and Keras' own rounding is as large as its gradients.
SIZES = (64, 71, 75, 96, 128, 224, 331)
STEPS, BATCH, CLASSES = 3, 2, 10
RATE, CLIP = 0.1, 1.0
SIDES = ("float64", "keras", "switch", "replaced")
LONGEST = 1800.0


def names() -> list[str]:
    """The constructors of keras.applications, and the backbones if keras-hub is here."""
    import importlib.util
    import inspect

    import keras

    found = [n for n, f in vars(keras.applications).items() if inspect.isfunction(f)]
    hub = backbones.BACKBONES if importlib.util.find_spec("keras_hub") else {}
    return [*found, *(f"keras_hub.{name}" for name in hub)]


def build(name: str) -> Any:
    """The network at the smallest input size that it takes."""
    import keras

    if name.startswith("keras_hub."):
        return backbones.build(*backbones.BACKBONES[name.partition(".")[2]])
    for size in SIZES:
        try:
            return getattr(keras.applications, name)(
                weights=None,
                input_shape=(size, size, 3),
                classes=CLASSES,
                classifier_activation=None,  # A softmax that is 0 or 1 would show nothing.
            )
        except ValueError as error:
            refusal = error
    raise refusal


def leave_out_dropout(model: Any) -> None:
    """Draws of random numbers are others in float64."""
    for layer in model._flatten_layers():
        if any(word in type(layer).__name__ for word in ("Dropout", "DropPath", "StochasticDepth")):
            layer.rate = 0.0


class Network:
    """A network in this process, and what three steps of it compute."""

    def __init__(self, name: str, model: Any) -> None:
        import keras
        import tensorflow as tf

        leave_out_dropout(model)
        self.model = model
        rng = np.random.default_rng(len(name))
        self.images = rng.uniform(0, 255, (BATCH, *model.input_shape[1:])).astype("float32")
        if not any(isinstance(x, keras.layers.Rescaling) for x in model._flatten_layers()):
            self.images = self.images / np.float32(127.5) - 1
        self.optimizer = keras.optimizers.SGD(RATE, global_clipnorm=CLIP)
        self.optimizer.build(model.trainable_variables)
        shapes = [y.shape[1:] for y in tf.nest.flatten(model.output)]
        targets = [tf.constant(rng.normal(size=(BATCH, *s)), model.compute_dtype) for s in shapes]

        @tf.function(autograph=False)
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                outputs = tf.nest.flatten(model(x, training=True))
                pairs = zip(outputs, targets, strict=True)
                loss = tf.add_n([tf.reduce_mean(tf.square(y - t)) for y, t in pairs])
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply(gradients, variables)
            return loss, gradients

        self.step = step
        self.predict = tf.function(lambda x: model(x, training=False), autograph=False)

    def run(self, images: np.ndarray) -> distances.Values:
        import tensorflow as tf

        distances.set_weights(self.model, 1)
        x = tf.constant(images, self.model.compute_dtype)
        losses = []
        for number in range(STEPS):
            loss, gradients = self.step(x)
            losses.append(distances.as_float64(loss))
            if number == 0:
                first = [distances.as_float64(g) for g in gradients if g is not None]
        weights, statistics = distances.split_weights(self.model)
        predictions = [distances.as_float64(y) for y in tf.nest.flatten(self.predict(x))]
        return dict(
            zip(distances.KINDS, (losses, first, weights, statistics, predictions), strict=True)
        )


def side(side: str, name: str, folder: pathlib.Path) -> dict[str, Any]:
    """What a process computes: float64 writes its values, the others say how far they are off."""
    import keras
    import tensorflow

    import tf_bn_ops

    if side == "float64":
        keras.config.set_floatx("float64")
        # Tracing takes most of a network's time, and any order of operations is a reference. The
        # small backbones have grouped convolutions, whose gradients TensorFlow has in graphs alone.
        tensorflow.config.run_functions_eagerly(not name.startswith("keras_hub."))
    if side == "switch":
        assert tf_bn_ops.report().since, "recording begins"
    network = Network(name, build(name))
    model = network.model
    norms = [x for x in model._flatten_layers() if isinstance(x, keras.layers.BatchNormalization)]
    versions = f"Keras {keras.__version__}, TensorFlow {tensorflow.__version__}"
    found: dict[str, Any] = {"size": model.input_shape[1], "norms": len(norms)}
    found["versions"] = versions
    if not norms:
        return found
    if side == "replaced":
        tf_bn_ops.keras.replace_batch_norm(model)
        found["kept"] = tf_bn_ops.keras.batch_norm_report(model).unfused
    number = 1 + distances.NUDGES if side == "keras" else 1
    values = distances.runs(network.run, network.images, number)
    if side == "float64":
        for kind, arrays in values[0].items():
            np.savez(folder / kind, *arrays)
        return found
    want = {}
    for kind in distances.KINDS:
        with np.load(folder / f"{kind}.npz") as file:
            want[kind] = [file[f"arr_{i}"] for i in range(len(file.files))]
    found["distances"] = [distances.distances(each, want) for each in values]
    if side == "switch":
        report = tf_bn_ops.report()
        found["fused"] = collections.Counter(place.direction for place in report.fused)
        found["stayed"] = collections.Counter(
            f"{place.direction} {place.reason}".strip() for place in report.stayed
        )
        found["kernels"] = sum(call.calls for call in report.calls)
    return found


def child(which: str, name: str, folder: pathlib.Path) -> dict[str, Any]:
    path = [str(ROOT / "tf_bn_ops" / "_children"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    if which == "switch":
        variables["TF_BN_OPS"] = "1"
    command = [sys.executable, __file__, f"--side={which}", f"--folder={folder}", name]
    ended = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LONGEST
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{which}: {ended.stderr.strip().splitlines()[-1]}")
    return json.loads(ended.stdout.splitlines()[-1])


def compared(name: str) -> dict[str, Any]:
    """The row of a network."""
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        compute = functools.partial(child, name=name, folder=pathlib.Path(scratch))
        reference, *others = SIDES
        found = {reference: compute(reference)}
        if not found[reference]["norms"]:
            return found[reference]
        # Two at a time: most of it is tracing, by one thread of Python.
        found |= zip(others, pool.map(compute, others), strict=True)
    keras, unit = found["keras"]["distances"], 2.0**-24
    row: dict[str, Any] = {key: found["keras"][key] for key in ("versions", "size", "norms")}
    row["keras"] = keras
    for which in ("switch", "replaced"):
        row[which] = distances.ratios(found[which]["distances"][0], keras, unit)
    row["fused"], row["stayed"] = found["switch"]["fused"], found["switch"]["stayed"]
    row["kernels"], row["kept"] = found["switch"]["kernels"], found["replaced"]["kept"]
    return row


def faults(row: dict[str, Any]) -> list[str]:
    """What is further from float64 than the rule allows, and norms that no kernel computed."""
    if not row["norms"]:
        return []
    found = [
        f"{which}: {kind} {ratio:.1f} times as far from float64 as Keras'"
        for which in ("switch", "replaced")
        for kind, ratio in row[which].items()
        if not ratio <= distances.LARGEST
    ]
    if not row["kernels"]:
        found.append("switch: no kernel of this library was called")
    return found


def table(rows: evidence.Rows) -> str:
    """The table of docs/evidence.md."""
    cells = []
    for name, row in rows.items():
        if "keras" not in row:
            said = f"**{row['wrong'][0]}**" if row["wrong"] else "it has none to train"
            known = [str(row.get(key, "-")) for key in ("size", "norms")]
            cells.append([name, *known, "-", "-", "-", said])
            continue
        worst = [max(row[which].values()) for which in ("switch", "replaced")]
        stayed: collections.Counter[str] = collections.Counter()
        for why, number in row["stayed"].items():
            if "Keras' formula is" not in why:  # Of nodes the last part of the name.
                stayed[re.sub(r"\S+/", "", why)] += number
        refused = "; ".join(f"{n} {why}" for why, n in stayed.items())
        fused = f"{row['fused'].get('forward', 0)}, {row['fused'].get('backward', 0)}"
        said = "; ".join(row["wrong"]) or refused or "-"
        ratios = [f"{ratio:.2f}" for ratio in worst]
        cells.append([name, f"{row['size']}", f"{row['norms']}", fused, *ratios, said])
    columns = ["network", "input", "norms", "fused", "`TF_BN_OPS=1`", "replaced", "stayed"]
    return evidence.as_table(columns, cells)


def main() -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("names", nargs="*", help="networks; all if there are none")
    parser.add_argument(
        "--part", type=tool_flags.part, default="1/1", help="K/N: the K-th of every N networks"
    )
    parser.add_argument("--record", action="store_true", help="keep results, write the table")
    parser.add_argument("--side", choices=SIDES, help="of a child")
    parser.add_argument("--folder", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(side(arguments.side, arguments.names[0], arguments.folder)))
        return 0
    failed = 0
    for name in (arguments.names or names())[arguments.part]:
        try:
            row = compared(name)
            wrong = faults(row)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            row, wrong = {}, [str(error)]
        worst = {w: f"{max(row[w].values()):.2f}" for w in ("switch", "replaced") if w in row}
        print(name, worst, *wrong, sep="\n  " if wrong else " ", flush=True)
        failed += bool(wrong)
        if arguments.record:
            evidence.record("networks", {name: {**row, "wrong": wrong}}, table)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
