"""Reports: the record of a run, JSON, JUnit XML, the HTML page, shards and their merger.

Runs go through the command line with NumPy kernels in place of the processes that run TensorFlow.
"""

import copy
import functools
import html.parser
import json
import os
import re
import signal
import xml.etree.ElementTree as ET

import command
import numpy as np
import numpy_kernels
import pytest

from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance import conformance_command
from tf_bn_ops.conformance.cases import coverage, generate
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.flags import DEFAULT_SEED
from tf_bn_ops.conformance.models.measure import OutputError
from tf_bn_ops.conformance.reports import junit, overview, page, record, shards, summary, terminal
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.result import CaseResult, PathResult

FLAGS = ("--kinds=random", "--ops=V2,V3", "--cases=42", "--candidate=numpy:kernels", "--shrink=1")
# What two runs of the same cases may differ in.
CIRCUMSTANCES = ("seconds", "date", "command")


class _Worker(numpy_kernels.KernelRunner):
    """A kernel in the role of a process."""

    kernel = numpy_kernels.Kernel

    def __init__(self, implementation, *_, **__):
        is_candidate = implementation.name == CANDIDATE
        super().__init__(type(self).kernel if is_candidate else numpy_kernels.Kernel)
        self.name = implementation.name
        self.facts = {"tensorflow": "0.0", "ops": ["FusedBatchNormGradV2", "FusedBatchNormGradV3"]}

    def wait_until_ready(self):
        pass

    def contract(self):
        return {}


class _Wrong(_Worker):
    kernel = numpy_kernels.ScaleSignFlip


def _run(folder, *flags, worker=_Worker, name="run"):
    """(exit status, kind -> file of the reports, what was printed) of the command."""
    files = {kind: folder / f"{name}.{kind}" for kind in ("json", "junit", "html")}
    with pytest.MonkeyPatch.context() as patch:
        # Nothing known: NumPy kernels keep to the contract.
        patch.setattr(divergences.Register, "load", lambda: divergences.Register([]))
        patch.setattr(conformance_command.workers, "Worker", worker)
        done = command.run(*flags, *(f"--{kind}={file}" for kind, file in files.items()))
    return done.returncode, files, done.stdout + done.stderr


@pytest.fixture
def run(tmp_path):
    return functools.partial(_run, tmp_path)


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """(files, what was printed) of a run in which all is right."""
    status, files, printed = _run(tmp_path_factory.mktemp("right"), *FLAGS)
    assert status == 0
    return files, printed


def _like(record_of_a_run):
    return {k: v for k, v in record_of_a_run.items() if k not in CIRCUMSTANCES}


def test_json_holds_every_case_and_is_read_back(right):
    files, _ = right
    read = record.load(files["json"])
    assert record.dumps(read) == files["json"].read_text()
    assert [case["index"] for case in read["cases"]] == list(range(42))
    assert read["total"] == 42
    assert {case["verdict"] for case in read["cases"]} == {record.PASSED}
    assert read["implementations"] == ["candidate", "onednn", "eigen"]
    assert read["settings"]["seed"] == DEFAULT_SEED
    for case in read["cases"]:
        assert set(case["evidence"]) == {"x_backprop", "scale_backprop", "offset_backprop"}
        assert set(case["implementations"]) == set(read["implementations"])
    # Most cases are evidence, or the run would be worth nothing.
    assert summary.Summary.of(read).total.complete > 21


def test_failures_are_in_every_report(run):
    status, files, printed = run(*FLAGS, worker=_Wrong)
    assert status == 1
    read = record.load(files["json"])
    failed = [case for case in read["cases"] if case["verdict"] == record.VALUES]
    assert len(failed) > 30
    case = failed[0]
    assert "scale_backprop" in case["failures"][0]
    assert case["implementations"]["candidate"]["outputs"]["scale_backprop"]["bound"] > 1
    assert case["implementations"]["candidate"]["outputs"]["scale_backprop"]["worst"]
    assert f"FAIL (values of scale_backprop: {len(failed)} cases" in printed
    # The verdict comes first, then the claim, then what was not covered, then tables.
    places = [printed.index(t) for t in ("conformance FAILED", "FAIL (values", "covered:", "\nop ")]
    assert places == sorted(places) and places[0] < 3, places
    replay = f"{read['replay']} {case['case']}"
    assert "--candidate=numpy:kernels --repro" in replay
    root = ET.parse(files["junit"]).getroot()
    assert root.get("failures") == str(len(failed))
    (element,) = root.findall(f".//testcase[@name='{case['case']}']")
    assert element.find("failure").get("type") == record.VALUES
    assert element.find("failure").get("message") == case["failures"][0]
    for text in (printed, element.find("failure").text, files["html"].read_text()):
        assert replay in text
        assert case["failures"][0] in text


class _WrongInOneLayout(_Worker):
    @staticmethod
    def kernel(case, *arrays):
        wrong = case.layout == "NHWC" and not case.is_training
        return (numpy_kernels.ScaleSignFlip if wrong else numpy_kernels.Kernel)(case, *arrays)


def test_a_claim_says_what_its_cases_have_in_common(run):
    _, files, printed = run(*FLAGS, "--cases=80", worker=_WrongInOneLayout)
    assert "in common: layout NHWC, mode frozen (" in printed
    (claim,) = overview.claims(record.load(files["json"]))
    assert claim.name == "values of scale_backprop" and claim.count == claim.alike < 80
    assert claim.text.replace(">", "&gt;") in files["html"].read_text()


# What is said, numbers of sizes aside -> whether a case fails, and the size from which on it does.
CAUSES = {
    "layout with channels first, inner % 4 > 0": (
        lambda case, channels, inner, rows: case.layout in ("NCHW", "NCDHW") and inner % 4, 0,
    ),
    "layout NCHW, channels of # and more (not of #)": (
        lambda case, channels, inner, rows: case.layout == "NCHW" and channels > 4096, 4097,
    ),
    "mode training, type of 16 bits, rows of # and more (not of #)": (
        lambda case, channels, inner, rows: (
            case.dtype in ("half", "bfloat16") and case.is_training and rows > 2048
        ), 2049,
    ),
    "batch of # and less (not of #)": (lambda case, *_: case.shape[0] <= 1, 2),
    "kind tiny_variance": (lambda case, *_: case.kind == "tiny_variance", 0),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_that_failing_inputs_share_is_found_over_sizes_too(cause):
    """Of 500 cases of one op, and of a few properties that all failing ones have, the fewest."""
    fails, least = CAUSES[cause]
    entries = []
    combos = generate.combinations(["FusedBatchNormGradV3"])
    for number, case in enumerate(generate.generate(500, 1, combos)):
        is_wrong = bool(fails(case, *coverage.sizes(case.shape, case.layout)))
        path = PathResult(errors={"x_backprop": OutputError(bound=9.0 if is_wrong else 0.5)})
        found = CaseResult(case, {CANDIDATE: path}, {"x_backprop": True}, ["wrong"] * is_wrong)
        entries.append(record.of_result(number, found))
    (claim,) = overview.claims(command.record_of(*entries))
    said = ", ".join(claim.common)
    number = re.compile(r"(?<=of )\d+\b(?! bits)")
    assert number.sub("#", said) == cause
    ends = sorted(map(int, number.findall(said)))
    assert not ends or ends[0] < least <= ends[1], said
    assert claim.count == claim.alike


def test_a_run_may_end_with_the_first_failure(run):
    status, files, printed = run(*FLAGS, "-x", worker=_Wrong)
    read = record.load(files["json"])
    assert status == 1 and read["total"] == 42 and 0 < len(read["cases"]) < 10
    assert [c["verdict"] for c in read["cases"]].index(record.VALUES) == len(read["cases"]) - 1
    assert f"not covered: {42 - len(read['cases'])} of 42 cases were not run" in printed
    status, files, _ = run(*FLAGS, "-x")
    assert status == 0 and len(record.load(files["json"])["cases"]) == 42


def _signalled(base, number):
    """A worker in whose case number 21 a signal comes."""

    class Signalled(base):
        left = 20

        def collect(self):
            if self.name == CANDIDATE:
                Signalled.left -= 1
                if Signalled.left < 0:
                    os.kill(os.getpid(), number)
            return super().collect()

    return Signalled


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_a_signal_ends_reports_what_was_judged(run, number):
    before = signal.getsignal(signal.SIGTERM)
    status, files, printed = run(*FLAGS, worker=_signalled(_Worker, number))
    read = record.load(files["json"])
    count = len(read["cases"])
    assert (status, read["total"]) == (130, 42) and 18 <= count <= 20
    assert f"conformance INTERRUPTED: 0 of {count} cases failed" in printed
    assert f"not covered: {42 - count} of 42 cases were not run" in printed
    assert "conformance interrupted: 0 of" in files["html"].read_text()
    assert ET.parse(files["junit"]).find(".//error").get("type") == "interrupted"
    assert run("merge", str(files["json"]), name="again")[0] == 130
    # A failure is one all the same, and is not reduced: whoever sent the signal does not wait.
    status, files, printed = run(*FLAGS, worker=_signalled(_Wrong, number))
    assert status == 1 and "conformance FAILED" in printed
    assert not any(case["script"] for case in record.load(files["json"])["cases"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_how_far_a_run_is_is_said_where_there_is_no_terminal(run, monkeypatch):
    monkeypatch.setattr(terminal, "HEARTBEAT", 0.01)
    _, _, printed = run(*FLAGS)
    said = re.findall(r"conformance: (\d+) of 42 cases judged, 0 failed, \d+ s\n", printed)
    assert len(set(said)) > 3 and sorted(said, key=int) == said


def test_what_is_not_covered_is_said(run, right, tmp_path):
    files, printed = right
    read = record.load(files["json"])
    (entry,) = (e for e in read["coverage"] if e["op"] == "FusedBatchNormGradV3")
    assert f"{len(entry['missing'])} of {entry['pairs']} pairs of {entry['op']}: " in printed
    assert "not covered: kinds of cases: contract" in printed
    entry["missing"] = []  # As of more cases (test_rare_faults.py).
    (tmp_path / "more.json").write_text(record.dumps(read))
    status, _, printed = run("merge", str(tmp_path / "more.json"))
    assert (
        status == 0
        and "not covered: kinds" in printed
        and "pairs of FusedBatchNormGradV3" not in printed
    )


def test_junit_has_every_case_once_and_counts_them(right):
    files, _ = right
    read = record.load(files["json"])
    root = ET.parse(files["junit"]).getroot()
    assert root.tag == "testsuites"
    names = [element.get("name") for element in root.iter("testcase")]
    assert sorted(names) == sorted(case["case"] for case in read["cases"])
    assert root.get("tests") == "42"
    assert root.get("failures") == root.get("errors") == "0"
    for suite in root.findall("testsuite"):
        assert int(suite.get("tests")) == len(suite.findall("testcase"))


class _Page(html.parser.HTMLParser):
    """Checks that elements are closed in order, and collects tags and text."""

    EMPTY = ("meta", "wbr")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_is_whole_and_needs_nothing_from_elsewhere(right):
    files, _ = right
    text = files["html"].read_text()
    for word in ("http:", "https:", "url(", "@import", "//", " src="):
        assert word not in text, word
    parsed = _Page(text)
    tags = {tag for tag, _ in parsed.tags}
    assert "script" not in tags and "link" not in tags
    read = record.load(files["json"])
    numbers = summary.Summary.of(read)
    # A strip for every op, dtype, layout and mode, and marks for all three implementations.
    labels = [attrs.get("aria-label") for tag, attrs in parsed.tags if tag == "svg"]
    for key in numbers.groups:
        assert " ".join(key[1:]) in labels
    assert sum(attrs.get("class") == "mark" for _, attrs in parsed.tags) >= 3 * len(numbers.groups)
    for said in (
        "0 of 42 cases failed", "onednn", read["machines"][0]["cpu"], "version of tensorflow",
        read["command"], "seed", "Known divergences", "Worst cases",
    ):  # fmt: skip
        assert said in parsed.text, said


def test_names_that_reports_have_never_heard_of_are_shown(right):
    """Verdicts, implementations, kinds and outputs are data."""
    read = record.load(right[0]["json"])
    case = read["cases"][3]
    case |= {"verdict": "hang", "failures": ["no <answer> in 7 s\x00"], "kind": "odd"}
    case["evidence"] = {"log_likelihood": True}
    case["implementations"] = {
        "rocm": {
            "departures": [["hang", "no answer"]],
            "outputs": {"log_likelihood": {"ulp": 7.0, "bound": 1234.5, "worst": "at [0]"}},
        }
    }
    case["execution_modes"] = {"rocm": {"by_pigeon": "differs"}}
    read["implementations"].append("rocm")
    root = ET.fromstring(junit.of_record(read))
    assert root.find(".//testcase/error").get("type") == "hang"
    assert root.get("errors") == "1"
    shown = _Page(page.of_record(read)).text
    for word in (
        "hang",
        "rocm",
        "odd",
        "log_likelihood",
        "1.2e3",
        "by_pigeon",
        "no <answer> in 7 s",
    ):
        assert word in shown, word
    assert not record.passed(read)


def test_rounding_in_the_file_acquits_nobody():
    assert record._rounded(1.0 + 1e-12) > 1
    assert record._rounded(1.0) == 1
    assert record._rounded(0.123456789) == 0.123457
    assert record._rounded(np.inf) is None


@pytest.mark.long
def test_merged_shards_are_the_whole_run(run):
    """Also where cases fail; shards in any order."""
    _, files, whole_printed = run(*FLAGS, worker=_Wrong, name="whole")
    whole = record.load(files["json"])
    parts, total = [], 0
    for i in (3, 1, 2):
        _, files, printed = run(*FLAGS, f"--shard={i}/3", worker=_Wrong, name=f"shard{i}")
        assert f"shard {i} of 3" in printed
        parts.append(files["json"])
        total += len(record.load(files["json"])["cases"])
    assert total == 42
    status, files, printed = run("merge", *map(str, parts), name="merged")
    assert status == 1
    merged = record.load(files["json"])
    assert _like(merged) == _like(whole)
    assert "--shard" not in merged["command"]
    # All that is printed, but for the last line, which has the seconds.
    assert printed.splitlines()[:-1] == whole_printed.splitlines()[:-1]
    assert ET.parse(files["junit"]).getroot().get("tests") == "42"
    # And from one file of a whole run come its other reports.
    status, again, _ = run("merge", str(files["json"]), name="again")
    assert status == 1
    assert again["html"].read_text() == files["html"].read_text()


def test_shards_are_disjoint_and_balanced():
    items = list(range(1000))
    parts = [shards.Shard(i, 7).of(items, seed=5) for i in range(1, 8)]
    assert sorted(i for part in parts for i, _ in part) == items
    assert all(part == sorted(part) and all(i == item for i, item in part) for part in parts)
    assert {len(part) for part in parts} <= {142, 143}
    # Cases repeat in a rhythm (one of 70 is large): no shard may get all of them.
    assert all(sum(i % 70 == 33 for i, _ in part) < 8 for part in parts)
    assert shards.Shard(1, 1).of(items, seed=5) == list(enumerate(items))


@pytest.fixture(scope="module")
def shards_of_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    flags = ("--ops=V2", "--kinds=random", "--cases=4", "--candidate=numpy:kernels")
    ran = [_run(folder, *flags, f"--shard={i}/2", name=str(i)) for i in (1, 2)]
    files = [files["json"] for _, files, _ in ran]
    assert [*(status for status, *_ in ran), _run(folder, "merge", *files)[0]] == [0, 0, 0]
    return [(file.name, record.load(file)) for file in files]


@pytest.fixture
def two(shards_of_two):
    """The records of two shards of a small run, which is right, as the merged one is."""
    return copy.deepcopy(shards_of_two)


def _changed(name, change):
    def apply(pair):
        pair[1][1][name] = change(pair[1][1][name])
        return pair

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pair: [], "nothing to merge"),
        (lambda pair: pair[:1], "missing: the shards 2/2"),
        (lambda pair: [pair[0], pair[0]], "1.json and 1.json are both shard 1/2"),
        (_changed("shard", lambda _: None), "2.json is no shard"),
        (_changed("shard", lambda _: {"index": 2, "count": 3}), "one of 2 shards, 2.json one of 3"),
        (_changed("settings", lambda s: {**s, "seed": 9}), "settings: seed 1 and 9"),
        (_changed("versions", lambda v: {**v, "tensorflow": "1.0"}), "tensorflow '0.0' and '1.0'"),
        (_changed("candidate", lambda c: {**c, "digest": "f00"}), "digest None and 'f00'"),
        (_changed("cases", lambda c: c[:1]), "do not hold the 4 cases"),
    ],
)  # fmt: skip
def test_what_is_not_one_run_is_refused(two, change, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        shards.merge(change(two))


def test_refusal_is_one_sentence_and_status_2(run, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text(f'{{"schema": {record.VERSION}}}')
    for flags, message in (
        (["merge"], "nothing to merge"),
        (["merge", str(broken)], "should have the fields"),
        (["merge", "/nowhere.json"], "/nowhere.json is no record"),
        ([*FLAGS, "--shard=43/43"], "--shard=43/43 has none of the 42 cases"),
        ([*FLAGS, "--kinds=contract", "--cases=0"], "these flags select no case"),
    ):
        status, _, printed = run(*flags)
        assert status == 2 and message in printed
        assert len(printed.strip().splitlines()) == 1


def test_a_record_with_something_else_in_it_is_one_sentence(run):
    """Or of another version of the format."""
    _, files, _ = run(*FLAGS, "--cases=1")
    text = files["json"].read_text()
    case, path = ("cases", 0), ("cases", 0, "implementations", "candidate")
    for where, value in (
        ((), None), ((), []), (("cases",), None), (("cases",), [None]),
        (("machines",), None), (("machines",), [[]]), (("candidate", "mapped"), None),
        (("shard",), [1, 2]), (("shard",), {}), ((*case, "implementations"), []), (path, None),
        ((*path, "outputs"), None), ((*path, "departures"), [1]), ((*case, "failures"), None),
        (("schema",), 99),
    ):  # fmt: skip
        content = {"whole": json.loads(text)}
        *steps, last = ("whole", *where)
        place = content
        for step in steps:
            place = place[step]
        place[last] = value
        files["json"].write_text(json.dumps(content["whole"]))
        done = command.run("merge", str(files["json"]))
        assert done.returncode == 2, where
        said = f"{files['json']} is no record of a conformance run"
        said = f"format 99, this is for {record.VERSION}" if where == ("schema",) else said
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_only_the_whole_run_can_tell_that_a_divergence_is_stale(two):
    entry = {
        "name": "gone", "what": "error", "reason": "it was", "may_hide": False,
        "covered": 2, "shown": 0,
    }  # fmt: skip
    for _, part in two:
        part["divergences"] = [dict(entry)]
        assert record.passed(part)
    merged = shards.merge(two)
    assert merged["divergences"] == [{**entry, "covered": 4}]
    assert not record.passed(merged)
    assert ET.fromstring(junit.of_record(merged)).get("failures") == "1"
    assert "stale: 0 of 4" in _Page(page.of_record(merged)).text
    seen = copy.deepcopy(two)
    seen[1][1]["divergences"][0]["shown"] = 1
    assert record.passed(shards.merge(seen))


def test_machines_of_a_cluster_are_all_listed(two):
    two[1][1]["machines"][0]["cpu"] = "another processor"
    merged = shards.merge(two)
    assert [m["cpu"] for m in merged["machines"]][1:] == ["another processor"]
    assert "another processor" in _Page(page.of_record(merged)).text


def test_malformed_calls_are_a_tenth_beside_random_cases_and_all_without(run):
    flags = ("--ops=V2", "--cases=40", "--candidate=numpy:kernels")
    for kinds, counted in (("contract", (40, 40)), ("random,contract", (4, 44))):
        _, files, _ = run(*flags, f"--kinds={kinds}")
        found = [case["kind"].split("/")[0] for case in record.load(files["json"])["cases"]]
        assert (found.count("error"), len(found)) == counted
