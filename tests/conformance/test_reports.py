"""Reports: the record of a run, JSON, JUnit XML, the HTML page.

Promised: JSON, JUnit XML and the HTML page hold every case and failure; a run that a signal ends
reports what was judged; what is not covered is said; a file that is no record is one sentence.

Runs go through the command line with NumPy kernels in place of the processes that run TensorFlow.
"""

import functools
import html.parser
import itertools
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
from tf_bn_ops.conformance.reports import junit, overview, page, record, summary, terminal
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.result import CaseResult, PathResult

FLAGS = ("--kinds=random", "--ops=V2,V3", "--cases=42", "--candidate=numpy:kernels", "--shrink=1")


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
def test_a_run_that_a_signal_ends_reports_what_was_judged(run, number, request):
    before = signal.getsignal(signal.SIGTERM)
    # As in a terminal; what starts in the background ignores it.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, ignored))
    status, files, printed = run(*FLAGS, worker=_signalled(_Worker, number))
    read = record.load(files["json"])
    count = len(read["cases"])
    assert (status, read["total"]) == (130, 42) and 18 <= count <= 20
    assert f"conformance INTERRUPTED: 0 of {count} cases failed" in printed
    assert f"not covered: {42 - count} of 42 cases were not run" in printed
    assert "conformance interrupted: 0 of" in files["html"].read_text()
    assert ET.parse(files["junit"]).find(".//error").get("type") == "interrupted"
    assert run("report", str(files["json"]), name="again")[0] == 130
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
    status, _, printed = run("report", str(tmp_path / "more.json"))
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


def test_a_record_gives_the_reports_of_its_run(run):
    """All that was printed, and the page, also where cases fail."""
    status, files, printed = run(*FLAGS, worker=_Wrong)
    again = run("report", str(files["json"]), name="again")
    assert (again[0], again[2]) == (status, printed) == (1, printed)
    assert all(again[1][kind].read_text() == file.read_text() for kind, file in files.items())


def test_refusal_is_one_sentence_and_status_2(run, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("")
    for flags, message in (
        (["report"], "required: FILE.json"),
        (["report", str(broken), str(broken)], "unrecognized arguments"),
        (["report", "/nowhere.json"], "/nowhere.json is no record"),
        ([*FLAGS, "--kinds=contract", "--cases=0"], "these flags select no case"),
    ):
        status, _, printed = run(*flags)
        assert status == 2 and message in printed
        assert len(printed.strip().splitlines()) == 1


def _places(content, at=()):
    """The path of each value in a record, of lists the first."""
    yield at
    if isinstance(content, (list, dict)):
        items = content.items() if isinstance(content, dict) else enumerate(content[:1])
        for key, value in items:
            yield from _places(value, (*at, key))


def test_a_field_of_another_type_is_one_sentence_that_names_it(run):
    """Whatever stands in the place of each field; where lists may be empty, reports can be made."""
    _, files, _ = run(*FLAGS, "--cases=1", worker=_Wrong)
    text = files["json"].read_text()
    good = json.loads(text)
    good["candidate"]["mapped"] = [
        {
            "name": "A", "like": "B", "device": None, "reference_device": "CPU:0", "signature": [],
            "departures": ["other"], "tolerances": [
                {"outputs": ["y"], "dtypes": [], "times_bound": 2, "reason": "r"},
            ],
        }
    ]  # fmt: skip
    good["divergences"] = [
        {"name": "n", "what": "w", "reason": "r", "may_hide": False, "covered": 1, "shown": 1}
    ]
    refused = 0
    for (*steps, last), value in itertools.product(
        (place for place in _places(good) if place),
        (None, True, 7, -1.5, "text", [], [None], [[]], {}, {"a": None}, ...),
    ):
        content = place = json.loads(json.dumps(good))
        for step in steps:
            place = place[step]
        place[last] = value
        if value is ...:  # It is missing.
            del place[last]
        try:
            record.check(content)
        except UsageError as error:
            said = str(error)
            assert any(f"{step}" in said for step in (*steps, last)) or "[...]" in said, said
            assert "\n" not in said
            refused += 1
            continue
        if value in ([], {}):  # What is empty.
            for made in (junit.of_record, page.of_record, record.dumps):
                assert made(content), (steps, last, value)
            terminal.print_record(terminal.console(), content)
    assert refused > 700


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no record of a conformance run: "),
        ("[" * 100_000, "is no record of a conformance run: "),
        ("[]", "Expected `object`, got `array`"),
        ('{"schema": 99}', f"its schema is 99, this is for {record.VERSION}"),
        (f'{{"schema": {record.VERSION}}}', "missing required field"),
        ('{"seconds": NaN}', "is no record of a conformance run: "),
        ('{"command": "\\ud800"}', "is no record of a conformance run: "),
    ],
)
def test_a_file_that_is_no_record_is_one_sentence(text, said, tmp_path):
    (tmp_path / "run.json").write_text(text)
    done = command.run("report", str(tmp_path / "run.json"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert said in done.stderr and "run.json is no record" in done.stderr


def test_a_known_divergence_that_no_case_shows_fails_the_run(right):
    read = record.load(right[0]["json"])
    entry = {
        "name": "gone", "what": "error", "reason": "it was", "may_hide": False,
        "covered": 4, "shown": 0,
    }  # fmt: skip
    for change, passes in (({}, False), ({"shown": 1}, True), ({"may_hide": True}, True)):
        read["divergences"] = [{**entry, **change}]
        assert record.passed(read) == passes
        assert ET.fromstring(junit.of_record(read)).get("failures") == str(int(not passes))
        assert ("stale: 0 of 4" in _Page(page.of_record(read)).text) != passes


def test_malformed_calls_are_a_tenth_beside_random_cases_and_all_without(run):
    flags = ("--ops=V2", "--cases=40", "--candidate=numpy:kernels")
    for kinds, counted in (("contract", (40, 40)), ("random,contract", (4, 44))):
        _, files, _ = run(*flags, f"--kinds={kinds}")
        found = [case["kind"].split("/")[0] for case in record.load(files["json"])["cases"]]
        assert (found.count("error"), len(found)) == counted
