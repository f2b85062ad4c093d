"""Summaries: reports without the results of individual tests.

A page that compares several reports can be made from their summaries. Summaries are small enough to be stored next to the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelkit import UsageError, untrusted_json
from accelkit_conformance import report as reports
from accelkit_conformance.expectations import Expectation
from accelkit_conformance.report import Report, results_of
from accelkit_conformance.reports import schema

SCHEMA = "accelkit.conformance.summary/1"
_LEFT_OUT = ("results", "benchmarks")


def of(report: Report) -> Report:
    """Return the summary of a report.

    The summary leaves out the results of individual tests, the benchmarks, and the entry ``platform`` of the versions. It keeps only the
    expected failures that explain at least one result, each with the number of results that it explains. For each area, the summary also
    has the number of results that are unsupported because a capability is declared ``none``.
    """
    kept = {name: value for name, value in report.items() if name not in _LEFT_OUT}
    kept["versions"] = {name: version for name, version in report["versions"].items() if name != "platform"}  # platform names the kernel
    expected = [one for one in explained(report) if one["explains"]]
    return kept | {"schema": SCHEMA, "expected_failures": expected, "declared_none": reports.declared_none(results_of(report))}


def explained(report: Report) -> list[dict[str, Any]]:
    """Return the expected failures of a report. The number of results that each explains is added under the key ``explains``."""
    excused = [result.id for result in results_of(report) if result.kind == "expected-failure"]
    meant = [(one, Expectation(one["test"], "", "", "", tuple(one.get("dtypes", ())))) for one in report["expected_failures"]]
    return [{**one, "explains": sum(expectation.matches(test) for test in excused)} for one, expectation in meant]


def read(path: Path) -> Report:
    """Read a summary from a file. If the file holds a report, return the summary of that report.

    Raises:
        UsageError: If the file holds neither a summary nor a report.
    """
    content = reports.content_of(path)
    try:
        found = untrusted_json.parse(content)
    except ValueError:
        found = None  # the error is raised below
    if isinstance(found, dict) and found.get("schema") == SCHEMA:
        schema.checked({**found, "schema": reports.SCHEMA, "results": []}, path)
        if not all("explains" in one for one in found["expected_failures"]):
            raise UsageError(f"{path} is not a valid summary", why="an expected failure does not say how many results it explains")
        _check_declared_none(found.setdefault("declared_none", {}), found["summary"]["areas"], path)
        return found
    return of(schema.checked(reports.parsed(content, path), path))


def _check_declared_none(numbers: object, areas: Mapping[str, Mapping[str, int]], path: Path) -> None:
    """Check the field ``declared_none`` of a summary.

    For each area, the field has the number of results that are unsupported because a capability is declared ``none``.

    Args:
        numbers: The value of the field.
        areas: The number of results of each kind, for each area.
        path: The path of the summary.

    Raises:
        UsageError: If ``numbers`` does not map areas to positive integers, or if a number exceeds the area's number of unsupported results.
    """
    is_right = isinstance(numbers, dict) and all(
        type(number) is int and 0 < number <= areas.get(area, {}).get("unsupported", 0) for area, number in numbers.items()
    )
    if not is_right:
        why = "declared_none does not say how many of the unsupported results of each area are declared none"
        raise UsageError(f"{path} is not a valid summary", why=why)
