"""The Python examples run, and show what they are there to show; those that measure or train for a
minute before a release."""

from __future__ import annotations

import itertools
import pathlib
import re
import subprocess

import forked
import pytest
from build_helpers import environment

from tf_bn_ops import _loader

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (ROOT / "examples").exists(), reason="needs the source tree"),
]


# Runs the script that is its first argument.
RUN_PATH = """
import pathlib, runpy, sys
sys.argv = sys.argv[1:]
sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment(PYTHONPATH=str(ROOT))
    return forked.run(RUN_PATH, ROOT / "examples" / name, *arguments, env=env, cwd=ROOT)


def example(name: str, *arguments: str) -> str:
    result = start(name, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


PROGRAMS = sorted(
    path.name for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text()
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_asked_for_help_it_starts_nothing(name):
    result = start(name, "--help")
    said = result.stdout + result.stderr
    assert "--help" in said and "Traceback" not in said
    assert not re.search(r"\d ?ms|MiB \||difference|^\|", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("sync_cost.py", "--workers=x"), "numbers of processes from 2 on"),
        (("fused_memory.py", "--batch=0"), "'0' is not a positive number"),
        (("fused_memory.py", "--network=Foo"), "keras.applications has no 'Foo'"),
        (("dropin_speed.py", "sideways"), "invalid choice"),
        (("wgan_gp.py", "--steps=1"), "unrecognized arguments: --steps=1"),
    ],
)
def test_wrong_values_are_one_sentence(arguments, sentence):
    name, *flags = arguments
    result = start(name, *flags)
    assert result.returncode != 0
    assert sentence in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.release
def test_digits_resnet_learns_alike():
    pytest.importorskip("sklearn", reason="needs scikit-learn (requirements/dev.txt)")
    lines = example("digits_resnet.py", "--epochs=1").splitlines()
    rows = [[float(word) for word in line.split()[1:]] for line in lines[1:-1]]
    assert len(rows) == 10
    # Rounding differs from the first step on and grows in training.
    assert rows[0][1] == pytest.approx(rows[0][0], rel=1e-4)
    for theirs, ours in rows:
        assert ours == pytest.approx(theirs, rel=0.05)
    assert rows[-1][1] < 0.8 * rows[0][1]


def test_raw_columns_are_normalized_rightly():
    """The program ends with 1 where an error of this library is above its bound."""
    assert example("raw_columns.py").count("± ") == 3


def test_wgan_gp_has_tensorflows_gradients():
    output = example("wgan_gp.py")
    differences = re.findall(r"difference (\S+)", output)
    assert len(differences) == 4
    assert all(float(difference) < 1e-3 for difference in differences), output


def test_second_derivatives_of_keras_are_wrong_and_ours_right():
    lines = example("keras_second_derivatives.py").splitlines()
    errors = {name.strip(): float(error) for name, error in (x.split(":") for x in lines[2:])}
    # In float64 too: it is the formula, not rounding.
    assert 0.03 < errors["Keras, float64"] < 0.05
    assert 0.03 < errors["Keras, float32"] < 0.05
    assert errors["tf_bn_ops, float32"] < 1e-5


# Milliseconds, how many times as fast, and lines of tables and of text.
TIME, FACTOR = r"\d+(\.\d)?", r" \(\d+\.\d\d\)"
RULE = r"\|[-|]+\|"
XLA = r".*TensorFlow .* ms, tf_bn_ops .* times as fast.*"
MEMORY = r"\| %s +\| +[1-9]\d* +\| +(?!0\.00)\d+\.\d\d +\|"
PRINTED = {
    "dropin_speed.py --quick": [
        r"\| layer, training +\| TensorFlow +\| with `activation` +\|", RULE,
        *[rf"\|[^|]+\| +{TIME} +\| +{TIME}{FACTOR} +\|"] * 4,
    ],
    "keras_speed.py --quick": [
        r"\| training +\| Keras +\| tf_bn_ops +\| with `activation` +\|", RULE,
        rf"\|[^|]+\| +{TIME} +\| +{TIME}{FACTOR} +\| +- +\|",
        rf"\|[^|]+\| +{TIME} +\| +{TIME}{FACTOR} +\| +{TIME}{FACTOR} +\|",
        rf"\|[^|]+\| +{TIME} +\| +{TIME}{FACTOR} +\| +- +\|",
    ],
    "fused_memory.py --network=MobileNetV2 --batch=1 --side=32": [
        r"\|.*\|", RULE, *(MEMORY % name for name in ("Keras", "tf_bn_ops", "with `fuse=True`")),
    ],
    **({"xla_speed.py --quick": [XLA] * 6} if _loader.build_info()["xla"] else {}),
    "second_order_speed.py --quick": [
        r".*TensorFlow \S+ ms, tf_bn_ops \S+ ms, \S+ times as fast.*",
        r".*TensorFlow \d+ MiB, tf_bn_ops \d+ MiB.*",
    ],
}  # fmt: skip


@pytest.mark.release
@pytest.mark.parametrize("command", PRINTED)
def test_what_measures_prints_what_the_docs_show(command):
    printed = example(*command.split()).splitlines()
    assert len(printed) == len(PRINTED[command]), printed
    for line, pattern in zip(printed, PRINTED[command], strict=True):
        assert re.fullmatch(pattern, line), line


def test_saved_model_trains_alike_after_each_rewriting():
    lines = example("saved_model.py").splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["2", "2"]
    curves = [[float(word) for word in line.split()[1:]] for line in lines[2:]]
    assert len(curves) == 3
    assert curves[0][-1] < curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[2] == curves[0]


@pytest.mark.release
def test_sync_speed_compares():
    for mirrored in ("--nomirrored", "--mirrored"):
        lines = example("sync_speed.py", "--quick", mirrored).splitlines()
        times = [float(line.split()[-2]) for line in lines[:4]]
        assert len(times) == 4 and all(time > 0 for time in times)
        assert "synchronisation costs a factor of" in lines[4]


@pytest.mark.release
def test_sync_cost_prints_a_model_of_larger_clusters():
    lines = example("sync_cost.py", "--quick", "--workers=2").splitlines()
    rows = [[float(word) for word in line.split()] for line in lines[-4:]]
    assert [row[0] for row in rows] == [2, 8, 64, 512]
    # ResNet-50: 8 bytes of 2 C + 1 and of 2 C numbers, in all layers, to one other worker.
    assert rows[0][1] == pytest.approx((2 * 26560 + 53) * 8 / 1e6, abs=0.06)
    assert all(later > earlier for earlier, later in itertools.pairwise(rows))


@pytest.mark.release
def test_sync_detector_is_trained_by_both_kinds():
    lines = example("sync_detector.py", "--steps=4", "--seeds=1").splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["not synchronised", "synchronised"]
    assert all(0 < float(line.split()[-3]) < 100 for line in lines[1:])
