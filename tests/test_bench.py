"""The benchmark: its shapes, statistics, verification, files, and one short run end to end."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from tf_bn_ops import _loader, spec
from tf_bn_ops.bench import (
    cli,
    data,
    docs,
    implementations,
    measure,
    memory,
    report,
    results,
    shapes,
    stats,
    verify,
    workers,
)
from tf_bn_ops.harness import c_abi, machine, oracle


def _row(shape=(2, 3, 4, 5), layout="NHWC", dtype="float32", mode="training", section="layers"):
    return shapes.Row(section, "given", shape, layout, dtype, mode, 1)


# ---- Shapes ------------------------------------------------------------------------------------


def test_networks_have_distinct_shapes_at_their_batch():
    for network, known in shapes.NETWORKS.items():
        assert len(set(known)) == len(known), network
    assert len(shapes.NETWORKS["resnet50"]) == 9
    assert len(shapes.NETWORKS["mobilenetv2"]) == 19
    assert {shape[0] for n in ("resnet50", "mobilenetv2") for shape in shapes.NETWORKS[n]} == {32}
    assert {len(shape) for shape in shapes.NETWORKS["unet3d"]} == {5}
    assert set(shapes.NETWORKS["odd"]) == {(32, 224, 224, 3), (4096, 1, 1, 256), (2, 4, 4, 8)}
    everything = {shape for known in shapes.NETWORKS.values() for shape in known}
    assert set(shapes.QUICK) <= everything


def test_a_full_run_has_every_combination():
    chosen = shapes.choose([], quick=False)
    rows = shapes.layer_rows(chosen, shapes.DTYPES, tuple(spec.DATA_FORMATS), spec.MODES, threads=2)
    assert len(rows) == len(set(rows)) == len(chosen) * 3 * 2 * 2
    assert {row.layout for row in rows} == set(spec.DATA_FORMATS)


def test_dims_and_views():
    last, first = _row(), _row(layout="NCHW")
    assert last.dims == (2, 3, 4, 5) and last.view == (24, 5, 1)
    assert first.dims == (2, 5, 3, 4) and first.view == (2, 5, 12)
    assert _row((2, 3, 4, 6, 5), "NCDHW").view == (2, 5, 72)
    assert _row(dtype="half").bytes == 3 * 120 * 2


def test_shapes_are_chosen_by_network_or_size():
    assert shapes.choose(["dcgan", "8x3x3x7", "2x4x4x8"], quick=False) == [
        *(("dcgan", shape) for shape in shapes.NETWORKS["dcgan"]),
        ("given", (8, 3, 3, 7)),
        ("odd", (2, 4, 4, 8)),
    ]
    with pytest.raises(shapes.ShapeError, match="'alexnet' is no network"):
        shapes.choose(["alexnet"], quick=False)


def test_scaling_series():
    rows = shapes.scaling_rows(("NHWC", "NCHW"), 2)
    elements = [row.elements for row in rows if row.section == "elements"]
    assert 900 < min(elements) <= 1000 and 0.99e8 < max(elements) <= 1e8
    assert {row.channels for row in rows if row.section == "channels"} == set(shapes.CHANNELS)
    assert shapes.thread_counts(1) == [1]
    assert shapes.thread_counts(2) == [1, 2]
    assert shapes.thread_counts(6) == [1, 2, 4, 6]


def test_floor_depends_on_where_the_inputs_fit():
    big, small = _row((32, 112, 112, 64)), _row((32, 14, 14, 64))
    llc = 32 << 20
    assert measure.floor(big, llc) == {"reads": 4, "writes": 1}
    assert measure.floor(small, llc) == {"reads": 2, "writes": 1}
    assert measure.floor(_row((32, 112, 112, 64), mode="frozen"), llc)["reads"] == 2
    assert measure.floor(_row((32, 112, 112, 64), "NCHW"), llc)["reads"] == 2


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
    assert stats.share_above([0.5, 0.65, 0.9], 0.65) == pytest.approx(2 / 3)
    with pytest.raises(ValueError):
        stats.percentile([], 0.5)


def test_seconds_have_a_unit():
    assert [report.seconds(s) for s in (2.0, 0.0123, 12.34e-6)] == ["2 s", "12.3 ms", "12.3 µs"]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", shapes.DTYPES)
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


def _right(row):
    """The outputs of all channels, as a correct op would round them."""
    values = data.statistics(row.channels)
    for role in ("y_backprop", "x"):
        values[role] = data.flat(role, row.dtype, row.elements).reshape(row.dims)
    exact = oracle.Oracle(values, row.layout, data.EPSILON, row.mode == "training")
    return [
        exact.x_backprop().astype(spec.DTYPES[row.dtype].numpy),
        exact.scale_backprop.astype(np.float32),
        exact.offset_backprop.astype(np.float32),
    ]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("dtype", shapes.DTYPES)
def test_verification_tells_right_from_wrong(layout, mode, dtype):
    row = _row((4, 6, 5, 9), layout, dtype, mode)
    verifier = verify.Verifier(row)
    assert len(verifier.channels) == row.channels
    right = _right(row)
    for profile in ("strict", "textbook"):
        assert verifier.judge(right, profile).wrong is None
    other = _row((4, 6, 5, 9), layout, dtype, "frozen" if mode == "training" else "training")
    spoiled = {
        "the other mode": [_right(other)[0], *right[1:]],
        "x_backprop of zeros": [np.zeros_like(right[0]), *right[1:]],
        "one element": [right[0].copy(), *right[1:]],
        "not a number": [right[0].copy(), *right[1:]],
        "scale_backprop": [right[0], right[1] * 1.01, right[2]],
        "offset_backprop": [right[0], right[1], right[2] * 1.01],
        "a float64 result": [right[0].astype(np.float64), *right[1:]],
        "a channel too few": [right[0][:, 1:], *right[1:]],
    }
    spoiled["one element"][0].flat[17] += 1
    spoiled["not a number"][0].flat[17] = np.nan
    for what, outputs in spoiled.items():
        verdict = verifier.judge(outputs, "textbook")
        assert verdict.wrong and verdict.error > 1, what


def test_big_tensors_are_checked_in_some_channels():
    verifier = verify.Verifier(_row((32, 56, 56, 64)))
    assert 1 <= len(verifier.channels) < 64
    assert len(set(verifier.channels.tolist())) == len(verifier.channels)


class _FakeWorker:
    """Answers as workers.Worker does: right, wrong by a factor, or not at all."""

    def __init__(self, name, factor=1.0, refuses=""):
        self.name, self.entry = name, implementations.ENTRIES[name]
        self._factor, self._refuses = factor, refuses
        self.visits = 0

    def ask(self, method, *arguments):
        if self._refuses:
            raise workers.CallError(self._refuses)
        if method == "time":
            self.visits += 1
            return {"call": [self._factor * 1e-3] * 2}
        if method == "result":
            row, channels = arguments
            x_backprop, scale_backprop, offset_backprop = _right(row)
            offset_backprop = offset_backprop * np.float32(self._factor)
            return x_backprop[:, channels], scale_backprop[channels], offset_backprop[channels]
        return None


def _fake_run(*fakes):
    meter = measure.Meter(fakes, measure.Budget(0.01, 3), 32 << 20)
    rows = [meter.measure(_row())]
    return {
        "schema": results.VERSION,
        "command": "python -m tf_bn_ops bench",
        "seconds": 1.0,
        "machine": {**machine.describe(), "load_before": 0.0},
        "settings": {"threads": 1, "seconds": 0.01, "rounds": 3},
        "versions": {"tensorflow": {"tensorflow": "2.0"}},
        "missing": {"jax": "jax is not installed"},
        "rows": rows,
        "memory": [],
        "eager_floor": {"warm_s": 1e-5, "swept_s": 5e-5},
        "summary": results.summarize(rows),
    }


def test_a_wrong_result_marks_the_row_and_the_exit_status(tmp_path, capsys):
    run = _fake_run(_FakeWorker("tf_bn_ops", 1.5), _FakeWorker("tensorflow"))
    cell = run["rows"][0]["results"]["tf_bn_ops"]
    assert "offset_backprop" in cell["wrong"]
    assert cell["error_in_bounds"] > 1
    assert "tensorflow" not in run["summary"]  # A wrong result has no speed.
    results.save(run, tmp_path / "results.json")
    assert cli.main(["bench", f"--load={tmp_path / 'results.json'}", f"--out={tmp_path}"]) == 1
    assert "wrong" in capsys.readouterr().out
    cli._FLAGS.unparse_flags()


def test_rows_that_no_op_could_win_are_told_apart():
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("torch"))
    row = run["rows"][0]
    row["results"]["torch"]["median_s"] = 4e-4  # Ours: 1e-3.
    row["floor"] = {"reads": 2, "writes": 1, "median_s": 3e-4, "p10_s": 3e-4, "p90_s": 3e-4}
    assert results.beyond_reach(run["rows"], "torch", 5e-5) == (1, 0)
    assert results.beyond_reach(run["rows"], "torch", 2e-4) == (1, 1)
    row["results"]["torch"]["median_s"] = 2e-3
    assert results.beyond_reach(run["rows"], "torch", 2e-4) == (0, 0)
    run["summary"] = results.summarize(run["rows"])
    assert any("takes 10" in sentence for sentence in report.limit_sentences(run))


def test_shares_of_the_limit_are_told_apart_by_dtype_layout_and_mode():
    run = _fake_run(_FakeWorker("tf_bn_ops"))
    small = run["rows"][0]
    assert not report.limit_table(run).rows  # Nothing of more than 32 MiB.
    shares = {"NHWC": [0.2, 0.5, 0.9], "NCHW": [0.65]}
    run["rows"] = [small] + [
        {
            **small,
            "layout": layout,
            "bytes": 40 << 20,
            "floor": {"reads": 2, "writes": 1, "median_s": 1.0, "p10_s": 1.0, "p90_s": 1.0},
            "results": {"tf_bn_ops": {**small["results"]["tf_bn_ops"], "limit_share": share}},
        }
        for layout in shares
        for share in shares[layout]
    ]
    dtype, mode = small["dtype"], small["mode"]
    assert report.limit_table(run).rows == [
        [dtype, "channels-last", mode, "3", "50%", "20%", "1"],
        [dtype, "channels-first", mode, "1", "65%", "65%", "1"],
    ]


def test_a_peers_wrong_result_and_refusal_are_reported_alone(tmp_path, capsys):
    peers = [_FakeWorker("torch", 1.5), _FakeWorker("eigen", refuses="InternalError: no NCHW")]
    run = _fake_run(_FakeWorker("tf_bn_ops"), *peers, _FakeWorker("tensorflow"))
    assert run["rows"][0]["refused"] == {"eigen": "InternalError: no NCHW"}
    assert run["rows"][0]["results"]["torch"]["wrong"]
    assert set(run["summary"]) == {"tensorflow", "limit", "wrong"}
    results.save(run, tmp_path / "results.json")
    assert cli.main(["bench", f"--load={tmp_path / 'results.json'}", f"--out={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "WRONG (a peer) PyTorch" in out
    assert "no NCHW" in out
    assert "left out: JAX: jax is not installed" in out
    cli._FLAGS.unparse_flags()


def test_close_rows_are_measured_longer():
    own, far, near = (_FakeWorker(n, f) for n, f in (("tf_bn_ops", 1), ("torch", 9), ("jax", 1)))
    budget = measure.Budget(1, 3)
    measure.Meter([own, far], budget, 1 << 20).measure(_row())
    assert own.visits == 3
    measure.Meter([own, near], budget, 1 << 20).measure(_row())
    assert near.visits == 6 and own.visits == 9


def test_rows_that_are_left_out_are_counted():
    run = _fake_run(_FakeWorker("tf_bn_ops"))
    meter = measure.Meter([], measure.QUICK, 1 << 20)
    run["rows"] += [meter.skip(_row((2, 3, 4, c)), "for want of time") for c in range(1, 7)]
    results.check(run)
    (sentence,) = report.skipped_sentences(run)
    assert sentence.startswith("Not measured, for want of time: 6 rows, from 2x3x4x1 NHWC")


# ---- Files -------------------------------------------------------------------------------------


def test_results_are_checked(tmp_path):
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"))
    path = tmp_path / "results.json"
    results.save(run, path)
    assert results.load(path) == json.loads(path.read_text())
    for spoil in (
        lambda r: r.pop("summary"),
        lambda r: r["rows"][0].pop("layout"),
        lambda r: r["rows"][0]["results"]["tf_bn_ops"].pop("p90_s"),
        lambda r: r.update(schema=0),
        lambda r: r["memory"].append({}),
        lambda r: r.update(eager_floor={}),
    ):
        broken = json.loads(json.dumps(run))
        spoil(broken)
        with pytest.raises(results.ResultsError):
            results.check(broken)
    with pytest.raises(results.ResultsError, match="cannot be read"):
        results.load(tmp_path / "none.json")


def test_the_schema_is_documented(repo_root):
    path = repo_root / "docs" / "benchmarks.md"
    if not path.exists():
        pytest.skip("needs the source tree")
    text = docs.check(path)  # The markers are there.
    for fields in results.SCHEMA.values():
        for name, meaning in fields.items():
            assert f"| `{name}` | {meaning} |" in text


def test_docs_are_written_between_the_markers(tmp_path):
    run = _fake_run(_FakeWorker("tf_bn_ops"), _FakeWorker("tensorflow"))
    path = tmp_path / "page.md"
    path.write_text(f"before\n{docs.BEGIN}\nold\n{docs.END}\nafter\n")
    for _ in range(2):  # Again over its own.
        docs.write(run, path)
        text = path.read_text()
        assert text.startswith("before\n") and text.endswith("\nafter\n")
        assert "old" not in text
        assert "| 2x3x4x5 | NHWC | float32 | training |" in text
        assert run["machine"]["cpu"] in text and run["command"] in text
    path.write_text("no markers")
    with pytest.raises(docs.DocsError, match="needs one line"):
        docs.write(run, path)


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
        (["--write_docs=/nowhere/page.md"], "/nowhere/page.md cannot be read"),
        (["stray"], "'stray' is not a flag"),
    ],
)
def test_wrong_usage_is_one_sentence(flags, message, capsys):
    assert cli.main(["bench", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    cli._FLAGS.unparse_flags()


def test_quick_run_without_some_peers(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "is_installed", lambda entry: entry.module not in ("torch", "jax"))
    flags = ["--quick", "--shapes=2x4x4x8", "--dtypes=float32", "--sections=layers"]
    flags += ["--peers=eigen,torch", "--seconds=0.005", f"--out={tmp_path}"]
    assert cli.main(["bench", *flags]) == 0
    cli._FLAGS.unparse_flags()
    out = capsys.readouterr().out
    assert "left out: PyTorch: torch is not installed" in out
    run = results.load(tmp_path / "results.json")
    assert run["missing"]["torch"] == "torch is not installed"
    assert [row["layout"] for row in run["rows"]] == ["NHWC", "NHWC", "NCHW", "NCHW"]
    for row in run["rows"]:
        own = row["results"]["tf_bn_ops"]
        assert own["wrong"] is None and own["error_in_bounds"] <= 1
        assert own["median_s"] > 0 and own["samples"] >= 3
    # TensorFlow's own kernel refuses frozen NCHW, which is a cell and not the end.
    assert "NHWC" in run["rows"][3]["refused"]["eigen"]
    assert run["summary"]["eigen"]["rows"] == 3


def test_memory_of_a_call_is_measured():
    if not memory.is_possible():
        pytest.skip("needs Linux's /proc/self/clear_refs")
    entry = implementations.ENTRIES["tf_bn_ops"]
    row, small = _row((32, 56, 56, 16)), _row((64, 8, 8, 8))
    worker = workers.Worker(entry, 1, {}, "tf_bn_ops.bench.memory")
    try:
        extra = worker.ask("extra", row, small)
    finally:
        worker.close()
    # With or without TensorFlow's pool, far from a copy of a tensor.
    assert abs(extra) < row.tensor_bytes


@pytest.fixture(scope="module")
def stream_folder(repo_root, tmp_path_factory):
    """A folder of libraries with the one that make bench alone builds."""
    source = repo_root / "cc" / "bench" / "stream.cc"
    compiler = shutil.which("g++")
    if not source.exists() or compiler is None:
        pytest.skip("needs the source tree and g++")
    folder = tmp_path_factory.mktemp("stream")
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"]
    target = folder / implementations.STREAM_LIBRARY
    subprocess.run([compiler, *flags, "-o", target, source], check=True)
    (folder / _loader.CORE_LIBRARY).symlink_to(_loader.core_library_path())
    return folder


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 63, 256, 4096 * 3 + 77, 1 << 18])
def test_the_streaming_limit_really_moves_everything(stream_folder, monkeypatch, threads, size):
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(stream_folder))
    stream = implementations.Stream(threads)
    rng = np.random.default_rng(size)
    a, b = (rng.integers(256, size=size, dtype=np.uint8) for _ in range(2))
    stream.load(a, b)
    calls = stream.variants()
    assert set(calls) == {"2r1w around", "2r1w cached", "2r"}
    for name in ("2r1w around", "2r1w cached"):
        stream._out[:] = 0
        calls[name]()
        start = -stream._out.ctypes.data % 64
        assert np.array_equal(stream._out[start : start + size], a ^ b)
        assert not stream._out[start + size :].any()
    calls["2r"]()


def test_a_dead_worker_is_said_and_started_again(stream_folder, monkeypatch):
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(stream_folder))
    worker = workers.Worker(implementations.ENTRIES["stream"], 1)
    try:
        row = _row()
        worker.ask("prepare_stream", row, ["2r1w", "2r"])
        assert set(worker.ask("time", 0.001)) == {"2r1w", "2r"}
        with pytest.raises(workers.CallError, match="AttributeError"):
            worker.ask("nonsense")
        worker.process._process.kill()
        worker.process._process.wait()
        with monkeypatch.context() as patch:  # Found out during the request.
            patch.setattr(worker.process._process, "poll", lambda: None)
            with pytest.raises(workers.CallError, match="SIGKILL"):
                worker.ask("time", 0.001)
        worker.ask("prepare_stream", row, ["2r1w"])
        assert set(worker.ask("time", 0.001)) == {"2r1w"}
    finally:
        worker.close()
