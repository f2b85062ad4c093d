"""The report of a run: JSON with a published schema (``reports/schema.json``). All other formats are generated from it."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit import UsageError, untrusted_json
from accelkit_conformance import checks
from accelkit_conformance.results import BAD, KINDS, Result

SCHEMA = "accelkit.conformance/1"
_LARGE_SHARE = 3  # an area is described if more than a third of its tests are unsupported
_DOES_NOT_WORK = re.compile(r"does not work(?: for \d+ of \d+ inputs)? \((.*)\)", re.DOTALL)  # what judgement writes around the error
_NUMBERS = re.compile(r"\d+")
LARGEST_FILE = 50_000_000  # maximum size of a report or a bundle in bytes
Report = dict[str, Any]


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Return the number of results of each kind, in total (``kinds``) and by area (``areas``, in the order of ``checks.AREAS``).

    Kinds and areas without results are left out.
    """
    by_area: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        by_area[checks.area_of(result.id)][result.kind] += 1
    total: collections.Counter[str] = sum(by_area.values(), collections.Counter())
    areas = {area: {kind: by_area[area][kind] for kind in KINDS if by_area[area][kind]} for area in checks.AREAS if area in by_area}
    return {"kinds": {kind: total[kind] for kind in KINDS if total[kind]}, "areas": areas}


def declared_none(results: Sequence[Result]) -> dict[str, int]:
    """Return, by area, the number of results that are unsupported because a capability is declared ``none``. Areas without such results are
    left out."""
    found = collections.Counter(checks.area_of(result.id) for result in results if result.is_declared_none)
    return {area: found[area] for area in checks.AREAS if found[area]}


def unsupported_areas(results: Sequence[Result]) -> list[str]:
    """Return a line for each area that has many unsupported tests.

    These are the areas in which more than a third of the tests are unsupported for a reason other than a capability that is declared
    ``none``. The line gives the number of such tests and their most frequent cause.
    """
    total = collections.Counter(checks.area_of(result.id) for result in results)
    by_area: dict[str, list[Result]] = collections.defaultdict(list)
    for result in results:
        if result.kind == "unsupported" and not result.is_declared_none:
            by_area[checks.area_of(result.id)].append(result)
    lines = []
    for area in (area for area in checks.AREAS if len(by_area[area]) * _LARGE_SHARE > total[area]):
        causes = [cause_of(result.reason) for result in by_area[area]]
        kinds = collections.Counter(_NUMBERS.sub("", cause) for cause in causes)
        kind, number = kinds.most_common(1)[0]
        example = next(cause for cause in causes if _NUMBERS.sub("", cause) == kind)
        lines.append(f"{area}: {len(by_area[area])} of {total[area]} tests are unsupported, {number} of them because of: {example[:200]}")
    return lines


def cause_of(reason: str) -> str:
    """Return the error message that is quoted in the reason of an unsupported result, or the whole reason if no message is quoted."""
    found = _DOES_NOT_WORK.search(reason)
    return found[1] if found else reason


def coverage(must: Iterable[str], seen: Iterable[str]) -> dict[str, Any]:
    """Return the dispatcher coverage: the number of overloads that are ``required``, the number of these that were ``seen`` on the device,
    and the names of the ``missing`` ones."""
    wanted = set(must)
    return {"required": len(wanted), "seen": len(wanted & set(seen)), "missing": sorted(wanted - set(seen))}


def is_good(summary: Mapping[str, Any]) -> bool:
    """Return True if no test failed. A flaky test does not count as a failure."""
    return not any(summary["kinds"].get(kind) for kind in BAD)


def read(path: Path) -> Report:
    """Read a report from a JSON file.

    Raises:
        UsageError: If the file cannot be read or is not a report.
    """
    return parsed(content_of(path), path)


def content_of(path: Path) -> bytes:
    """Return the content of a report or bundle file, which may be a pipe.

    Raises:
        UsageError: If the file cannot be read, or is larger than ``LARGEST_FILE``.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read as a report", why=str(error)) from error
    if len(content) > LARGEST_FILE:
        raise UsageError(f"{path} cannot be read as a report", why=f"the file is larger than {LARGEST_FILE:,} bytes")
    return content


def parsed(content: bytes, origin: Path) -> Report:
    """Parse the content of a report file. Only the field ``schema`` is checked; ``reports.schema.checked`` checks the other fields.

    Args:
        content: The content of the file.
        origin: The path of the file, for error messages.

    Raises:
        UsageError: If the content is not JSON, or if its field ``schema`` is not that of a report.
    """
    try:
        report = untrusted_json.parse(content)
    except ValueError as error:
        raise UsageError(f"{origin} cannot be read as a report", why=str(error)) from error
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        what = report.get("schema") if isinstance(report, dict) else type(report).__name__
        raise UsageError(
            f"{origin} is not a conformance report",
            why=f"its schema is {what!r:.80}, not {SCHEMA!r}",
            hint="accelkit conformance run NAME --json PATH writes a report",
        )
    return report


def results_of(report: Report) -> list[Result]:
    """Return the results of a report that follows the schema. The field ``seen`` of a result is ignored: it is not in the schema, so its
    type has not been checked."""
    return [Result.from_dict({name: value for name, value in one.items() if name != "seen"}) for one in report["results"]]


def write(report: Report, path: Path) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
