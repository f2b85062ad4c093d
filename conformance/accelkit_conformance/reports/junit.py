"""The report as JUnit XML, with a testsuite for each area."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from accelkit_conformance import checks
from accelkit_conformance.report import Report, results_of
from accelkit_conformance.results import BAD, Kind, Result

_ERRORS: tuple[Kind, ...] = ("crash", "timeout")
_SKIPPED: tuple[Kind, ...] = ("unsupported", "expected-failure")
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(report: Report, path: Path, folder: Path) -> None:
    """Write the report to ``path`` as JUnit XML. ``folder`` is not used.

    Crashes and timeouts become errors, and other failed tests become failures. Unsupported tests and expected failures become skipped
    tests, and flaky tests become passed tests.
    """
    subject, suite, run = report["subject"], report["suite"], report["run"]
    results = results_of(report)
    name = _text(f"accelkit conformance: {subject['name']} ({subject['plugin']}), profile {suite['profile']}")
    root = ET.Element("testsuites", {"name": name, **_counts(results), "time": f"{run['seconds']:.3f}"})
    properties = {f"subject.{key}": str(subject[key]) for key in ("name", "kind", "plugin")}
    properties |= {f"suite.{key}": str(suite[key]) for key in ("profile", "torch", "digest")}
    properties |= {f"version.{key}": str(value) for key, value in report["versions"].items()}
    for area, group in itertools.groupby(sorted(results, key=_area), key=_area):
        of_area = list(group)
        seconds = sum(result.seconds for result in of_area)
        attributes = {"name": _text(area), **_counts(of_area), "time": f"{seconds:.3f}", "timestamp": _text(run["started"])}
        element = ET.SubElement(root, "testsuite", attributes)
        listed = ET.SubElement(element, "properties")
        for key, value in properties.items():
            ET.SubElement(listed, "property", {"name": _text(key), "value": _text(value)})
        for result in of_area:
            _add(element, result)
    tree = ET.ElementTree(root)
    ET.indent(tree, " ")
    tree.write(path, encoding="utf-8", xml_declaration=True)


def _add(suite: ET.Element, result: Result) -> None:
    names = {"classname": _text(_area(result)), "name": _text(result.id), "time": f"{result.seconds:.4f}"}
    case = ET.SubElement(suite, "testcase", names)
    message = _text(result.reason)
    if result.kind in _SKIPPED:
        ET.SubElement(case, "skipped", {"message": f"{result.kind}: {message}"})
    elif result.kind in BAD:
        tag = "error" if result.kind in _ERRORS else "failure"
        ET.SubElement(case, tag, {"type": result.kind, "message": message}).text = _text(_explanation(result))
    elif result.kind == "flaky":
        what = f"flaky ({result.attempts} attempts): {result.reason}\n{_explanation(result)}"
        ET.SubElement(case, "system-out").text = _text(what)


def _explanation(result: Result) -> str:
    reproducer = f"\nThis program reproduces the failure:\n\n{result.reproducer}" if result.reproducer else ""
    return result.detail + reproducer


def _counts(results: Sequence[Result]) -> dict[str, str]:
    kinds = [result.kind for result in results]
    failed = [kind for kind in kinds if kind in BAD]
    errors = sum(kind in _ERRORS for kind in failed)
    skipped = sum(kind in _SKIPPED for kind in kinds)
    return {"tests": str(len(kinds)), "failures": str(len(failed) - errors), "errors": str(errors), "skipped": str(skipped)}


def _area(result: Result) -> str:
    return checks.area_of(result.id)


def _text(text: str) -> str:
    """Return ``text`` with the characters that XML forbids replaced by escape sequences."""
    return _FORBIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
