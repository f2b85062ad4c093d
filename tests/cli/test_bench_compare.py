"""accelkit bench compare: what became slower, with a statistical test, and files that are no reports."""

from __future__ import annotations

import dataclasses
import json

import pytest
from command_runner import command_runner

from accelkit.benchmarking.compare import compare, differences, holm, mann_whitney
from accelkit.benchmarking.report import Report, Result, Samples
from accelkit.cli import main


def report(values, unit="GB/s", **fields):
    results = tuple(Result(name, unit, unit != "us", Samples.of(samples)) for name, samples in values.items())
    known = {"name": "acme", "plugin": "acme==1", "device": "acme:0", "accelkit": "1", "torch": "2.9", "python": "3.11", "processor": "x"}
    return Report(**known | {"threads": 2, "time": 0.0, "is_quick": True, "peaks": {}, "results": results} | fields)


def around(median, count=9):
    return [median * (1 + 0.01 * (index - count // 2)) for index in range(count)]


def run(tmp_path, old, new, *options):
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, one in zip(paths, (old, new), strict=True):
        path.write_text(json.dumps(dataclasses.asdict(one)) if isinstance(one, Report) else one, "utf-8")
    return command_runner().invoke(main, ["bench", "compare", *map(str, paths), *options])


@pytest.mark.parametrize(("unit", "factor"), [("GB/s", 0.5), ("us", 2.0)])
def test_what_is_slower_is_found_and_only_that(tmp_path, unit, factor):
    old = report({"a": around(10.0), "b": around(10.0), "c": around(10.0)}, unit)
    new = report({"a": around(10.0), "b": around(10.0 * factor), "c": around(10.0 / factor)}, unit)
    assert [change.verdict for change in compare(old, new, 0.05)] == ["same", "slower", "faster"]
    assert run(tmp_path, old, new).exit_code == 1
    assert run(tmp_path, old, old).exit_code == 0
    assert run(tmp_path, old, new, "--threshold", "60%").exit_code == 0


def test_a_difference_that_may_be_chance_is_not_slower():
    old, new = report({"a": [1.0, 9.0, 5.0]}), report({"a": [1.0, 8.0, 3.0]})
    assert [change.verdict for change in compare(old, new, 0.05)] == ["same"]


def test_json_has_the_numbers_of_the_table(tmp_path):
    old = report({"a": around(10.0), "b": around(10.0), "c": around(1.0), "e": [0.0, 0.0, 0.0]})
    new = report({"a": around(5.0), "b": around(20.0), "d": around(1.0), "e": [1.0, 1.0, 1.0]}, torch="2.10", threads=4)
    table, result = run(tmp_path, old, new), run(tmp_path, old, new, "--json", "--threshold", "10%")
    assert (table.exit_code, result.exit_code, result.stderr) == (1, 1, "")
    answer = json.loads(result.stdout)
    assert answer["schema"] == "accelkit.bench.compare/1"
    assert answer["differences"] == {"threads": {"old": 2, "new": 4}, "torch": {"old": "2.9", "new": "2.10"}}
    assert (answer["old"], answer["new"]) == (str(tmp_path / "old.json"), str(tmp_path / "new.json"))
    assert answer["threshold"] == pytest.approx(0.1)
    changes = {change["name"]: change for change in answer["changes"]}
    assert {name: change["verdict"] for name, change in changes.items()} == {
        "a": "slower", "b": "faster", "c": "lost", "d": "new", "e": "same"
    }  # fmt: skip
    assert changes["a"] == {"name": "a", "unit": "GB/s", "old": 10.0, "new": 5.0, "speed": 0.5, "p": changes["a"]["p"], "verdict": "slower"}
    assert (changes["c"]["new"], changes["c"]["speed"], changes["e"]["speed"]) == (None, None, None)
    _, *rows = table.stdout.splitlines()
    for row, change in zip(rows, answer["changes"], strict=True):
        formats = {"old": "{:.4g}", "new": "{:.4g}", "speed": "{:.2f}x", "p": "{:.2g}"}
        shown = [form.format(change[key]) for key, form in formats.items() if change[key] is not None]
        assert row.split() == [change["name"], change["unit"], *shown, change["verdict"]]


def test_what_is_no_longer_supported_is_lost(tmp_path):
    old, new = report({"a": around(1.0)}), report({"b": around(1.0)})
    assert [change.verdict for change in compare(old, new, 0.05)] == ["lost", "new"]
    assert run(tmp_path, old, new).exit_code == 1


def test_other_devices_are_named_and_compared(tmp_path):
    one = report({"a": around(1.0)})
    result = run(tmp_path, one, dataclasses.replace(one, torch="2.10", device="acme:1"))
    assert result.exit_code == 0
    assert "torch differs: 2.9 and 2.10" in result.stderr
    assert "device differs: acme:0 and acme:1" in result.stderr


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "accelkit.bench/2"}', '{"schema": "accelkit.bench/1", "results": 3}'])
def test_a_file_that_is_no_report(tmp_path, text):
    result = run(tmp_path, report({}), text)
    assert result.exit_code == 2
    assert "new.json is not a report of accelkit bench" in result.stderr


def test_a_threshold_that_is_no_percentage(tmp_path):
    assert run(tmp_path, report({}), report({}), "--threshold", "much").exit_code == 2


def test_the_statistics_agree_with_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    a, b = [1.0, 4.0, 2.5, 8.0, 3.0], [5.0, 9.0, 7.0, 6.0, 2.0, 11.0]
    expected = scipy_stats.mannwhitneyu(a, b, method="asymptotic").pvalue
    assert mann_whitney(a, b) == pytest.approx(expected)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_another_model_of_the_device_is_a_difference():
    old, new = (report({}, device_name=name) for name in ("NVIDIA H100", "NVIDIA A100"))
    assert differences(old, new) == {"device_name": {"old": "NVIDIA H100", "new": "NVIDIA A100"}}
    assert differences(report({}), new) == {}, "a report of an older version has no name"
