"""The benchmark: its shapes, statistics, verification, files, and one short run end to end."""

import dataclasses
import json
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from tf_bn_ops import _loader, spec
from tf_bn_ops.bench import (
    against,
    bench_command,
    bench_rows,
    data,
    implementations,
    results,
    stats,
)
from tf_bn_ops.bench.execution import (
    memory,
    networks,
    timing_process,
    timing_rounds,
    timing_workers,
    verify,
)
from tf_bn_ops.bench.implementations import jax_ops
from tf_bn_ops.bench.reports import plots, recorded_run, report, text_table
from tf_bn_ops.harness import c_abi, machine, oracle, problems


def _row(shape=(2, 3, 4, 5), layout="NHWC", dtype="float32", mode="training", section="gradient"):
    return bench_rows.Row(section, "given", shape, layout, dtype, mode, 1)


# ---- Shapes ------------------------------------------------------------------------------------


def test_networks_have_distinct_shapes_at_their_batch():
    for network, known in bench_rows.NETWORKS.items():
        assert len(set(known)) == len(known), network
    assert len(bench_rows.NETWORKS["resnet50"]) == 9
    assert len(bench_rows.NETWORKS["mobilenetv2"]) == 19
    assert {shape[0] for n in ("resnet50", "mobilenetv2") for shape in bench_rows.NETWORKS[n]} == {
        32
    }
    assert {len(shape) for shape in bench_rows.NETWORKS["unet3d"]} == {5}
    assert set(bench_rows.NETWORKS["odd"]) == {(32, 224, 224, 3), (4096, 1, 1, 256), (2, 4, 4, 8)}
    everything = {shape for known in bench_rows.NETWORKS.values() for shape in known}
    assert set(bench_rows.QUICK) <= everything


def test_a_full_run_has_every_combination():
    chosen = bench_rows.choose([], quick=False)
    for call in bench_rows.CALLS:
        modes = 2 if call == "gradient" else 1
        rows = bench_rows.rows_of_call(
            call, chosen, bench_rows.DTYPES, tuple(spec.DATA_FORMATS), spec.MODES, threads=2
        )
        assert len(rows) == len(set(rows)) == len(chosen) * 3 * 2 * modes
        assert {row.layout for row in rows} == set(spec.DATA_FORMATS)
        assert {row.call for row in rows} == {call}


def test_dims_and_views():
    last, first = _row(), _row(layout="NCHW")
    assert last.dims == (2, 3, 4, 5) and last.view == (24, 5, 1)
    assert first.dims == (2, 5, 3, 4) and first.view == (2, 5, 12)
    assert _row((2, 3, 4, 6, 5), "NCDHW").view == (2, 5, 72)
    assert _row(dtype="half").bytes == 3 * 120 * 2
    assert _row(section="forward").bytes == 2 * 120 * 4
    assert _row(section="layer").bytes == 5 * 120 * 4
    assert _row(section="layer_relu").bytes == 5 * 120 * 4, "the mask comes from x"
    assert _row(section="layer_add_relu").bytes == 8 * 120 * 4
    assert _row(section="latency").call == "gradient"


def test_a_side_input_is_of_the_addition_alone():
    for call in bench_rows.CALLS:
        added = ("side_input",) if call == "layer_add_relu" else ()
        assert _row(section=call).inputs == ("y_backprop", "x", *added)


def test_shapes_are_chosen_by_network_or_size():
    assert bench_rows.choose(["dcgan", "8x3x3x7", "2x4x4x8"], quick=False) == [
        *(("dcgan", shape) for shape in bench_rows.NETWORKS["dcgan"]),
        ("given", (8, 3, 3, 7)),
        ("odd", (2, 4, 4, 8)),
    ]
    with pytest.raises(bench_rows.ShapeError, match="'alexnet' is no network"):
        bench_rows.choose(["alexnet"], quick=False)


def test_scaling_series():
    rows = bench_rows.scaling_rows(("NHWC", "NCHW"), 2)
    elements = [row.elements for row in rows if row.section == "elements"]
    assert 900 < min(elements) <= 1000 and 0.99e8 < max(elements) <= 1e8
    assert {row.channels for row in rows if row.section == "channels"} == set(bench_rows.CHANNELS)
    assert bench_rows.thread_counts(1) == [1]
    assert bench_rows.thread_counts(2) == [1, 2]
    assert bench_rows.thread_counts(6) == [1, 2, 4, 6]


def test_inputs_beyond_the_llc_are_read_twice_channels_last_in_training():
    big, small = _row((32, 112, 112, 64)), _row((32, 14, 14, 64))
    llc = 32 << 20
    assert timing_rounds.passes(big, llc) == (4, 1)
    assert timing_rounds.passes(small, llc) == (2, 1)
    assert timing_rounds.passes(_row((32, 112, 112, 64), mode="frozen"), llc) == (2, 1)
    assert timing_rounds.passes(_row((32, 112, 112, 64), "NCHW"), llc) == (2, 1)
    for row, forward, layer in ((big, (2, 1), (6, 2)), (small, (1, 1), (3, 2))):
        assert timing_rounds.passes(dataclasses.replace(row, section="forward"), llc) == forward
        assert timing_rounds.passes(dataclasses.replace(row, section="layer"), llc) == layer
    # A forward call has one input, which fits where the two of the gradient do not.
    medium = dataclasses.replace(_row((32, 56, 56, 64)), section="layer")
    assert timing_rounds.traffic(medium, llc) == ("1r1w", "2r1w", "2r")
    # The mask of ReLU moves nothing; behind an addition there are the side input, its gradient, y.
    for row in (big, small, medium):
        layer, relu = (dataclasses.replace(row, section=s) for s in ("layer", "layer_relu"))
        assert timing_rounds.traffic(relu, llc) == timing_rounds.traffic(layer, llc)
    add = dataclasses.replace(small, section="layer_add_relu")
    assert timing_rounds.traffic(add, llc) == ("2r1w", "2r1w", "1r1w")
    assert timing_rounds.passes(add, llc) == (5, 3)
    assert timing_rounds.passes(dataclasses.replace(big, section="layer_add_relu"), llc) == (8, 3)


class _FakeBandwidth:
    """Answers as the worker of memory bandwidth: 100 µs for a tensor that is read or written."""

    name, entry = "memory_bandwidth", implementations.ENTRIES["memory_bandwidth"]

    def ask(self, method, *arguments):
        if method == "prepare_bandwidth":
            self._kinds = set(arguments[1])
        if method == "time":
            sizes = {kind: int(kind[0]) + kind.endswith("w") for kind in self._kinds}
            return {kind: [size * 1e-4] * 2 for kind, size in sizes.items()}
        return None


@pytest.mark.parametrize("call", bench_rows.CALLS)
def test_the_limit_counts_every_pass(call):
    row = _row((4, 6, 5, 9), section=call)
    workers_ = [_FakeWorker("tf_bn_ops"), _FakeBandwidth()]
    limit = (
        timing_rounds.Meter(workers_, timing_rounds.Budget(0.01, 3), 32 << 20).measure(row).limit
    )
    assert (limit.reads + limit.writes) * row.tensor_bytes == row.bytes
    assert limit.us == pytest.approx(100 * (limit.reads + limit.writes))


# ---- Numbers -----------------------------------------------------------------------------------


def test_statistics_helpers():
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert stats.percentile(values, 0.5) == 3
    assert stats.percentile([1.0, 2.0], 0.25) == 1.25
    spread = stats.spread(values)
    assert (spread.median, spread.samples) == (3, 5)
    assert spread.p10 == pytest.approx(1.4) and spread.p90 == pytest.approx(4.6)
    assert stats.geometric_mean([2, 8]) == pytest.approx(4)
    assert stats.geometric_mean([]) is None
    with pytest.raises(ValueError):
        stats.percentile([], 0.5)


def test_times_have_a_unit():
    assert [text_table.time_text(us) for us in (2e6, 12300, 12.34)] == ["2 s", "12.3 ms", "12.3 µs"]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", bench_rows.DTYPES)
def test_some_channels_are_those_of_the_whole(layout, dtype):
    row = _row((7, 30, 31, 13), layout, dtype)
    whole = data.flat("x", dtype, row.elements).reshape(row.view)
    channels = np.array([0, 4, 12])
    some = data.channels_of("x", dtype, row.view, channels)
    assert np.array_equal(some.view(np.uint8), whole[:, channels].view(np.uint8))
    assert not np.array_equal(whole, data.flat("y_backprop", dtype, row.elements).reshape(row.view))


def test_the_pool_repeats():
    assert data.flat("x", "half", data._PERIOD + 3)[-3:].tolist() == (
        data.flat("x", "half", 3).tolist()
    )


# ---- Verification ------------------------------------------------------------------------------


def _tensors(row):
    """The tensors of a row in float64."""
    return {
        role: data.flat(role, row.dtype, row.elements).reshape(row.view).astype(np.float64)
        for role in row.inputs
    }


def _forward(row, chain=False):
    """The forward outputs of all channels, as a correct op in training would round them; `chain`:
    as ops one after the other would."""
    tensors, given = _tensors(row), data.statistics(row.channels)
    x, dtype = tensors["x"], spec.DTYPES[row.dtype].numpy
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    count = x.shape[0] * x.shape[2]
    rstd = 1 / np.sqrt(variance + np.float32(data.EPSILON))
    y = (x - mean[:, None]) * (given["scale"] * rstd)[:, None] + given["offset"][:, None]
    if chain:
        y = y.astype(dtype).astype(np.float64)
    if "side_input" in tensors:
        y += tensors["side_input"]
    if row.activated:
        y = np.maximum(y, 0)
    return {
        "y": y.astype(dtype),
        "batch_mean": mean.astype(np.float32),
        "batch_variance": (variance * count / (count - 1)).astype(np.float32),
        "saved_mean": mean.astype(np.float32),
        "saved_variance": variance.astype(np.float32),
    }


def _gradient(row, **given):
    """The outputs of the gradient, likewise; `given` replaces statistics and y_backprop."""
    values = {**data.statistics(row.channels), **given}
    for role in ("y_backprop", "x"):
        found = values.get(role, data.flat(role, row.dtype, row.elements))
        values[role] = found.reshape(row.dims)
    epsilon = float(np.float32(data.EPSILON))
    problem = problems.of_tensors(values, row.layout, epsilon, row.mode == "training")
    exact = oracle.Oracle(problem)
    return {
        "x_backprop": exact.x_backprop().reshape(row.view).astype(spec.DTYPES[row.dtype].numpy),
        "scale_backprop": exact.scale_backprop.astype(np.float32),
        "offset_backprop": exact.offset_backprop.astype(np.float32),
    }


def _right(row, chain=False):
    """The outputs of the row's call by role, as a worker answers."""
    if row.call == "gradient":
        return _gradient(row)
    forward = _forward(row, chain)
    if row.call == "forward":
        return forward
    return {**forward, **_behind(row, forward, forward["y"] > 0)}


def _behind(row, forward, mask):
    """The gradients of a layer for the statistics of its forward call and, with ReLU, a mask."""
    given = {"mean": forward["saved_mean"], "variance": forward["saved_variance"]}
    if not row.activated:
        return _gradient(row, **given)
    y_backprop = data.flat("y_backprop", row.dtype, row.elements).reshape(row.view)
    masked = np.where(mask, y_backprop, np.zeros_like(y_backprop))
    side = {"side_input_backprop": masked} if "side_input" in row.inputs else {}
    return {**_gradient(row, **given, y_backprop=masked), **side}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("dtype", bench_rows.DTYPES)
def test_verification_tells_right_from_wrong(layout, mode, dtype):
    row = _row((4, 6, 5, 9), layout, dtype, mode)
    verifier = verify.Verifier(row)
    assert len(verifier.channels) == row.channels
    right = _right(row)
    for profile in ("strict", "textbook"):
        assert verifier.judge(right, profile).wrong is None
    other = _row((4, 6, 5, 9), layout, dtype, "frozen" if mode == "training" else "training")
    dx = right["x_backprop"]
    spoiled = {
        "the other mode": {"x_backprop": _right(other)["x_backprop"]},
        "x_backprop of zeros": {"x_backprop": np.zeros_like(dx)},
        "one element": {"x_backprop": dx.copy()},
        "not a number": {"x_backprop": dx.copy()},
        "scale_backprop": {"scale_backprop": right["scale_backprop"] * 1.01},
        "offset_backprop": {"offset_backprop": right["offset_backprop"] * 1.01},
        "a float64 result": {"x_backprop": dx.astype(np.float64)},
        "a channel too few": {"x_backprop": dx[:, 1:]},
    }
    spoiled["one element"]["x_backprop"].flat[17] += 1
    spoiled["not a number"]["x_backprop"].flat[17] = np.nan
    _assert_wrong(verifier, right, spoiled)
    assert "scale_backprop is missing" in verifier.judge({"x_backprop": dx}, "textbook").wrong


def _assert_wrong(verifier, right, spoiled):
    for what, outputs in spoiled.items():
        verdict = verifier.judge({**right, **outputs}, "textbook")
        assert verdict.wrong and verdict.error > 1, what


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", bench_rows.DTYPES)
@pytest.mark.parametrize("call", bench_rows.CALLS[1:])
def test_verification_of_forward_calls_tells_right_from_wrong(call, layout, dtype):
    row = _row((4, 6, 5, 9), layout, dtype, section=call)
    verifier, right = verify.Verifier(row), _right(row)
    # Other libraries return less of the statistics, or rstd.
    epsilon = np.float32(data.EPSILON)
    rstd = 1 / np.sqrt(right["saved_variance"].astype(np.float64) + epsilon)
    less = {role: right[role] for role in right if "variance" not in role and "batch" not in role}
    with_rstd = {**less, "saved_rstd": rstd.astype(np.float32)}
    for profile in ("strict", "textbook"):
        assert verifier.judge(right, profile).wrong is None
        assert verifier.judge(with_rstd, profile).wrong is None
    spoiled = {
        "y of zeros": {"y": np.zeros_like(right["y"])},
        "y moved by an element": {"y": right["y"] - right["y"].max()},
        "one element": {"y": right["y"].copy()},
        "the biased variance": {"batch_variance": right["saved_variance"]},
        "batch_mean": {"batch_mean": right["batch_mean"] * np.float32(1.01)},
        "saved_variance": {"saved_variance": right["saved_variance"] * np.float32(1.01)},
        "a view of another shape": {"y": right["y"][:, 1:]},
    }
    spoiled["one element"]["y"].flat[17] += 1
    if call != "forward":
        dx = right["x_backprop"]
        spoiled["the gradient of other statistics"] = _gradient(row)
        spoiled["x_backprop of zeros"] = {"x_backprop": np.zeros_like(dx)}
    _assert_wrong(verifier, right, spoiled)
    assert "y is missing" in verifier.judge({"batch_mean": right["batch_mean"]}, "textbook").wrong


_ACTIVATED = ["layer_relu", "layer_add_relu"]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", bench_rows.DTYPES)
@pytest.mark.parametrize("call", _ACTIVATED)
def test_the_gradient_behind_relu_has_the_mask_of_the_own_y(call, layout, dtype):
    row = _row((4, 6, 5, 9), layout, dtype, section=call)
    verifier, right = verify.Verifier(row), _right(row)
    mask = right["y"] > 0
    assert 0.35 < mask.mean() < 0.65
    # An element that rounding has put on the other side: its gradient is that of the y returned.
    smallest = np.argmin(np.where(mask, right["y"].astype(np.float64), np.inf))
    bent = {**right, "y": right["y"].copy()}
    bent["y"].flat[smallest] = 0
    assert "x_backprop" in verifier.judge(bent, "textbook").wrong
    bent |= _behind(row, bent, bent["y"] > 0)
    assert "x_backprop" not in (verifier.judge(bent, "textbook").wrong or "")
    x = _tensors(row)["x"]
    wrong_masks = {
        "no mask": np.ones_like(mask),
        "the mask of x": x > 0,
        "the opposite mask": ~mask,
        "an element more": mask.copy(),
    }
    wrong_masks["an element more"].flat[np.flatnonzero(~mask)[3]] = True
    _assert_wrong(
        verifier, right, {name: _behind(row, right, wrong) for name, wrong in wrong_masks.items()}
    )
    without = {role: right[role] for role in right if role != "side_input_backprop"}
    wrong = verifier.judge(without, "textbook").wrong
    assert wrong == ("side_input_backprop is missing" if call == "layer_add_relu" else None)


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_a_peer_alone_may_round_before_the_addition(dtype):
    row = _row((4, 6, 5, 9), dtype=dtype, section="layer_add_relu")
    verifier, chain = verify.Verifier(row), _right(row, chain=True)
    assert verifier.judge(chain, "textbook").wrong is None
    assert verifier.judge(chain, "strict").wrong.startswith("y ")
    # Once more is too much.
    moved = chain["y"] * chain["y"].dtype.type(1 + 8 * spec.DTYPES[dtype].unit_roundoff)
    _assert_wrong(verifier, chain, {"y moved by four ulp": {"y": moved}})


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("call", _ACTIVATED)
@pytest.mark.parametrize("name", ["tf_bn_ops", "tensorflow", "torch", "jax"])
def test_layers_with_relu_are_right_in_every_implementation(name, call, layout, monkeypatch):
    entry = implementations.ENTRIES[name]
    pytest.importorskip(entry.module, reason="needs requirements/bench.txt")
    # Once TensorFlow has begun, as in a test before this one, it refuses to change them.
    threading = tf.config.threading
    monkeypatch.setattr(threading, "set_intra_op_parallelism_threads", lambda threads: None)
    implementation = entry.make(machine.cores())
    row = _row((4, 6, 5, 9), layout, section=call)
    implementation.load(*(data.flat(role, row.dtype, row.elements) for role in row.inputs))
    result = implementation.bind(row, data.statistics(row.channels))()
    outputs = {
        role: array.reshape(row.view) if role in problems.VIEW_ROLES else array
        for role, array in implementation.outputs(result).items()
    }
    assert verify.Verifier(row).judge(outputs, entry.bounds).wrong is None


@pytest.mark.parametrize("dtype", bench_rows.DTYPES)
@pytest.mark.parametrize("call", bench_rows.CALLS)
def test_the_formulas_of_jax_are_right_in_numpy(call, dtype):
    row = _row((4, 6, 5, 9), dtype=dtype, section=call)
    y_backprop, x, *added = (
        data.flat(role, dtype, row.elements).reshape(row.dims) for role in row.inputs
    )
    given = data.statistics(row.channels) | dict(zip(row.inputs[2:], added, strict=True))
    formula = jax_ops._formulas(np)[call]
    outputs = {
        role: array.reshape(row.view) if role in problems.VIEW_ROLES else array
        for role, array in formula(y_backprop, x, given, 3, True).items()
    }
    assert verify.Verifier(row).judge(outputs, "textbook").wrong is None


def test_big_tensors_are_checked_in_some_channels():
    verifier = verify.Verifier(_row((32, 56, 56, 64)))
    assert 1 <= len(verifier.channels) < 64
    assert len(set(verifier.channels.tolist())) == len(verifier.channels)


class _FakeWorker:
    """Answers as timing_workers.Worker does: right, wrong by a factor, or not at all."""

    def __init__(self, name, factor=1.0, refuses=""):
        self.name, self.entry = name, implementations.ENTRIES[name]
        self._factor, self._refuses = factor, refuses
        self.visits = 0

    def ask(self, method, *arguments):
        if self._refuses:
            raise timing_workers.CallError(self._refuses)
        if method == "time":
            self.visits += 1
            return {"call": [self._factor * 1e-3] * 2}
        if method == "result":
            row, channels = arguments
            outputs = _right(row)
            role = "y" if row.call == "forward" else "offset_backprop"
            outputs[role] = (outputs[role] * self._factor).astype(outputs[role].dtype)
            return {
                role: array[:, channels] if role in problems.VIEW_ROLES else array[channels]
                for role, array in outputs.items()
            }
        return None


def _fake_run(*fakes, calls=("gradient",)):
    meter = timing_rounds.Meter(fakes, timing_rounds.Budget(0.01, 3), 32 << 20)
    return results.Run(
        command="python -m tf_bn_ops bench",
        seconds=1.0,
        machine={**machine.describe(), "load_before": 0.0},
        settings={"threads": 1, "seconds": 0.01, "rounds": 3},
        versions={"tensorflow": {"tensorflow": "2.0"}},
        missing={"jax": "jax is not installed"},
        rows=[meter.measure(_row(section=call)) for call in calls],
        networks=[],
        memory=[],
        eager_us={"warm": 10, "cold": 50},
    )


def test_a_wrong_result_marks_the_row_and_the_exit_status(tmp_path, capsys):
    run = _fake_run(_FakeWorker("tf_bn_ops", 1.5), _FakeWorker("tensorflow"))
    assert "offset_backprop" in run.rows[0].wrong["tf_bn_ops"]
    assert run.rows[0].speedup("tensorflow") is None
    results.save(run, tmp_path / "results.json")
    assert (
        bench_command.main(["bench", f"--load={tmp_path / 'results.json'}", f"--out={tmp_path}"])
        == 1
    )
    assert "wrong" in capsys.readouterr().out
    bench_command._FLAGS.unparse_flags()


def test_rows_that_no_tensorflow_op_can_win_are_counted():
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("torch"))
    (row,) = run.rows
    row.us["torch"] = 400  # Ours: 1000.
    row.ratios["torch"] = stats.Ratio(0.4, 0.4, 0.4)
    row.limit = results.Limit(2, 1, 300)
    assert results.beyond_reach(run.rows, "torch", 50) == (1, 0)
    assert results.beyond_reach(run.rows, "torch", 200) == (1, 1)
    row.us["torch"] = 2000
    row.ratios["torch"] = stats.Ratio(2, 2, 2)
    assert results.beyond_reach(run.rows, "torch", 200) == (0, 0)
    assert any("takes 10 µs" in sentence for sentence in report.limit_sentences(run))


def _with_ratios(run, layout, dtype, *torch_us):
    """Rows of a large tensor whose time is 1000 µs and whose limit is 500 µs."""
    row = _row((32, 112, 112, 64), layout, dtype)
    for us in torch_us:
        ratios = {"torch": us / 1000, "memory_bandwidth": 0.5}
        run.rows.append(
            results.Measurement(
                row,
                {"tf_bn_ops": 1000, "torch": us},
                {name: stats.Ratio(value, value, value) for name, value in ratios.items()},
                limit=results.Limit(2, 1, 500),
            )
        )


def test_ratios_and_shares_are_told_apart_by_dtype_and_layout():
    run = _fake_run(_FakeWorker("tf_bn_ops"))
    assert not report.limit_table(run).rows  # Nothing of more than 32 MiB.
    run.rows = []
    _with_ratios(run, "NCHW", "half", 1200)
    _with_ratios(run, "NHWC", "float32", 500, 1500, 4000)
    assert report.overview_table(run).rows == [
        ["channels-last", "float32", "1.5", "1 of 3"],
        ["channels-first", "half", "1.2", "0 of 1"],
    ]
    assert report.limit_table(run).rows == [
        ["half", "channels-first", "training", "1", "50%", "50%", "0"],
        ["float32", "channels-last", "training", "3", "50%", "50%", "0"],
    ]


def test_a_peers_wrong_result_and_refusal_are_reported_alone(tmp_path, capsys):
    peers = [_FakeWorker("torch", 1.5), _FakeWorker("eigen", refuses="InternalError: no NCHW")]
    run = _fake_run(_FakeWorker("tf_bn_ops"), *peers, _FakeWorker("tensorflow"))
    assert run.rows[0].refused == {"eigen": "InternalError: no NCHW"}
    assert run.rows[0].wrong["torch"]
    assert [row[0] for row in report.summary_table(run).rows] == ["TensorFlow"]
    results.save(run, tmp_path / "results.json")
    assert (
        bench_command.main(["bench", f"--load={tmp_path / 'results.json'}", f"--out={tmp_path}"])
        == 0
    )
    out = capsys.readouterr().out
    assert "WRONG (a peer) PyTorch" in out
    assert "no NCHW" in out
    assert "left out: JAX: jax is not installed" in out
    bench_command._FLAGS.unparse_flags()


def test_a_peer_is_measured_in_its_calls_alone():
    fakes = _FakeWorker("tf_bn_ops"), _FakeWorker("xla", 3), _FakeWorker("torch", 2)
    run = _fake_run(*fakes, calls=("gradient", "forward"))
    gradient, forward = run.rows
    assert set(gradient.us) == {"tf_bn_ops", "torch"} and not gradient.refused
    assert set(forward.us) == {"tf_bn_ops", "xla", "torch"}
    assert forward.speedup("torch") is None, "its y is wrong"
    (first, second) = report.tables(run)
    assert "TensorFlow, XLA" in second.headings and "TensorFlow, XLA" not in first.headings
    titles = [found.title for found in report.summary_tables(run)]
    assert any("forward" in title for title in titles)


def _network(*turns):
    return results.NetworkMeasurement(
        "mobilenetv2", 8, 112, 2, [tuple(map(float, t)) for t in turns]
    )


def test_the_share_of_batch_norms_cost_is_that_of_adjacent_steps():
    # The second turn ran on a machine that was twice as slow: the share is the same.
    network = _network(
        (300, 150, 100, 130, 90), (600, 300, 200, 260, 180), (280, 170, 100, 100, 80)
    )
    assert network.share_removed.median == pytest.approx(0.75)
    assert network.share_removed.p10 == pytest.approx(0.2 * 0.75 + 0.8 * 110 / 180)
    assert network.ratio("keras", "tf_bn_ops").median == pytest.approx(2)
    assert network.ratio("tf_bn_ops", "identity").median == pytest.approx(1.5)
    assert network.milliseconds("keras") == 300
    # Of the fused variant the cost is that of batch norm and the activations behind it.
    assert network.share_of_both_removed.median == pytest.approx(170 / 210)
    assert network.ratio("keras", "fused").median == pytest.approx(30 / 13)
    # Batch norm that cannot be told from noise counts as nothing removed.
    assert _network((100, 50, 100, 50, 100)).share_removed.median == 0
    # Slower than Keras is less than nothing.
    assert _network((200, 250, 100, 150, 90)).share_removed.median == pytest.approx(-0.5)


def test_networks_are_a_table_of_the_report_and_the_pages():
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"))
    assert not report.network_table(run).rows and not report.fused_network_table(run).rows
    skipped = results.NetworkMeasurement("resnet50", 8, 112, 2, skipped="out of memory")
    turns = (300, 150, 100, 120, 90), (300, 140, 100, 116, 90)
    run.networks = [_network(*turns), skipped]
    made = report.network_table(run)
    assert made.rows[0][:6] == ["mobilenetv2", "8x112x112x3", "300 ms", "145 ms", "100 ms", "2.07"]
    assert made.rows[0][6:] == ["78%", "76% 80%"]
    assert made.notes == ["out of memory"]
    fused = report.fused_network_table(run)
    assert fused.rows[0][2:] == ["300 ms", "118 ms", "90 ms", "2.54", "87%", "86% 87%"]
    assert fused.notes == ["out of memory"]
    for table_ in (made, fused):
        assert table_.markdown() in recorded_run.overview(
            run
        ) and table_.markdown() in recorded_run.page(run, [])


def test_layers_with_relu_have_tables_and_goals():
    fakes = _FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"), _FakeWorker("xla")
    run = _fake_run(*fakes, calls=("gradient", *_ACTIVATED))
    for call in _ACTIVATED:
        made = report.overview_table(run, call)
        assert made.rows == [["channels-last", "float32", "1.0", "0 of 1", "1.0", "0 of 1"]]
        assert made.markdown() in recorded_run.overview(run)
    goals = {row[0]: row[3] for row in report.summary_table(run, "layer_relu").rows}
    assert goals == {"TensorFlow": "3", "TensorFlow, XLA": ""}
    assert not report.layer_sentences(run), "the tensor is small"
    large = _row((32, 112, 112, 64), section="layer_relu")
    times, ratio = {"tf_bn_ops": 1000, "tensorflow": 2500}, stats.Ratio(2.5, 2.4, 2.6)
    run.rows.append(results.Measurement(large, times, {"tensorflow": ratio}))
    (sentence,) = report.layer_sentences(run)
    assert "more than 8 MiB" in sentence and "2.50 times our time" in sentence


@pytest.mark.long
def test_a_turn_steps_the_same_network_with_every_variant(monkeypatch):
    import keras

    from tf_bn_ops.keras import batch_norm_report

    def build(name, side):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((side, side, 3))
        x = keras.layers.Conv2D(4, 3)(inputs)
        x = keras.layers.BatchNormalization(name="first")(x)
        x = keras.layers.BatchNormalization(name="second")(keras.layers.ReLU(name="relu")(x))
        x = keras.layers.Add()([keras.layers.Conv2D(4, 1)(x), x])
        x = keras.layers.Conv2D(4, 1)(keras.layers.ReLU(name="not_behind")(x))
        y = keras.layers.BatchNormalization(name="third")(x)
        x = keras.layers.Activation("relu", name="out")(keras.layers.Add()([x, y]))
        return keras.Model(inputs, keras.layers.Dense(1000, "softmax")(keras.layers.Flatten()(x)))

    monkeypatch.setattr(networks, "_build", build)
    variants = networks.variants_of(lambda: build("", 8))
    fused = {name: len(batch_norm_report(model).fused) for name, model in variants.items()}
    ours = {"tf_bn_ops": 3, "fused": 3}
    assert fused == {"keras": 0, "identity": 0, "without_both": 0, **ours}
    assert not variants["identity"].non_trainable_variables
    # The activations that are fused are those without which the other identity is.
    assert networks.fused_activations(variants["fused"]) == {"relu", "out"}
    kinds = {layer.name: type(layer).__name__ for layer in variants["without_both"].layers}
    assert [kinds[name] for name in ("relu", "out", "not_behind")] == ["Nothing", "Nothing", "ReLU"]
    server = networks.Server()
    server.prepare("resnet50", 2, 8)
    before = [weight.numpy() for weight in variants["keras"].trainable_variables]
    turn = server.turn()
    assert set(turn) == set(results.VARIANTS) and min(turn.values()) > 0
    # Same weights, same images: the loss with our layer is that with Keras'.
    losses = {name: float(step()) for name, step in server._steps.items()}
    for name in ours:
        assert losses[name] == pytest.approx(losses["keras"], rel=1e-5)
    for name in ("identity", "without_both"):
        assert losses[name] != pytest.approx(losses["keras"], rel=1e-5)
    after = [weight.numpy() for weight in variants["keras"].trainable_variables]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_close_rows_are_measured_longer():
    own, far, near = (_FakeWorker(n, f) for n, f in (("tf_bn_ops", 1), ("torch", 9), ("jax", 1)))
    budget = timing_rounds.Budget(1, 3)
    timing_rounds.Meter([own, far], budget, 1 << 20).measure(_row())
    assert own.visits == 3
    timing_rounds.Meter([own, near], budget, 1 << 20).measure(_row())
    assert near.visits == 6 and own.visits == 9


class _DriftingWorker(_FakeWorker):
    """On a machine that becomes slower by a third with every visit, whoever it is of."""

    clock = 1.0

    def ask(self, method, *arguments):
        answer = super().ask(method, *arguments)
        if method == "time":
            type(self).clock *= 4 / 3
            return {kind: [s * self.clock for s in seconds] for kind, seconds in answer.items()}
        return answer


@pytest.mark.parametrize("peers", [["torch"], ["torch", "jax"], ["torch", "jax", "eigen"]])
def test_every_peer_is_compared_with_the_visit_of_ours_beside_it(peers):
    fakes = [_DriftingWorker("tf_bn_ops"), *(_DriftingWorker(name, 5) for name in peers)]
    row = timing_rounds.Meter(fakes, timing_rounds.Budget(1, 6), 1 << 20).measure(_row())
    assert set(row.ratios) == set(peers)
    for ratio in row.ratios.values():
        # As often before ours as after it: 5 times 3/4 and 5 times 4/3, not a power of them.
        assert ratio.p25 == pytest.approx(5 * 3 / 4) and ratio.p75 == pytest.approx(5 * 4 / 3)


def test_a_visit_ends_when_the_threads_of_its_process_no_longer_spin(monkeypatch):
    """One that spins uses all of each millisecond, on a processor that the next process needs."""
    spins, slept = iter([1e-3] * 5), []
    clock = [0.0]

    def sleep(seconds):
        slept.append(seconds)
        clock[0] += next(spins, 1e-5)

    monkeypatch.setattr(timing_process.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(timing_process.time, "sleep", sleep)
    timing_process._wait_until_idle()
    assert len(slept) == 6


def test_the_limit_is_a_peer_of_the_same_pairs():
    fakes = [_FakeWorker("tf_bn_ops"), _FakeWorker("torch", 2), _FakeBandwidth()]
    row = timing_rounds.Meter(fakes, timing_rounds.Budget(1, 3), 1 << 20).measure(_row())
    assert row.ratios["memory_bandwidth"].median == pytest.approx(row.limit.us / row.own_us)
    assert row.ratios["torch"].median == pytest.approx(2)


def test_rows_in_which_a_peer_is_faster_are_listed():
    run = _fake_run(_FakeWorker("tf_bn_ops"))
    run.rows = []
    _with_ratios(run, "NHWC", "float32", 500, 1500, 900)
    _with_ratios(run, "NCHW", "half", 990)
    of = ["PyTorch", "gradient"]
    shape = "32x112x112x64"
    assert report.slower_table(run).rows == [
        [*of, "channels-last", "float32", f"{shape} 0.50, {shape} 0.90"],
        [*of, "channels-first", "half", "32x64x112x112 0.99"],
    ]
    assert report.slower_table(run).markdown() in recorded_run.overview(run, with_slower=True)
    assert report.slower_table(run).markdown() not in recorded_run.overview(run)


def test_rows_that_are_left_out_are_counted():
    run = _fake_run(_FakeWorker("tf_bn_ops"))
    late = "time budget exceeded"
    run.rows += [results.Measurement(_row((2, 3, 4, c)), skipped=late) for c in range(1, 7)]
    (sentence,) = report.skipped_sentences(run)
    assert sentence.startswith(f"Not measured, {late}: 6 rows, from 2x3x4x1 NHWC")


# ---- Files -------------------------------------------------------------------------------------


def test_results_are_read_back_and_checked(tmp_path):
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"))
    run.rows[0].limit = results.Limit(2, 1, 300.0)
    run.rows[0].kernel_us = 700.0
    path = tmp_path / "results.json"
    results.save(run, path)
    assert results.load(path) == run
    run.networks = [_network((300, 200, 100, 150, 90)), results.NetworkMeasurement("a", 8, 112, 2)]
    run.networks[1].skipped = "there is no memory"
    results.save(run, path)
    assert results.load(path) == run
    assert set(run.networks[0].to_json()) < set(results.SCHEMA["An element of networks"])
    documented = set(results.SCHEMA["An element of rows"])
    assert set(run.rows[0].to_json()) < documented
    for spoil in (
        lambda r: r.pop("machine"),
        lambda r: r["rows"][0].pop("layout"),
        lambda r: r["rows"][0].update(shape="2xx3"),
        lambda r: r["rows"][0].update(unknown=1),
        lambda r: r.update(schema=0),
        lambda r: r["memory"].append({}),
        lambda r: r["networks"][0]["turns"].append([1, 2]),
    ):
        broken = json.loads(results.to_text(run))
        spoil(broken)
        path.write_text(json.dumps(broken))
        with pytest.raises(results.ResultsError, match=r"results.json (has format|is not)"):
            results.load(path)
    with pytest.raises(results.ResultsError, match="cannot be read"):
        results.load(tmp_path / "none.json")


def test_a_row_is_a_line_of_the_file():
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"))
    lines = [line for line in results.to_text(run).splitlines() if '"section"' in line]
    assert [json.loads(line)["us"] for line in lines] == [{"tensorflow": 1000, "tf_bn_ops": 1000}]


def test_recording_writes_the_file_and_the_overviews(tmp_path, monkeypatch):
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"))
    page = tmp_path / "page.md"
    monkeypatch.setattr(recorded_run, "RECORDED", tmp_path / "recorded" / "results.json")
    monkeypatch.setattr(recorded_run, "PAGES", (page,))
    with pytest.raises(recorded_run.DocsError, match="needs the source tree"):
        recorded_run.record(run)
    page.write_text(f"before\n{recorded_run.BEGIN}\nold\n{recorded_run.END}\nafter\n")
    for _ in range(2):  # Again over its own.
        assert recorded_run.record(run) == [recorded_run.RECORDED, page]
        text = page.read_text()
        assert text.startswith("before\n") and text.endswith("\nafter\n")
        assert "old" not in text
        assert "| channels-last | float32 | 1.0 | 0 of 1 |" in text
    assert results.load(recorded_run.RECORDED) == run
    with pytest.raises(recorded_run.DocsError, match="needs one line"):
        recorded_run.with_overview("no markers", "")


def test_the_site_page_has_all_tables():
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"))
    text = recorded_run.page(run, ["benchmarks/roofline.svg"])
    assert "| 2x3x4x5 | NHWC | float32 | training | 1 ms |" in text
    assert run.machine["cpu"] in text and run.command in text
    assert "(benchmarks/roofline.svg)" in text
    for fields in results.SCHEMA.values():
        assert all(f"| `{name}` | {meaning} |" in text for name, meaning in fields.items())


@pytest.mark.skipif(not recorded_run.RECORDED.exists(), reason="needs the source tree")
def test_the_pages_show_the_recorded_run():
    run = results.load(recorded_run.RECORDED)
    assert results.to_text(run) == recorded_run.RECORDED.read_text("utf-8")
    for page in recorded_run.PAGES:
        text = page.read_text("utf-8")
        remedy = "python -m tf_bn_ops bench --load=docs/benchmarks/results.json --record"
        written = recorded_run.on_page(page, run)
        assert recorded_run.with_overview(text, written) == text, (
            f"{page.name} is out of date: {remedy}"
        )
    assert recorded_run.ALL_TABLES in recorded_run.PAGES[1].read_text("utf-8")


@pytest.mark.skipif(not recorded_run.RECORDED.exists(), reason="needs the source tree")
def test_the_plots_of_the_recorded_run_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="needs requirements/bench.txt")
    written = plots.write(results.load(recorded_run.RECORDED), tmp_path, formats=("svg",))
    assert [path.stem for path in written] == list(plots.TITLES)
    assert all("<svg" in path.read_text("utf-8") for path in written)


def test_the_machine_is_described():
    described = machine.describe()
    assert described["cpu"] and described["cores"] >= 1
    assert described["isa"]
    assert c_abi.last_level_cache() > 1 << 15


# ---- Runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shapes=nonsense"], "'nonsense' is no network"),
        (["--dtypes=int8"], "'int8' is not a known dtype"),
        (["--layouts=CHWN"], "'CHWN' is not a known layout"),
        (["--peers=numpy"], "'numpy' is not a known peer"),
        (["--sections=all"], "'all' is not a known section"),
        (["--shapes=2x4x4x8", "--layouts=NDHWC"], "no row has this combination"),
        (["--threads=100000"], "--threads is at most"),
        (["--load=/nowhere/results.json"], "/nowhere/results.json cannot be read"),
        (["stray"], "'stray' is not a flag"),
    ],
)
def test_wrong_usage_is_one_sentence(flags, message, capsys):
    assert bench_command.main(["bench", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    bench_command._FLAGS.unparse_flags()


@pytest.mark.parametrize(
    ("median", "quartiles", "pairs", "verdict"),
    [
        (0.90, (0.89, 0.91), 11, "slower than noise"),
        (0.90, (0.80, 1.00), 11, "within noise"),
        (0.90, (0.80, 1.00), 100, "slower than noise"),
        (0.985, (0.985, 0.985), 100, "within noise"),
        (1.10, (1.09, 1.11), 11, "faster"),
    ],
)
def test_a_verdict_depends_on_the_spread_of_the_pairs(median, quartiles, pairs, verdict):
    (row, *_) = against.rows(["half"], ["NCHW"], ["frozen"])
    assert against.Comparison(row, median, quartiles, pairs).verdict == verdict


@pytest.mark.long
def test_a_library_is_compared_with_another_build(tmp_path, capsys):
    other = tmp_path / _loader.CORE_LIBRARY
    shutil.copy(_loader.core_library_path(), other)
    flags = [f"--against={other}", "--dtypes=float64", "--layouts=NCHW", "--modes=training"]
    assert bench_command.main(["bench", *flags, "--seconds=0.001", "--threads=1"]) in (0, 1)
    out = capsys.readouterr().out
    formulas = [*c_abi.FORMULAS, "batch_norm_grad_ex_add"]
    for formula in formulas:
        assert f"{formula} " in out
    assert f"{3 * len(formulas)} rows, 1 threads: " in out and "has no" not in out
    assert bench_command.main(["bench", f"--against={tmp_path / 'none.so'}"]) == 2
    assert "none.so does not exist" in capsys.readouterr().err
    bench_command._FLAGS.unparse_flags()


def test_quick_run_without_some_peers(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        bench_command, "is_installed", lambda entry: entry.module not in ("torch", "jax")
    )
    flags = ["--quick", "--shapes=2x4x4x8", "--dtypes=float32", "--sections=gradient"]
    flags += ["--peers=eigen,torch", "--seconds=0.005", f"--out={tmp_path}"]
    assert bench_command.main(["bench", *flags]) == 0
    bench_command._FLAGS.unparse_flags()
    out = capsys.readouterr().out
    assert "left out: PyTorch: torch is not installed" in out
    run = results.load(tmp_path / "results.json")
    assert run.missing["torch"] == "torch is not installed"
    assert [m.row.layout for m in run.rows] == ["NHWC", "NHWC", "NCHW", "NCHW"]
    assert all(not m.wrong and m.own_us > 0 and m.p10_p90_us for m in run.rows)
    # Every call has printed one line, of which the time is read.
    assert all(m.kernel_us > 0 for m in run.rows)
    # TensorFlow's own kernel refuses frozen NCHW, which is a cell and not the end.
    assert "NHWC" in run.rows[3].refused["eigen"]
    assert len(results.ratios(run.rows, "eigen")) == 3


def test_memory_of_a_call_is_measured():
    if not memory.is_possible():
        pytest.skip("needs Linux's /proc/self/clear_refs")
    entry = implementations.ENTRIES["tf_bn_ops"]
    row, small = _row((32, 56, 56, 16)), _row((64, 8, 8, 8))
    worker = timing_workers.Worker(entry, 1, {}, "tf_bn_ops.bench.execution.memory")
    try:
        extra = worker.ask("extra", row, small)
    finally:
        worker.close()
    # With or without TensorFlow's pool, far from a copy of a tensor.
    assert abs(extra) < row.tensor_bytes


@pytest.fixture(scope="module")
def bandwidth_folder(repo_root, tmp_path_factory):
    """A folder of libraries with the one that only make bench builds."""
    source = repo_root / "cc" / "bench" / "memory_bandwidth.cc"
    compiler = shutil.which("g++")
    if not source.exists() or compiler is None:
        pytest.skip("needs the source tree and g++")
    folder = tmp_path_factory.mktemp("bandwidth")
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"]
    target = folder / implementations.MEMORY_BANDWIDTH_LIBRARY
    subprocess.run([compiler, *flags, "-o", target, source], check=True)
    (folder / _loader.CORE_LIBRARY).symlink_to(_loader.core_library_path())
    return folder


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 63, 256, 4096 * 3 + 77, 1 << 18])
def test_the_bandwidth_limit_moves_every_byte(bandwidth_folder, monkeypatch, threads, size):
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(bandwidth_folder))
    bandwidth = implementations.MemoryBandwidth(threads)
    rng = np.random.default_rng(size)
    a, b = (rng.integers(256, size=size, dtype=np.uint8) for _ in range(2))
    bandwidth.load(a, b)
    calls = bandwidth.variants()
    kinds = {"2r1w": a ^ b, "1r1w": b}
    policies = ("non_temporal", "temporal")
    writes = {f"{kind} {policy}": kinds[kind] for kind in kinds for policy in policies}
    assert set(calls) == {*writes, "2r", "1r"}
    for name, want in writes.items():
        bandwidth._out[:] = 0
        calls[name]()
        start = -bandwidth._out.ctypes.data % 64
        assert np.array_equal(bandwidth._out[start : start + size], want)
        assert not bandwidth._out[start + size :].any()
    calls["2r"]()
    calls["1r"]()


def test_a_dead_worker_is_reported_and_restarted(bandwidth_folder, monkeypatch):
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(bandwidth_folder))
    worker = timing_workers.Worker(implementations.ENTRIES["memory_bandwidth"], 1)
    try:
        row = _row()
        worker.ask("prepare_bandwidth", row, ["2r1w", "2r"])
        assert set(worker.ask("time", 0.001)) == {"2r1w", "2r"}
        with pytest.raises(timing_workers.CallError, match="AttributeError"):
            worker.ask("nonsense")
        worker.process._process.kill()
        worker.process._process.wait()
        with monkeypatch.context() as patch:  # Found out during the request.
            patch.setattr(worker.process._process, "poll", lambda: None)
            with pytest.raises(timing_workers.CallError, match="SIGKILL"):
                worker.ask("time", 0.001)
        worker.ask("prepare_bandwidth", row, ["2r1w"])
        assert set(worker.ask("time", 0.001)) == {"2r1w"}
    finally:
        worker.close()
