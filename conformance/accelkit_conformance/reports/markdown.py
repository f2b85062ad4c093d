"""The report as Markdown tables for a plugin's README: passed tests by area, and declared capabilities."""

from __future__ import annotations

import re
from collections.abc import Mapping

from accelkit.errors import one_line
from accelkit_conformance.report import Report, declared_none, results_of
from accelkit_conformance.results import BAD

_REMARKS = {"flaky": "flaky", "expected-failure": "expected to fail"}


def table(report: Report) -> str:
    """Return a headline about the run, a table of areas, and a table of capabilities."""
    lines = [_headline(report), "", "| area | tests passed |", "|---|---|"]
    none = declared_none(results_of(report))
    lines += [f"| {plain(area)} | {passed(counts, none.get(area, 0))} |" for area, counts in report["summary"]["areas"].items()]
    if declared := report["subject"].get("capabilities", {}):
        lines += ["", "| capability | declared |", "|---|---|"]
        lines += [f"| `{plain(key)}` | {plain(level)} |" for key, level in declared.items()]
    return "\n".join(lines) + "\n"


def _headline(report: Report) -> str:
    subject, suite = report["subject"], report["suite"]
    devices = sorted(set(subject.get("device_names", ())))
    verdict = "certified" if report["certification"]["is_certified"] else "not certified"
    state = subject["availability"]["status"]
    where = f" on {', '.join(devices)}" if devices else "" if state == "usable" else f" (device {state})"
    return plain(
        f"{subject['plugin']}{where}: accelkit conformance suite, profile {suite['profile']} for torch {suite['torch']}, "
        f"{report['run']['started'][:10]}: {verdict}."
    )


def passed(counts: Mapping[str, int], none: int) -> str:
    """Return text such as ``12 of 14, **2 failed**, 3 declared none``: 12 of the 14 applicable tests passed.

    The remarks after the first comma give the numbers of tests that failed, are flaky, are expected to fail, or do not apply
    (``unsupported`` results).

    Args:
        counts: The number of results of each kind.
        none: The number of ``unsupported`` results whose reason is that a capability is declared ``none``.
    """
    applicable = sum(number for kind, number in counts.items() if kind != "unsupported")
    failed = sum(counts.get(kind, 0) for kind in BAD)
    remarks = [f"**{failed} failed**"] if failed else []
    remarks += [f"{counts[kind]} {word}" for kind, word in _REMARKS.items() if counts.get(kind)]
    apart = {"declared none": none, "not supported": counts.get("unsupported", 0) - none}
    remarks += [f"{number} {word}" for word, number in apart.items() if number]
    return ", ".join([f"{counts.get('pass', 0)} of {applicable}", *remarks])


def plain(text: str) -> str:
    """Return text from a plugin, escaped so that it cannot create an element, cell, code, link, image, heading or emphasis."""
    escaped = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace("`", "'")
    return re.sub(r"[\\|\[\]*#]", r"\\\g<0>", escaped)
