"""A record as JUnit XML, which CI systems show: a suite for every row of the summary's table.

The format is the one that Jenkins, GitLab and GitHub's actions read: testsuites / testsuite /
testcase, with `failure` for an answer that is wrong and `error` for one that did not come.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.conformance.reports.summary import group_of

# No answer at all; every other verdict is about an answer.
_ERRORS = ("crash", "hang", "error")
# What XML 1.0 has no way to write.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)


def _properties(record: record_lib.Record) -> ET.Element:
    properties = ET.Element("properties")
    values = {
        "command": record["command"],
        **{f"version of {name}": version for name, version in record["versions"].items()},
        **{name: record["settings"][name] for name in ("seed", "bounds")},
        "machine": "; ".join(machine["cpu"] for machine in record["machines"]),
    }
    for name, value in values.items():
        ET.SubElement(properties, "property", name=name, value=_legal(str(value)))
    return properties


def _testcase(record: record_lib.Record, case: record_lib.CaseRecord, suite: str) -> ET.Element:
    element = ET.Element("testcase", name=_legal(case["case"]), classname=suite)
    if case["verdict"] != record_lib.PASSED:
        tag = "error" if case["verdict"] in _ERRORS else "failure"
        message = case["failures"][0] if case["failures"] else case["verdict"]
        failure = ET.SubElement(element, tag, type=case["verdict"], message=_legal(message))
        lines = [*case["failures"], f"replay: {record['replay']} {case['case']}"]
        failure.text = _legal("\n".join([*lines, *filter(None, [case["script"]])]))
    lacking = [output for output, counts in case["evidence"].items() if not counts]
    if lacking:
        text = f"no evidence for {', '.join(lacking)}: a wrong answer would pass too"
        ET.SubElement(element, "system-out").text = text
    return element


def _counted(suite: ET.Element) -> ET.Element:
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("skipped", "0")
    return suite


def _divergences(record: record_lib.Record) -> ET.Element:
    """A suite with a test for every known divergence that cases were run of: it must be one."""
    suite = ET.Element("testsuite", name="known divergences")
    for entry in record["divergences"]:
        if entry["covered"]:
            element = ET.SubElement(
                suite, "testcase", name=entry["name"], classname="known divergences"
            )
            if record_lib.is_stale(record, entry):
                message = f"stale: none of {entry['covered']} cases showed it"
                ET.SubElement(element, "failure", type="stale", message=message)
    return _counted(suite)


def _signatures(record: record_lib.Record) -> ET.Element:
    """A suite with a test for the signature of every mapped op."""
    suite = ET.Element("testsuite", name="signatures")
    for op in record["candidate"]["mapped"]:
        element = ET.SubElement(suite, "testcase", name=op["name"], classname="signatures")
        if op["departures"]:
            message = "; ".join(op["departures"])
            ET.SubElement(element, "failure", type="signature", message=_legal(message))
    return _counted(suite)


def _end(record: record_lib.Record) -> ET.Element:
    """A suite with a test that fails where a signal ended the run: fewer tests look right."""
    suite = ET.Element("testsuite", name="end of the run")
    if record_lib.verdict(record) == "interrupted":
        left = record["total"] - len(record["cases"])
        element = ET.SubElement(suite, "testcase", name="all cases", classname="end of the run")
        message = f"interrupted: {left} of {record['total']} cases were not run"
        ET.SubElement(element, "error", type="interrupted", message=message)
    return _counted(suite)


def of_record(record: record_lib.Record) -> str:
    """The XML text."""
    by_suite: dict[str, list[record_lib.CaseRecord]] = {}
    for case in record["cases"]:
        by_suite.setdefault(".".join(filter(None, group_of(case))), []).append(case)
    root = ET.Element("testsuites", name="tf_bn_ops conformance", time=f"{record['seconds']:.3f}")
    for name, cases in sorted(by_suite.items()):
        suite = ET.SubElement(root, "testsuite", name=name, timestamp=record["date"])
        suite.append(_properties(record))
        suite.extend(_testcase(record, case, name) for case in cases)
        _counted(suite)
    root.append(_divergences(record))
    root.append(_signatures(record))
    root.append(_end(record))
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(suite.get(attribute, 0)) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
