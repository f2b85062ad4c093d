"""Several reports side by side: as data, and as Markdown for a page of documentation.

The rows are areas and capabilities, and the columns are subjects: the plugins that were tested.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit_conformance import checks
from accelkit_conformance.report import Report
from accelkit_conformance.reports.markdown import passed, plain
from accelkit_conformance.results import BAD

HEADINGS: Mapping[str, str] = {
    "accelerator": "Accelerators",
    "precision": "Precisions",
    "strategy": "Strategies",
    "cluster": "Cluster environments",
    "hooks": "Hook plugins",
}
_VERSIONS = ("torch", "accelkit", "python", "processor")
_LINK = re.compile(r"https?://[^\s()<>|`]+")


def matrix(found: Sequence[tuple[Path, Report]]) -> dict[str, list[dict[str, Any]]]:
    """Return the matrix of several summaries of reports (see ``summary.read``). Each summary comes with the path of its file.

    Returns:
        A dictionary with ``subjects``, ``areas`` and ``capabilities``.
    """
    reports = [report for _, report in found]
    areas = [area for area in checks.AREAS if any(area in report["summary"]["areas"] for report in reports)]
    declared = [report["subject"].get("capabilities", {}) for report in reports]
    names = sorted(set().union(*declared))
    return {
        "subjects": [_subject(path, report) for path, report in found],
        "areas": [{"name": area, "cells": [_cell(report, area) for report in reports]} for area in areas],
        "capabilities": [{"name": name, "levels": [one.get(name, "") for one in declared]} for name in names],
    }


def by_kind(found: Sequence[tuple[Path, Report]]) -> dict[str, list[tuple[Path, Report]]]:
    """Group summaries of reports, each with the path of its file, by the kind of plugin that was tested.

    The keys of the result are headings such as ``Accelerators``, in the order of ``checks.SUBJECT_KINDS``. Kinds without a summary are left
    out.
    """
    groups = {HEADINGS[kind]: [one for one in found if one[1]["subject"]["kind"] == kind] for kind in checks.SUBJECT_KINDS}
    return {heading: group for heading, group in groups.items() if group}


def markdown(found: Sequence[tuple[Path, Report]]) -> str:
    """Return the matrix as Markdown, with a section for each kind of plugin.

    Each section starts with a table of facts about the subjects (such as device, versions and verdict). Tables of areas, capabilities and
    expected failures follow.
    """
    return "\n".join(line for heading, group in by_kind(found).items() for line in _section(heading, group))


def _section(heading: str, found: Sequence[tuple[Path, Report]]) -> list[str]:
    made = matrix(found)
    subjects, reports = made["subjects"], [report for _, report in found]
    names = [f"`{plain(one['name'])}`" for one in subjects]
    facts = {name: [plain(one[name]) for one in subjects] for name in ("plugin", "device", "date", *_VERSIONS)}
    if heading != HEADINGS["accelerator"]:
        facts["device"] = [plain(", ".join(one["accelerators"])) for one in subjects]
    facts["profile"] = [f"{plain(one['profile'])}, {one['tests']:,} tests" for one in subjects]
    facts["verdict"] = ["certified" if one["is_certified"] else "not certified" for one in subjects]
    lines = [f"## {heading}", "", *_table(["", *names], ([name, *cells] for name, cells in facts.items() if any(cells)))]
    areas = [[row["name"], *(_passed(report, row["name"]) for report in reports)] for row in made["areas"]]
    lines += ["", f"### Areas of {heading.lower()}", "", *_table(["area (tests passed, out of those that apply)", *names], areas)]
    if made["capabilities"]:
        levels = ([f"`{plain(row['name'])}`", *(plain(level or "undeclared") for level in row["levels"])] for row in made["capabilities"])
        lines += ["", "### Capabilities", "", *_table(["capability", *names], levels)]
    for name, report in zip(names, reports, strict=True):
        if rows := _expected(report):
            lines += [
                "",
                f"### Expected failures of {name}",
                "",
                *_table(["area, or pattern of test ids", "reason", "tests", "expires"], rows),
            ]
    return [*lines, ""]


def _passed(report: Report, area: str) -> str:
    counts = report["summary"]["areas"].get(area)
    return "not run" if counts is None else passed(counts, report["declared_none"].get(area, 0))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]


def _expected(report: Report) -> list[list[object]]:
    """Return the rows of the table of expected failures.

    The columns are the area or the pattern of test ids, the reason with the issue, the number of results explained, and the expiry date.
    Expected failures of one area that differ only in their tests share a row.
    """
    grouped: dict[tuple[str, str, str, str], int] = collections.Counter()
    for one in report["expected_failures"]:
        grouped[checks.area_of(one["test"]), one["reason"], one["issue"], one["expires"]] += one["explains"]
    return [[plain(area), _linked(reason, issue), number, plain(until)] for (area, reason, issue, until), number in grouped.items()]


def _linked(text: str, address: str) -> str:
    return f"[{plain(text)}]({address})" if _LINK.fullmatch(address) else f"{plain(text)} ({plain(address)})"


def _subject(path: Path, report: Report) -> dict[str, Any]:
    subject, suite, versions = report["subject"], report["suite"], report["versions"]
    devices = collections.Counter(subject.get("device_names", ()))
    state = subject["availability"]["status"]
    return {
        "file": path.name,
        "name": subject["name"],
        "kind": subject["kind"],
        "plugin": subject["plugin"],
        "torch": versions.get("torch", suite["torch"]),
        "profile": suite["profile"],
        "tests": sum(report["summary"]["kinds"].values()),
        "devices": sorted(devices),
        "device": ", ".join(f"{name} \u00d7 {number}" if number > 1 else name for name, number in sorted(devices.items())) or state,
        "accelerators": list(subject.get("accelerators", ())),
        "date": report["run"]["started"][:10],
        **{name: versions.get(name, "") for name in _VERSIONS if name != "torch"},
        "is_certified": report["certification"]["is_certified"],
    }


def _cell(report: Report, area: str) -> dict[str, Any]:
    """Return the cell of an area: how many of the applicable tests passed. All tests except the unsupported ones are applicable."""
    counts: Mapping[str, int] = report["summary"]["areas"].get(area, {})
    number = counts.get("pass", 0)
    applicable = sum(number for kind, number in counts.items() if kind != "unsupported")
    is_bad = any(counts.get(kind) for kind in BAD)
    tone = "none" if not applicable else "bad" if is_bad else "good" if number == applicable else "mid"
    return {
        "passed": number,
        "applicable": applicable,
        "tone": tone,
        "text": f"{number}/{applicable}" if applicable else "none apply" if counts else "not run",
        "title": ", ".join(f"{number} {kind}" for kind, number in counts.items()),
    }
