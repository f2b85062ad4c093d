"""The commands that read reports and bundles of several runs, compare and matrix, and a run that cannot start."""

from __future__ import annotations

import json
import sys

import pytest
from example_reports import HOSTILE, LOADS, SUITE, make_report, save, tamper

from accelkit_conformance.report import SCHEMA, summarise
from accelkit_conformance.results import Result


def test_compare(cli, tmp_path):
    a = save(tmp_path / "a.json", make_report(["pass", "fail", "unsupported", "flaky", "fail"]))
    b = save(tmp_path / "b.json", make_report(["expected-failure", "unsupported", "over-unsupported", "pass", "crash"], name="other"))
    result = cli("compare", a, b)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "subject: acme (vendor-acme==1.0) -> other (vendor-acme==1.0)",
        f"worse: {SUITE.tests[0]}: pass -> expected-failure",
        f"worse: {SUITE.tests[2]}: unsupported -> over-unsupported",
        f"better: {SUITE.tests[1]}: fail -> unsupported",
        f"better: {SUITE.tests[3]}: flaky -> pass",
        f"other: {SUITE.tests[4]}: fail -> crash",
        f"2 worse, 2 better, 1 other, 0 new, 0 gone, {len(SUITE.tests) - 5} unchanged",
    ]
    found = json.loads(cli("compare", a, b, "--json").output)
    assert found["schema"] == "accelkit.conformance.compare/1"
    assert found["differences"] == {"subject": {"a": "acme (vendor-acme==1.0)", "b": "other (vendor-acme==1.0)"}}
    assert found["worse"][0] == {"id": SUITE.tests[0], "a": "pass", "b": "expected-failure", "reason": ""}


def test_compare_of_what_did_not_get_worse(cli, tmp_path, packed):
    fewer = make_report(results=[Result(test, "pass") for test in SUITE.tests[1:]])
    whole, part = packed(make_report(["fail"])), save(tmp_path / "part.json", fewer)
    result = cli("compare", whole, part)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, f"gone: {SUITE.tests[0]}: fail")
    result = cli("compare", part, whole)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, f"new: {SUITE.tests[0]}: fail")
    assert cli("compare", whole, whole).output == f"0 worse, 0 better, 0 new, 0 gone, {len(SUITE.tests)} unchanged\n"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{}", "a.json"),
        ("nothing", "a.json"),
        (f'{{"schema": "{SCHEMA}"}}', "report.subject"),
    ],
)
def test_compare_refuses_what_is_no_report(cli, tmp_path, content, text, error_text):
    path = tmp_path / "a.json"
    path.write_text(content)
    result = cli("compare", path, path)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stderr == error_text


def test_compare_refuses_a_bundle_without_report(cli, packed, error_text):
    path = packed()
    tamper(path, lambda members: members.pop("report.json"))
    result = cli("compare", path, path)
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert result.stderr == error_text


@pytest.fixture
def reports(tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    save(folder / "b.json", make_report(["fail", "unsupported"], name=HOSTILE, capabilities={"streams": "emulated"}))
    save(folder / "a.json", make_report(["flaky"]))
    (folder / "other.json").write_text("{}")
    return folder


def test_matrix(cli, reports, tmp_path, error_text):
    path = tmp_path / "new" / "matrix.html"
    result = cli("matrix", reports, "--html", path)
    assert result.exit_code == 0
    assert "other.json" in result.stderr
    assert result.stderr == error_text
    page = path.read_text()
    assert "<img" not in page
    assert not LOADS.search(page)
    total = summarise([Result(test, "pass") for test in SUITE.tests])["areas"]["contract"]["pass"]
    assert f"{total - 1}/{total}" in page
    assert "undeclared" in page
    found = json.loads(cli("matrix", reports, "--json").stdout)
    assert found["schema"] == "accelkit.conformance.matrix/1"
    assert [column["file"] for column in found["subjects"]] == ["b.json", "a.json"]
    bad, mid = found["areas"][0]["cells"]
    assert (bad["passed"], bad["applicable"], bad["tone"]) == (total - 2, total - 1, "bad")
    assert (mid["passed"], mid["applicable"], mid["tone"]) == (total - 1, total, "mid")
    assert found["capabilities"] == [{"name": "graphs", "levels": ["", "none"]}, {"name": "streams", "levels": ["emulated", "native"]}]


def test_matrix_needs_reports_and_a_place(cli, tmp_path, error_text):
    (tmp_path / "other.json").write_text("{}")
    result = cli("matrix", tmp_path, "--html", tmp_path / "matrix.html")
    assert (result.exit_code, (tmp_path / "matrix.html").exists()) == (2, False)
    assert str(tmp_path) in result.stderr
    assert result.stderr == error_text
    result = cli("matrix", tmp_path)
    assert result.exit_code == 2
    assert all(option in result.stderr for option in ("--html", "--write", "--summaries", "--json"))
    assert result.stderr == error_text


def test_a_run_without_a_package_that_its_tests_need_is_an_error(cli, monkeypatch, error_text):
    monkeypatch.setitem(sys.modules, "expecttest", None)  # as if it were not installed
    result = cli("run", "cpu", "--profile", "smoke", "--select", "operators/forward[add,float32]")
    assert "expecttest" in result.stderr
    assert "accelkit[conformance]" in result.stderr
    assert result.exit_code == 4
    assert result.stderr == error_text
