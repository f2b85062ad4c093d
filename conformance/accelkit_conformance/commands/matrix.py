"""``accelkit conformance matrix DIR``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from accelkit import UsageError
from accelkit.cli.output import print_json, say
from accelkit_conformance import checks
from accelkit_conformance.outcomes import BAD
from accelkit_conformance.report import Report, read
from accelkit_conformance.reports import schema


@click.command("matrix")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="Write one self-contained page.")
@click.option("--json", "is_json", is_flag=True, help="JSON on standard output.")
def command(folder: Path, html_path: Path | None, is_json: bool) -> None:
    """A page of all JSON reports in DIR: areas and capabilities down, subjects across. Give --html, --json or both."""
    if html_path is None and not is_json:
        raise UsageError("matrix has nothing to write", why="neither --html nor --json is given", hint="--html matrix.html")
    found = _reports(folder)
    columns = [_column(path, report) for path, report in found]
    reports = [report for _, report in found]
    areas = [area for area in checks.AREAS if any(area in report["summary"]["areas"] for report in reports)]
    rows = [{"name": area, "cells": [_cell(report, area) for report in reports]} for area in areas]
    declared = [report["subject"].get("capabilities", {}) for report in reports]
    names = sorted(set().union(*declared))
    capabilities = [{"name": name, "levels": [one.get(name, "") for one in declared]} for name in names]
    if html_path is not None:
        from accelkit_conformance.reports import html

        html_path.parent.mkdir(parents=True, exist_ok=True)
        page = html.render("matrix.html.j2", columns=columns, areas=rows, capabilities=capabilities)
        html_path.write_text(page, "utf-8", "replace")
        say(f"html: {html_path}")
    if is_json:
        print_json("conformance.matrix", {"subjects": columns, "areas": rows, "capabilities": capabilities})


def _reports(folder: Path) -> list[tuple[Path, Report]]:
    """The reports of a folder by subject; files that are none are named on standard error."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append((path, schema.checked(read(path), path)))
        except UsageError as error:
            say(f"passed over: {error.what} ({error.why})")
    if not found:
        raise UsageError(
            f"there is no conformance report in {folder}",
            why="none of its *.json files is one",
            hint=f"accelkit conformance run NAME --json {folder / 'NAME.json'} writes one",
        )
    return sorted(found, key=lambda one: _key(one[1]))


def _key(report: Report) -> tuple[str, ...]:
    return (report["subject"]["name"], report["subject"]["plugin"], report["suite"]["torch"], report["suite"]["profile"])


def _column(path: Path, report: Report) -> dict[str, Any]:
    subject, suite = report["subject"], report["suite"]
    return {
        "file": path.name,
        "name": subject["name"],
        "plugin": subject["plugin"],
        "torch": report["versions"].get("torch", suite["torch"]),
        "profile": suite["profile"],
        "devices": sorted(set(subject.get("device_names", ()))),
        "is_certified": report["certification"]["is_certified"],
    }


def _cell(report: Report, area: str) -> dict[str, Any]:
    """What passed of what applies: everything but the unsupported."""
    counts = report["summary"]["areas"].get(area, {})
    passed = counts.get("pass", 0)
    applicable = sum(number for kind, number in counts.items() if kind != "unsupported")
    is_bad = any(counts.get(kind) for kind in BAD)
    tone = "none" if not applicable else "bad" if is_bad else "good" if passed == applicable else "mid"
    return {
        "passed": passed,
        "applicable": applicable,
        "tone": tone,
        "text": f"{passed}/{applicable}" if applicable else "none apply" if counts else "not run",
        "title": ", ".join(f"{number} {kind}" for kind, number in counts.items()),
    }
