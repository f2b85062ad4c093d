"""The report as one self-contained HTML page."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from accelkit import html_page
from accelkit_conformance.report import Report, results_of, unsupported_areas
from accelkit_conformance.reports.summary import explained
from accelkit_conformance.results import BAD, KINDS, MEANING

_SLOWEST = 20
TONES: Mapping[str, str] = {"pass": "good", "flaky": "mid", "expected-failure": "mid", "unsupported": "none"} | dict.fromkeys(BAD, "bad")
"""The CSS class that colours each kind of result."""


def write(report: Report, path: Path, folder: Path) -> None:
    """Write the report to ``path`` as an HTML page, which needs no other file and no network access. ``folder`` is not used."""
    subject, kinds = report["subject"], report["summary"]["kinds"]
    results = report["results"]
    page = render(
        "report.html.j2",
        report=report,
        devices=[f"{name} \u00d7 {number}" if number > 1 else name for name, number in _devices(subject)],
        kinds=[kind for kind in KINDS if kind in kinds],
        unsupported=unsupported_areas(results_of(report)),
        bad=sum(kinds.get(kind, 0) for kind in BAD),
        slowest=sorted(results, key=lambda one: -one["seconds"])[:_SLOWEST],
        expected=_expected(report),
        data=embedded({"results": [_row(one) for one in results], "tones": dict(TONES), "bad": BAD}),
    )
    path.write_text(page, "utf-8", "replace")


def render(template: str, **values: Any) -> str:
    """Render a template file from the folder of this module, and return the text. The values are escaped, unless they are Markup."""
    return html_page.render(Path(__file__).parent, template, tones=TONES, meaning=MEANING, **values)


def embedded(value: object) -> Markup:
    """Return a value as JSON for a script element. Nothing in the JSON can end the element."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))  # noqa: S704 # no "<" is left in it


def _devices(subject: Mapping[str, Any]) -> list[tuple[str, int]]:
    return list(collections.Counter(subject.get("device_names", ())).items())


def _row(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "worker" and (name, value) != ("attempts", 1)}


def _expected(report: Report) -> list[dict[str, Any]]:
    """Return the expected failures, each with the additional key ``is_link``: whether its ``issue`` is a web address."""
    return [{**one, "is_link": one["issue"].startswith(("http://", "https://"))} for one in explained(report)]
