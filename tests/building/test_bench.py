"""The benchmark: its check of results, its limit, its record and tables, and a short run.

Promised: wrong results are marked and left out of the figures; the pages show the recorded run and
nothing else; TensorFlow and the peers are measured with their own kernels, each beside a visit of
ours.
"""

import itertools
import json
import math
import shutil

import numpy as np
import pytest
from build_helpers import tool

from tf_bn_ops import _loader, spec
from tf_bn_ops.harness import builtin, c_abi
from tf_bn_ops.harness.problems import FORMULAS_BY_ROLES

NAMES = "against bench_worker libraries networks output_check report results rounds rows sweep"
against, bench_worker, libraries, networks, output_check, report, results, rounds, rows, sweep = (
    tool(f"bench.{name}") for name in NAMES.split()
)
command = tool("bench.bench_command")


def _row(shape=(4, 6, 5, 9), layout="NHWC", dtype="float32", mode="training", call="gradient"):
    (row,) = rows.rows_of(call, [shape], [dtype], [layout], [mode], 1)
    return row


def _channels(row):
    return np.arange(row.view[1])


def _right(row):
    """The outputs of a row by role, of the kernels that the ops call."""
    outputs = {}
    for problem in output_check.problems_of(row, _channels(row), outputs, precise=True):
        outputs |= c_abi.run(problem)
    return outputs


def _wrong(row, outputs, precise=False):
    return output_check.what_is_wrong(row, _channels(row), outputs, precise)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", rows.DTYPES)
@pytest.mark.parametrize("call", rows.CALLS)
def test_the_check_tells_right_from_wrong(call, layout, dtype):
    row = _row(layout=layout, dtype=dtype, call=call)
    right = _right(row)
    assert _wrong(row, right, precise=True) is None and _wrong(row, right) is None
    for role in right:
        spoiled = right[role].copy()
        spoiled.flat[17 % spoiled.size] += 1
        assert role in _wrong(row, {**right, role: spoiled}), role
    # NaN, another type, one missing; the other mode; the mean that this library alone keeps whole.
    main = "x_backprop" if rows.CALLS[call].gradient else "y"
    assert _wrong(row, {**right, main: np.full_like(right[main], np.nan)})
    assert _wrong(row, {**right, main: right[main].astype(np.float64)})
    assert f"{main} is missing" in _wrong(row, {r: a for r, a in right.items() if r != main})
    if call == "gradient":
        frozen = _right(_row(layout=layout, dtype=dtype, mode="frozen"))
        assert "x_backprop" in _wrong(row, {**right, "x_backprop": frozen["x_backprop"]})
    if call == "layer" and dtype == "float32":
        *_, gradient = output_check.problems_of(row, _channels(row), right, precise=False)
        rounded = {**right, **c_abi.run(gradient)}
        assert _wrong(row, rounded) is None and "scale_b" in _wrong(row, rounded, precise=True)


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_a_peer_alone_may_round_before_the_addition(dtype):
    row = _row(dtype=dtype, call="layer_add_relu")
    side = row.tensors()["side_input"].reshape(row.view)
    alone = _right(_row(dtype=dtype, call="forward"))["y"]
    chain = {**_right(row), "y": np.maximum(alone + side, 0).astype(alone.dtype)}
    assert "y " not in (_wrong(row, chain) or "")
    assert "y is" in _wrong(row, chain, precise=True)


def in_any_process() -> None:
    """A test before may have loaded this library's kernels into this one."""


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("call", rows.CALLS)
@pytest.mark.parametrize("name", ["tf_bn_ops", "tensorflow", "torch"])
def test_every_implementation_is_right(name, call, layout, monkeypatch):
    if name == "torch":
        pytest.importorskip(name, reason="needs requirements/bench.txt")
    import tensorflow as tf

    # Once TensorFlow has begun, as in a test before this one, it refuses to change them.
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", lambda n: None)
    monkeypatch.setattr(builtin, "check_kernels", in_any_process)
    server = bench_worker.Server(name, 2)
    function = rows.CALLS[call].function
    for mode in ("training", "frozen") if function else ("training",):
        row = _row(layout=layout, call=call, mode=mode)
        if function and name == "torch":
            with pytest.raises(NotImplementedError):
                server.prepare(row)
            continue
        server.prepare(row)
        outputs = server.result(row, _channels(row))
        assert _wrong(row, outputs, precise=name == "tf_bn_ops") is None


# ---- Rounds ------------------------------------------------------------------------------------


class _FakeWorker:
    """Answers as a worker does: right, wrong by a factor, or not at all. The machine becomes slower
    by a third with every visit, whoever it is of."""

    clock = 1.0

    def __init__(self, name, factor=1.0, refuses="", wrong=False):
        self.name, self._factor, self._refuses, self._wrong = name, factor, refuses, wrong

    def ask(self, method, *arguments):
        if self._refuses:
            raise bench_worker.CallError(self._refuses)
        if method == "time":
            type(self).clock *= 4 / 3
            return [self._factor * 1e-3 * self.clock] * 2
        if method == "result":
            outputs = _right(arguments[0])
            return {**outputs, "offset_backprop": outputs["offset_backprop"] * (2**self._wrong)}
        return None


def _fake_run(*fakes):
    return results.Run(
        command="make bench",
        seconds=1.0,
        machine={"load_before": 0.0, "cpu": "a CPU", "isa": "avx2", "date": "2026-01-01"},
        settings={"threads": 1, "seconds": 0.01, "rounds": 6},
        versions={"tensorflow": {"tensorflow": "2.0"}},
        rows=[rounds.measure(_row(), fakes, 0.01, 6)],
    )


@pytest.mark.parametrize("peers", [["torch"], ["torch", "eigen", "memory_bandwidth"]])
def test_every_peer_is_compared_with_the_visit_of_ours_beside_it(peers):
    run = _fake_run(_FakeWorker("tf_bn_ops"), *(_FakeWorker(name, 5) for name in peers))
    (measured,) = run.rows
    assert set(measured.ratios) == set(peers)
    for _, low, high in measured.ratios.values():
        # As often before ours as after it: 5 times 3/4 and 5 times 4/3, not a power of them.
        assert low == pytest.approx(5 * 3 / 4)
        assert high == pytest.approx(5 * 4 / 3)


def test_wrong_results_and_refusals_are_marked_and_left_out(tmp_path, capsys):
    peers = [_FakeWorker("torch", wrong=True), _FakeWorker("eigen", refuses="no NCHW")]
    run = _fake_run(_FakeWorker("tf_bn_ops"), *peers, _FakeWorker("tensorflow", 2))
    (measured,) = run.rows
    assert measured.refused == {"eigen": "no NCHW"} and "offset" in measured.wrong["torch"]
    assert measured.speedup("torch") is None and measured.speedup("tensorflow") is not None
    results.save(run, tmp_path / "results.json")
    assert command.main([f"--load={tmp_path / 'results.json'}"]) == 0
    out = capsys.readouterr().out
    assert "Wrong, left out of the ratios: PyTorch" in out and "no NCHW" in out
    results.save(_fake_run(_FakeWorker("tf_bn_ops", wrong=True)), tmp_path / "results.json")
    assert command.main([f"--load={tmp_path / 'results.json'}"]) == 1
    assert "WRONG tf_bn_ops" in capsys.readouterr().out


def test_the_limit_counts_every_pass():
    llc = 32 << 20
    big, small = (32, 112, 112, 64), (32, 14, 14, 64)
    assert _row(big).passes(llc) == [(2, 1), (2, 0)]
    assert _row(small).passes(llc) == [(2, 1)]
    assert _row(big, mode="frozen").passes(llc) == [(2, 1)]
    assert _row(big, "NCHW").passes(llc) == [(2, 1)]
    # A forward call has one input, which fits where the two of the gradient do not.
    assert _row((32, 56, 56, 64), call="layer").passes(llc) == [(1, 1), (2, 1), (2, 0)]
    assert [_row(small, call=call).bytes // _row(small).tensor_bytes for call in rows.CALLS] == [
        *(3, 2),
        *(5, 5, 8),
        *(2, 5),
    ]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 63, 256, 4096 * 3 + 77, 1 << 18])
def test_memory_bandwidth_moves_every_byte(threads, size):
    bandwidth = libraries.MemoryBandwidth(threads)
    rng = np.random.default_rng(size)
    a, b = (rng.integers(256, size=size, dtype=np.uint8) for _ in range(2))
    bandwidth.load({"y_backprop": a, "x": b})
    for reads, writes in ((2, 1), (1, 1), (2, 0), (1, 0)):
        for call in bandwidth.calls(reads, writes):
            bandwidth.out[:] = 0
            call()
            if writes:
                assert np.array_equal(bandwidth.out, a ^ b if reads == 2 else b)


# ---- The record and its tables -----------------------------------------------------------------


def test_the_pages_show_the_recorded_run():
    run = results.load(report.RECORDED)
    assert results.to_text(run) == report.RECORDED.read_text("utf-8")
    for page, write in report.PAGES.items():
        text = page.read_text("utf-8")
        remedy = 'make bench ARGS="--load=docs/benchmarks/results.json --record"'
        assert report.with_overview(text, write(run)) == text, remedy
    assert report.ALL_TABLES in page.read_text("utf-8")
    site = report.site_page(run)
    for call in rows.CALLS:
        assert report.overview_table(run, call).markdown() in site
    for m in run.rows:
        assert f"| {m.row.name} | {m.row.layout} | {m.row.dtype} |" in site


def test_the_page_shows_the_networks_of_a_second_processor():
    text, run = report.PAGE.read_text("utf-8"), results.load(report.NETWORKS)
    assert report.with_overview(text, report._networks(run), report.BEGIN_NETWORKS) == text


def test_results_are_read_back_and_checked(tmp_path):
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"))
    run.networks = [
        results.NetworkMeasurement(
            "a", 8, 112, 2, [(300.0, 150.0, 100.0, 120.0, 90.0)], kept={"keras": 7, "fused": 5}
        )
    ]
    path = tmp_path / "results.json"
    results.save(run, path)
    once = results.load(path)
    results.save(once, path)
    assert results.load(path) == once and once.rows[0].row == run.rows[0].row
    for spoil in (
        lambda r: r["rows"][0].pop("layout"),
        lambda r: r["rows"][0].update(shape="2xx3"),
        lambda r: r["rows"][0].update(unknown=1),
        lambda r: r.pop("machine"),
        lambda r: r.update(schema=r["schema"] + 1),
        lambda r: r["networks"][0]["turns"].append([1, 2]),
    ):
        broken = json.loads(results.to_text(run))
        spoil(broken)
        path.write_text(json.dumps(broken))
        with pytest.raises(rows.UsageError, match=r"is not the results\.json of"):
            results.load(path)


def test_ratios_and_shares_are_told_apart_by_dtype_and_layout():
    run = _fake_run(_FakeWorker("tf_bn_ops"))
    run.rows = []
    for layout, dtype, *times in (("NCHW", "half", 990), ("NHWC", "float32", 500, 1500, 4000)):
        for us in times:
            ratios = {
                name: (v,) * 3 for name, v in (("torch", us / 1e3), ("memory_bandwidth", 0.7))
            }
            row = _row((32, 112, 112, 64), layout, dtype)
            run.rows.append(results.Measurement(row, {"tf_bn_ops": 1000, "torch": us}, ratios))
    assert report.overview_table(run, "gradient").rows == [
        ["channels-last", "float32", "1.5", "1 of 3"],
        ["channels-first", "half", "1.0", "1 of 1"],
    ]
    assert report.limit_table(run, "gradient").rows[0][3:] == ["1", "70%", "70%", "1", "0"]
    assert [line[2:] for line in report.slower_table(run).rows] == [
        ["channels-first", "half", "32x64x112x112 0.99"],
        ["channels-last", "float32", "32x112x112x64 0.50"],
    ]


def test_the_share_of_batch_norms_cost_is_that_of_adjacent_steps():
    # The second turn ran on a machine that was twice as slow: the share is the same.
    turns = [(300, 150, 100, 130, 90), (600, 300, 200, 260, 180), (280, 170, 100, 100, 80)]
    network = results.NetworkMeasurement("resnet50", 8, 112, 2, turns)
    assert network.share_removed("tf_bn_ops", "identity")[1] == pytest.approx(0.75)
    assert network.share_removed("fused", "without_both")[1] == pytest.approx(170 / 210)
    run = _fake_run(_FakeWorker("tf_bn_ops"))
    skipped = results.NetworkMeasurement("resnet50", 8, 112, 2, skipped="no memory")
    run.networks = [network, skipped]
    first, second = report.network_table(run, fused=False).rows
    assert first[2:7] == ["300 ms", "170 ms", "100 ms", "2.00", "75%"] and "[1]" in second[1]
    # What a step keeps is told without its times, too.
    alone = results.NetworkMeasurement("a", 8, 112, 2)
    alone.kept = {"keras": 80_000_000, "fused": 40_000_000}
    run.networks.append(alone)
    row = ["a", "8x112x112x3", "80 MB", "40 MB", "0.50"]
    assert report.kept_table(run).rows == [row]
    alone.kept["recomputed"] = 8_000_000
    assert report.kept_table(run).rows == [[*row[:4], "8 MB", "0.50", "0.10"]]
    assert len(report.network_table(run, fused=False).rows) == 2
    # Batch norm that cannot be told from noise counts as nothing removed.
    network.turns = [(100, 50, 100, 50, 100)]
    assert network.share_removed("tf_bn_ops", "identity")[1] == 0


# ---- Runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shapes=nonsense"], "'nonsense' is no shape"),
        (["--dtypes=int8"], "--dtypes=int8 is unknown; known are float32"),
        (["--peers=numpy"], "--peers=numpy is unknown"),
        (["--sections=sweep,forward"], "--sections=sweep is a run of its own"),
        (["--sections=forward", "--modes=frozen"], "no row has this combination"),
        (["--threads=100000"], "--threads is from 1 to"),
        (["--load=/nowhere/results.json"], "/nowhere/results.json is not"),
        (["--against=/nowhere/core.so"], "LIB=/nowhere/core.so does not exist"),
    ],
)
def test_wrong_usage_is_one_sentence(flags, message, capsys):
    assert command.main(flags) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


def test_a_quick_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "OUT", tmp_path / "results.json")
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = ["--quick", "--shapes=2x4x4x8", "--dtypes=half", "--sections=gradient"]
    assert command.main([*flags, "--peers=eigen,torch", "--seconds=0.005"]) == 0
    assert "Left out: PyTorch: No module named torch" in capsys.readouterr().out
    run = results.load(tmp_path / "results.json")
    assert run.command.startswith('make bench ARGS="--quick') and len(run.rows) == 4
    assert all(not m.wrong and m.us["tf_bn_ops"] > 0 for m in run.rows)
    assert all("memory_bandwidth" in m.ratios for m in run.rows)
    # TensorFlow's own kernel refuses frozen NCHW, which is a cell and not the end.
    assert "NHWC" in run.rows[3].refused["eigen"] and "eigen" in run.rows[2].ratios


def test_the_sweep_has_every_combination_once():
    found = list(itertools.islice(sweep.cases(0, 2), 20000))
    assert len({*found}) == len(found)
    assert found[:50] == [*itertools.islice(sweep.cases(0, 2), 50)]
    assert found[:50] != [*itertools.islice(sweep.cases(1, 2), 50)]
    assert {case.call for case in found} == {*sweep.CALLS}
    assert {case.layout for case in found} == {*spec.DATA_FORMATS}
    assert {(case.mode, case.threads) for case in found} == {*itertools.product(spec.MODES, (1, 2))}
    sizes = {spec.view_shape(case.shape, case.layout) for case in found}
    assert {size for view in sizes for size in view} >= {1, 3, 1000, 1000000}
    assert max(map(math.prod, sizes)) <= sweep.MOST_ELEMENTS
    assert {case.threads for case in itertools.islice(sweep.cases(0, 1), 50)} == {1}


def sweep_of(monkeypatch, tmp_path, shapes, flags=()):
    """A sweep of small cases; its file."""
    cases = [
        sweep.Case(call, direction, shape, layout, "float32", mode, 1)
        for call, direction, mode in itertools.product(sweep.CALLS, sweep.DIRECTIONS, spec.MODES)
        for layout, shape in shapes.items()
    ]
    monkeypatch.setattr(sweep, "cases", lambda seed, threads: iter(cases))
    monkeypatch.setattr(command, "SWEPT", tmp_path / "sweep.json")
    assert command.main(["--sections=sweep", "--threads=1", *flags]) == 0
    return cases, sweep.load(tmp_path / "sweep.json")


@pytest.mark.long
def test_a_sweep(monkeypatch, tmp_path, capsys):
    """Every call of every implementation, in ranks 4 and 5."""
    shapes = {"NHWC": (2, 1, 3, 5), "NCDHW": (2, 5, 1, 1, 3)}
    cases, found = sweep_of(monkeypatch, tmp_path, shapes)
    assert found.measured == len(cases) and not found.failed
    assert len(found.worst) == 10 and found.machine["isa"]
    ratios = [row.ratio for row in found.worst]
    assert ratios == sorted(ratios, reverse=True)
    assert found.slower == sum(ratio > sweep.LIMIT for ratio in ratios) or found.slower > 10
    assert f"of {len(cases)} random cases" in capsys.readouterr().out


def test_a_sweep_ends_in_time(monkeypatch, tmp_path):
    assert sweep_of(monkeypatch, tmp_path, {"NHWC": (2, 1, 3, 5)}, ["--within=0"])[1].measured == 0


def test_the_page_shows_the_recorded_sweep():
    text = report.PAGE.read_text("utf-8")
    written = sweep.text(sweep.load(sweep.RECORDED))
    assert report.with_overview(text, written, sweep.BEGIN) == text


@pytest.mark.parametrize("switched", [False, True])
def test_tensorflow_is_measured_with_its_own_kernels(switched, monkeypatch, tmp_path):
    """Also where TF_BN_OPS is exported; where a site switches this library on, it is left out."""
    monkeypatch.setenv("TF_BN_OPS", "1")
    if switched:
        enable = "lambda: __import__('tf_bn_ops').enable(keras=False)"
        (tmp_path / "sitecustomize.py").write_text(
            "from tf_bn_ops import _startup\n"
            f"_startup.call_after_imports({{'tensorflow': {enable}}})\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = bench_worker.Worker("tensorflow", 1)
    try:
        if switched:
            with pytest.raises(bench_worker.WorkerError, match="does not run TensorFlow's kernels"):
                handle.process.wait_until_ready()
        else:
            handle.process.wait_until_ready()
    finally:
        handle.process.close()


def test_a_worker_that_dies_is_reported_and_restarted():
    handle = bench_worker.Worker("memory_bandwidth", 1)
    try:
        handle.ask("prepare", _row())
        with pytest.raises(bench_worker.CallError, match="AttributeError"):
            handle.ask("nonsense")
        handle.process._process.kill()
        handle.process._process.wait()
        handle.ask("prepare", _row())
        assert all(seconds > 0 for seconds in handle.ask("time", 0.001))
    finally:
        handle.process.close()


@pytest.mark.long
def test_a_turn_steps_the_same_network_with_every_variant(monkeypatch):
    import keras

    def build(name, side):
        keras.utils.set_random_seed(1)
        inputs_ = keras.Input((side, side, 3))
        x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3)(inputs_))
        x = keras.layers.BatchNormalization()(keras.layers.ReLU(name="relu")(x))
        x = keras.layers.Add()([keras.layers.Conv2D(4, 1)(x), x])
        x = keras.layers.Conv2D(4, 1)(keras.layers.Activation("relu", name="behind")(x)) * 2.0
        x = keras.layers.Conv2D(4, 1)(keras.layers.ReLU(name="not_behind")(x))
        return keras.Model(inputs_, keras.layers.Dense(1000, "softmax")(keras.layers.Flatten()(x)))

    model = build("", 8)
    assert networks.activations_behind(model) == {"relu", "behind"}
    monkeypatch.setattr(networks, "build", build)
    monkeypatch.setattr(builtin, "check_kernels", in_any_process)
    server = networks.Server.__new__(networks.Server)
    kept = server.prepare("", 2, 8)
    assert set(kept) == {results.KERAS, results.FUSED, results.RECOMPUTED}
    recomputed = networks.Recomputed(model)
    assert len(recomputed.segments) == 5  # The addition with both branches is in one of them.
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    np.testing.assert_array_equal(recomputed(x, False), model(x, training=False))
    assert len(server.turn()) == len(results.VARIANTS)
    # Same weights, same images: the loss with our layers is that with Keras'.
    losses = {name: float(step()) for name, step in server.steps.items()}
    for name in ("tf_bn_ops", "fused"):
        assert losses[name] == pytest.approx(losses["keras"], rel=1e-5)
    for name in ("identity", "without_both"):
        assert losses[name] != pytest.approx(losses["keras"], rel=1e-5)


# ---- Two builds --------------------------------------------------------------------------------


def test_pairs_take_all_networks_unless_some_are_named():
    pairs = tool("bench.pairs")
    assert pairs.parsed(["folding"]).names == [*networks.NETWORKS]
    assert pairs.parsed(["folding", "resnet50"]).names == ["resnet50"]
    with pytest.raises(SystemExit):
        pairs.parsed(["folding", "resnet51"])


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
    assert against.Comparison(None, median, quartiles, pairs).verdict == verdict


@pytest.mark.long
def test_a_library_is_compared_with_another_build(tmp_path, capsys):
    other = tmp_path / _loader.CORE_LIBRARY
    shutil.copy(_loader.core_library_path(), other)
    flags = [f"--against={other}", "--dtypes=float32", "--layouts=NCHW", "--modes=training"]
    assert command.main([*flags, "--seconds=0.001", "--threads=1"]) in (0, 1)
    out = capsys.readouterr().out
    assert all(f"| {formula} |" in out for formula in against.FORMULAS)
    assert f"{3 * len(against.FORMULAS)} rows: " in out
    assert set(FORMULAS_BY_ROLES) <= set(against.FORMULAS)
