"""docs/support-matrix.md, and what it is made with: reports side by side in a Markdown page, and reports without their results."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from command_runner import command_runner
from example_reports import EXPECTED, HOSTILE, NUM_CONTRACT, SUITE, make_report

import accelkit
from accelkit.cli import main
from accelkit.discovery.catalog import plugins
from accelkit_conformance import checks
from accelkit_conformance.reports import matrix, page, summary
from accelkit_conformance.results import Result

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = page.begin("matrix"), page.end("matrix")
DECLARED = EXPECTED | {"test": "operators/*", "reason": "the [third] bit"}


NOT_RUN = {
    ("precision", "transformer-engine"): "needs an NVIDIA GPU",
    ("precision", "transformer-engine-float16"): "needs an NVIDIA GPU",
    ("strategy", "xla"): "needs XLA",
}


def ask(*arguments):
    return command_runner().invoke(main, ["conformance", "matrix", *map(str, arguments)])


def row_of(text, name):
    """The cells of the first row that begins with ``name``."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.fixture
def folder(tmp_path):
    """Reports of two devices: one with declared failures, one whose device was not there."""
    folder = tmp_path / "reports"
    folder.mkdir()
    results = [Result("operators/forward[add,float32]", "expected-failure"), Result("operators/forward[mul,float32]", "pass")]
    report = make_report(results=results, expected=[DECLARED, DECLARED | {"test": "layout/*", "reason": "not met"}])
    report["benchmarks"] = {"groups": []}
    (folder / "acme.json").write_text(json.dumps(report))
    absent = {"status": "absent", "reason": "no board", "hint": ""}
    other = make_report(["fail", "unsupported"], name="other", availability=absent, device_names=[], capabilities={"streams": "emulated"})
    (folder / "other.json").write_text(json.dumps(other))
    return folder


@pytest.fixture
def written(tmp_path):
    target = tmp_path / "page.md"
    target.write_text(f"# Ours\n\n{BEGIN}Nothing yet.\n{END}\n\nThe rest.\n")
    return target


def test_the_page_of_the_documentation_is_made_of_what_is_kept_beside_it(tmp_path):
    kept = DOCS / "support-matrix"
    copy = tmp_path / "page.md"
    text = (DOCS / "support-matrix.md").read_text("utf-8")
    copy.write_text(text.partition(BEGIN)[0] + BEGIN + END + text.partition(END)[2])
    assert ask(kept, "--write", copy).exit_code == 0
    assert copy.read_text("utf-8") == text, "make support-matrix writes it"
    assert all(len(path.read_bytes()) < 200_000 for path in kept.iterdir())


def test_the_page_shows_every_built_in_plugin_that_needs_no_hardware():
    """Makefile's list, which is the list of reports that are kept, leaves none out but those that a reason is given for.

    accelkit has no hook plugin: that of a package which ``accelkit new`` makes is in the list.
    """
    kept = [summary.read(path) for path in (DOCS / "support-matrix").glob("*.json")]
    found = {(one["subject"]["kind"], one["subject"]["name"]) for one in kept}
    assert {("accelerator", name) for name in ("cpu", "fake_xpu", "xla")} <= found
    assert {kind for kind, _ in found} == set(checks.SUBJECT_KINDS)
    others = {(one.kind, one.name) for one in plugins() if one.kind != "accelerator" and one.distribution == "accelkit"}
    assert others - set(NOT_RUN) | {("hooks", "acme_hooks")} == {one for one in found if one[0] != "accelerator"}
    for report in kept:
        if report["subject"]["kind"] != "accelerator":
            assert report["suite"]["profile"] == "full"
            assert report["certification"]["is_certified"], report["subject"]
    printed = subprocess.run(
        ["make", "-s", "--no-print-directory", "--eval", "print:;@echo $(OTHER_KINDS)", "print"],
        cwd=DOCS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {tuple(one.split("-", 1)) for one in printed.stdout.split()} == others - set(NOT_RUN)


def test_it_says_what_passed_where_and_when(folder, written):
    result = ask(folder, "--write", written)
    assert (result.exit_code, result.stderr) == (0, f"matrix: {written}\n")
    text = written.read_text()
    assert text.startswith(f"# Ours\n\n{BEGIN}## Accelerators\n\n| ")
    assert text.endswith(f"|\n{END}\n\nThe rest.\n")
    assert row_of(text, "") == ["`acme`", "`other`"]
    assert row_of(text, "plugin") == ["vendor-acme==1.0", "vendor-acme==1.0"]
    assert row_of(text, "device") == ["Acme One \u00d7 2", "absent"]
    assert row_of(text, "date") == ["2026-11-21"] * 2
    assert row_of(text, "accelkit") == [accelkit.__version__] * 2
    assert row_of(text, "profile") == ["contract, 2 tests", f"contract, {len(SUITE.tests)} tests"]
    assert row_of(text, "verdict") == ["not certified", "not certified"]
    assert row_of(text, "operators") == ["1 of 2, 1 expected to fail", "not run"]
    assert row_of(text, "contract") == ["not run", f"{NUM_CONTRACT - 2} of {NUM_CONTRACT - 1}, **1 failed**, 1 not supported"]
    assert "## Precisions" not in text
    assert row_of(text, "`graphs`") == ["none", "undeclared"]
    assert row_of(text, "`streams`") == ["native", "emulated"]
    assert (
        "\n### Expected failures of `acme`\n\n| area, or pattern of test ids | reason | tests | expires |\n| --- | --- | --- | --- |\n"
        in text
    )
    assert "| operators | [the \\[third\\] bit](https://example.org/1) | 1 | 2099-01-01 |\n" in text
    assert "not met" not in text, "what no result met is not shown"
    assert "Expected failures of `other`" not in text


def test_each_kind_of_plugin_has_its_tables(folder, written):
    cluster = make_report(
        results=[
            Result("cluster_ranks/nodes", "pass"),
            Result("cluster_ranks/ports", "unsupported", reason="ports are declared none"),
            Result("cluster_ranks/names", "unsupported", reason="there is no such name"),
            Result("cluster_errors/torn", "fail"),
        ],
        name="acme",
        kind="cluster",
        device_names=[],
        capabilities={},
    )
    on = ["cpu (accelkit==1.0)", "acme (vendor-acme==1.0)"]
    precision = make_report(
        results=[Result("precision_dtypes/stored", "pass")], name="a-8", kind="precision", accelerators=on, device_names=[], capabilities={}
    )
    (folder / "cluster-acme.json").write_text(json.dumps(cluster))
    (folder / "precision-a-8.json").write_text(json.dumps(precision))
    ask(folder, "--write", written)
    text = written.read_text()
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    assert headings == ["Accelerators", "Precisions", "Cluster environments"]
    accelerators, precisions, clusters = re.split("^## .*$", text, flags=re.MULTILINE)[1:]
    assert row_of(accelerators, "") == ["`acme`", "`other`"]
    assert "precision_dtypes" not in accelerators
    assert row_of(precisions, "") == ["`a-8`"]
    assert row_of(precisions, "device") == [", ".join(on)]
    assert row_of(precisions, "precision_dtypes") == ["1 of 1"]
    assert row_of(clusters, "") == ["`acme`"]
    assert "| device |" not in clusters, "a cluster environment is tested without one"
    assert row_of(clusters, "cluster_ranks") == ["1 of 1, 1 declared none, 1 not supported"]
    assert row_of(clusters, "cluster_errors") == ["0 of 1, **1 failed**"]
    assert "Capabilities" not in clusters
    html = folder / "matrix.html"
    ask(folder, "--html", html)
    assert re.findall("<h2>(.*)</h2>", html.read_text()) == headings
    kinds = [one["kind"] for one in json.loads(ask(folder, "--json").stdout)["subjects"]]
    assert kinds == ["accelerator", "accelerator", "precision", "cluster"]


def test_a_page_is_the_same_from_summaries(folder, written, tmp_path):
    ask(folder, "--write", written)
    kept = tmp_path / "new" / "kept"
    assert ask(folder, "--summaries", kept).exit_code == 0
    assert sorted(path.name for path in kept.iterdir()) == ["acme.json", "other.json"]
    found = json.loads((kept / "acme.json").read_text())
    assert found["schema"] == "accelkit.conformance.summary/1"
    assert not {"results", "benchmarks"} & set(found)
    assert [(one["test"], one["explains"]) for one in found["expected_failures"]] == [("operators/*", 1)]
    before = written.read_text()
    for source in (kept, folder):
        written.write_text(f"# Ours\n\n{BEGIN}{END}\n\nThe rest.\n")
        assert ask(source, "--write", written).exit_code == 0
        assert written.read_text() == before
    assert ask(folder, "--json").stdout == ask(kept, "--json").stdout
    again = tmp_path / "again"
    ask(kept, "--summaries", again)
    assert (again / "acme.json").read_text() == (kept / "acme.json").read_text()


def test_names_cannot_steer_the_page(folder, written):
    hostile = make_report(
        results=[Result("operators/forward[add]", "expected-failure")],
        name="a`b|c",
        device_names=[HOSTILE],
        capabilities={"x`|y": "native"},
        expected=[DECLARED | {"reason": HOSTILE + "[x](https://a.example) \\](https://b.example)", "issue": "javascript:alert(1)"}],
    )
    (folder / "hostile.json").write_text(json.dumps(hostile))
    assert ask(folder, "--write", written).exit_code == 0
    made = written.read_text().partition(BEGIN)[2].partition(END)[0]
    assert "<" not in made
    known = made.partition("## Expected failures of `a'b\\|c`")[2].partition("## ")[0]
    assert "javascript:alert(1)" in known
    assert not re.search(r"(?<!\\)(\\\\)*\]\(", known), "no link but those of issues, and that is none"
    assert len({line.replace("\\|", "").count("|") for line in made.partition("\n\n")[0].splitlines()}) == 1, "no row has more cells"


def test_a_page_without_the_marks_is_left_alone(folder, tmp_path, error_text):
    target = tmp_path / "page.md"
    target.write_text("# Ours\n")
    answer = ask(folder, "--write", target)
    assert (answer.exit_code, target.read_text()) == (2, "# Ours\n")
    assert "page.md" in answer.stderr
    assert answer.stderr == error_text


def test_a_summary_that_is_damaged_is_passed_over(folder, tmp_path, error_text):
    kept = tmp_path / "kept"
    ask(folder, "--summaries", kept)
    found = json.loads((kept / "acme.json").read_text())
    del found["subject"]["plugin"]
    (kept / "acme.json").write_text(json.dumps(found))
    result = ask(kept, "--json")
    assert "acme.json" in result.stderr
    assert "report.subject.plugin" in result.stderr
    assert result.stderr == error_text
    assert [one["name"] for one in json.loads(result.stdout)["subjects"]] == ["other"]


def test_a_summary_declares_no_more_than_is_unsupported(folder, tmp_path, error_text):
    kept = tmp_path / "kept"
    ask(folder, "--summaries", kept)
    found = json.loads((kept / "other.json").read_text())
    (kept / "other.json").write_text(json.dumps(found | {"declared_none": {"contract": 1}}))
    assert len(json.loads(ask(kept, "--json").stdout)["subjects"]) == 2
    for declared in ([], {"contract": "1"}, {"contract": 2}, {"layout": 1}):
        (kept / "other.json").write_text(json.dumps(found | {"declared_none": declared}))
        answer = ask(kept, "--json")
        assert "declared_none" in answer.stderr, declared
        assert [one["name"] for one in json.loads(answer.stdout)["subjects"]] == ["acme"]
    assert answer.stderr == error_text


def test_a_summary_is_no_report(folder, tmp_path, error_text):
    """What needs results refuses it by name."""
    kept = tmp_path / "kept"
    ask(folder, "--summaries", kept)
    answer = command_runner().invoke(main, ["conformance", "compare", str(kept / "acme.json"), str(kept / "acme.json")])
    assert answer.exit_code == 2
    assert "'accelkit.conformance.summary/1'" in answer.stderr
    assert answer.stderr == error_text


def test_the_same_reason_is_one_row():
    report = make_report(results=[Result(f"operators/forward[{name}]", "expected-failure") for name in ("add", "mul")])
    report["expected_failures"] = [DECLARED | {"test": f"operators/forward[{name}]"} for name in ("add", "mul")]
    text = matrix.markdown([(Path("a.json"), summary.of(report))])
    assert text.count("the \\[third\\] bit") == 1
    assert "| 2 | 2099-01-01 |" in text
