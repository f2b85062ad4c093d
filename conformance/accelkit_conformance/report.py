"""The report of a run: JSON with a published schema (``reports/schema.json``), of which every other form is made."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit import UsageError
from accelkit_conformance import checks
from accelkit_conformance.outcomes import BAD, KINDS, Result

SCHEMA = "accelkit.conformance/1"
Report = dict[str, Any]


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Counts by kind, and by area and kind; areas in their order."""
    by_area: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        by_area[checks.area_of(result.id)][result.kind] += 1
    total: collections.Counter[str] = sum(by_area.values(), collections.Counter())
    areas = {area: {kind: by_area[area][kind] for kind in KINDS if by_area[area][kind]} for area in checks.AREAS if area in by_area}
    return {"kinds": {kind: total[kind] for kind in KINDS if total[kind]}, "areas": areas}


def coverage(must: Iterable[str], seen: Iterable[str]) -> dict[str, Any]:
    """Dispatcher coverage: how many of the overloads that a device must serve were seen on it, and which were not."""
    wanted = set(must)
    return {"required": len(wanted), "seen": len(wanted & set(seen)), "missing": sorted(wanted - set(seen))}


def is_good(summary: Mapping[str, Any]) -> bool:
    """Whether nothing failed. What is flaky is neither good nor bad."""
    return not any(summary["kinds"].get(kind) for kind in BAD)


def read(path: Path) -> Report:
    """A report that was written before.

    Raises:
        UsageError: If it is none.
    """
    try:
        report: Report = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a report", why=str(error)) from error
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        what = report.get("schema") if isinstance(report, dict) else type(report).__name__
        raise UsageError(
            f"{path} is no conformance report",
            why=f"its schema is {what!r}, not {SCHEMA!r}",
            hint="accelkit conformance run NAME --json PATH writes one",
        )
    return report


def results_of(report: Report) -> list[Result]:
    return [Result.from_dict(one) for one in report["results"]]


def write(report: Report, path: Path) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
