"""The forms of a report."""

from __future__ import annotations

import json
import re
from html import unescape
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from example_reports import EXPECTED, HOSTILE, LOADS, SUITE, make_report

from accelkit_conformance.report import SCHEMA
from accelkit_conformance.reports import WRITERS, schema
from accelkit_conformance.results import BAD, KINDS, Result


def every_kind():
    """A result of each kind, with hostile text everywhere."""
    detail = {"reason": HOSTILE, "detail": HOSTILE, "reproducer": HOSTILE, "notes": (HOSTILE,)}
    return [Result(test, kind, 0.5, **detail) for test, kind in zip(SUITE.tests, KINDS, strict=False)]


@pytest.fixture
def written(tmp_path):
    def write(form, report):
        path = tmp_path / f"report.{form}"
        WRITERS[form](report, path, tmp_path)
        return path

    return write


# the schema


def test_schema_is_one_and_describes_what_it_has():
    published = json.loads(schema.FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(published)
    assert published["properties"]["schema"]["const"] == SCHEMA
    assert published["$defs"]["kind"]["enum"] == list(KINDS)
    assert set(published["$defs"]["result"]["properties"]) == set(Result.__slots__) - {"seen"}
    for part in (published, *published["properties"].values()):
        for name, one in part.get("properties", {}).items():
            assert "description" in one or "$ref" in one, name


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda report: report, None),
        (lambda report: report.pop("summary"), "report.summary is missing"),
        (lambda report: report["run"].update(seconds="1"), "report.run.seconds is '1', not of type number"),
        (lambda report: report["run"].update(parallel=True), "report.run.parallel is True, not of type integer"),
        (lambda report: report["run"].update(parallel=-1), "report.run.parallel is -1, less than 0"),
        (lambda report: report["results"][0].update(kind="good"), "report.results[0].kind is 'good', not one of pass, fail"),
        (lambda report: report["results"][0].update(notes=[1]), "report.results[0].notes[0] is 1, not of type string"),
        (lambda report: report["summary"]["kinds"].update(good=1), "a name in report.summary.kinds is 'good'"),
        (lambda report: report["suite"].update(digest="abc"), "report.suite.digest is 'abc', which does not match"),
        (lambda report: report.update(schema="other/1"), f"report.schema is 'other/1', not {SCHEMA!r}"),
        (lambda report: report.update(coverage=[]), "report.coverage is [], not of type object"),
    ],
)
def test_own_validation_agrees_with_jsonschema(change, problem):
    report = make_report(["fail"])
    change(report)
    found = schema.problems(report)
    validator = jsonschema.Draft202012Validator(json.loads(schema.FILE.read_text()))
    assert validator.is_valid(report) == (not found)
    assert (problem is None) == (not found)
    if problem:
        assert problem in found[0]


# JUnit, badge, HTML


def test_junit_counts_agree(written):
    report = make_report(KINDS)
    root = ET.parse(written("junit", report)).getroot()
    assert [suite.get("name") for suite in root] == list(report["summary"]["areas"])
    cases = root.findall("testsuite/testcase")
    assert len(cases) == int(root.get("tests")) == len(SUITE.tests)
    for tag, attribute, number in [("failure", "failures", len(BAD) - 2), ("error", "errors", 2), ("skipped", "skipped", 2)]:
        found = root.findall(f"testsuite/testcase/{tag}")
        assert len(found) == number == int(root.get(attribute)) == sum(int(suite.get(attribute)) for suite in root)
    assert {one.get("type") for one in root.iter("error")} == {"crash", "timeout"}
    assert "flaky" in root.find(".//testcase/system-out").text
    assert (cases[0].get("name"), cases[0].get("classname")) == (SUITE.tests[0], "contract")


def test_junit_survives_hostile_text(written):
    root = ET.parse(written("junit", make_report(results=every_kind(), name=HOSTILE))).getroot()
    failure = root.find(".//failure")
    assert failure.get("message") == HOSTILE.replace("\x00", "\\x00").replace("\x1b", "\\x1b").replace("\ud800", "\\ud800")
    assert "This program reproduces the failure" in failure.text


@pytest.mark.parametrize(
    ("kinds", "message"), [((), "contract certified"), (("fail", "crash"), "2 failed"), (("flaky",), "passing"), (("oom",), "1 failed")]
)
def test_badge_says_the_state(written, kinds, message):
    root = ET.parse(written("badge", make_report(kinds))).getroot()
    label, text = root.iter("{http://www.w3.org/2000/svg}text")
    assert (label.text, text.text) == ("accelkit conformance", message)
    assert float(text.get("x")) + float(text.get("textLength")) < float(root.get("width"))


def test_badge_survives_hostile_text(written):
    report = make_report()
    report["suite"]["profile"] = HOSTILE
    root = ET.parse(written("badge", report)).getroot()
    assert not list(root.iter("{http://www.w3.org/2000/svg}img"))


def full_report(text):
    """A report with every optional part, and ``text`` in each."""
    report = make_report(results=every_kind(), name=text, plugin=text, device_names=[text], capabilities={text: text})
    report["versions"]["torch"] = text
    report["certification"] = {"is_certified": False, "objections": [text]}
    report["expected_failures"] = [{**EXPECTED, "test": text, "reason": text, "issue": f"javascript:{text}"}, EXPECTED]
    report["coverage"] = {"required": 3, "seen": 1, "missing": ["aten::add.Tensor", text]}
    report["benchmarks"] = {"groups": [{"title": text, "unit": "GB/s", "rows": [{"name": text, "value": 0.0}]}]}
    return report


def test_html_survives_hostile_text(written):
    page = written("html", full_report(HOSTILE)).read_text()
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>") == 3
    embedded = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert [one["kind"] for one in embedded["results"]] == list(KINDS)
    assert embedded["results"][1]["reason"] == HOSTILE
    assert re.findall(r'href="(.*?)"', page) == ["https://example.org/1"]
    assert "javascript:" in unescape(page)


@pytest.mark.parametrize("report", [make_report(), full_report("plain")])
def test_html_loads_nothing(written, report):
    page = written("html", report).read_text()
    assert not LOADS.search(page)
    assert "default-src 'none'" in page


def test_html_shows_what_there_is(written):
    report = make_report(KINDS, expected=[{**EXPECTED, "test": f"{SUITE.tests[7].split('[')[0]}*"}])
    assert report["results"][7]["kind"] == "expected-failure"
    page = written("html", report).read_text()
    assert "Acme One \u00d7 2" in page
    assert "Not certified." in page
    assert '<td class="number">2099-01-01</td><td class="number">1</td>' in page
    for absent in ("Dispatcher coverage", "Benchmarks"):
        assert absent not in page
    page = written("html", full_report("plain")).read_text()
    for present in ("1 of 3 required ATen overloads", "aten::add.Tensor", "Benchmarks", "<svg"):
        assert present in page
    assert "<strong>Certified</strong>" in written("html", make_report()).read_text()


def test_html_of_what_could_not_be_loaded(written):
    report = make_report()
    for name in ("device_names", "capabilities"):
        del report["subject"][name]
    assert "not loaded" in written("html", report).read_text()
