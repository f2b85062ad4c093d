"""``accelkit conformance matrix DIR``: show the reports in a folder side by side."""

from __future__ import annotations

from pathlib import Path

import click

from accelkit import UsageError
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json, say
from accelkit_conformance import checks
from accelkit_conformance.report import Report, write
from accelkit_conformance.reports import matrix, page, summary

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("matrix")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--html", "html_path", type=_FILE, metavar="PATH", help="Write one self-contained HTML file.")
@click.option(
    "--write",
    "page_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Insert the matrix into this Markdown page, between the two comments that mark its place.",
)
@click.option(
    "--summaries",
    "kept",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a summary of each report, without the results of individual tests, into this folder. A matrix can be made from "
    "the summaries too.",
)
@json_option()
def command(folder: Path, html_path: Path | None, page_path: Path | None, kept: Path | None, is_json: bool) -> None:
    """Show the JSON reports or summaries in DIR side by side, grouped by the kind of plugin.

    In the tables, each report has a column, and each area and each capability has a row. At least one of the options --html, --write,
    --summaries and --json is required.
    """
    if not (html_path or page_path or kept or is_json):
        why = "none of --html, --write, --summaries and --json was given"
        raise UsageError("matrix has no output", why=why, hint="for example: --html matrix.html")
    found = _summaries(folder)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        for path, one in found:
            write(one, kept / path.name)
        say(f"summaries: {kept}")
    if page_path is not None:
        page.put(matrix.markdown(found), page_path, "matrix")
        say(f"matrix: {page_path}")
    made = matrix.matrix(found)
    if html_path is not None:
        from accelkit_conformance.reports import html

        html_path.parent.mkdir(parents=True, exist_ok=True)
        sections = {heading: matrix.matrix(group) for heading, group in matrix.by_kind(found).items()}
        html_path.write_text(html.render("matrix.html.j2", sections=sections), "utf-8", "replace")
        say(f"html: {html_path}")
    if is_json:
        print_json("conformance.matrix", made)


def _summaries(folder: Path) -> list[tuple[Path, Report]]:
    """Read the reports and summaries in a folder. Return the path and the summary of each, sorted by the kind and the name of the plugin.

    Other JSON files are skipped, and their names are printed on standard error.

    Raises:
        UsageError: If the folder has neither a report nor a summary.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        if not path.is_file():
            say(f"skipped: {path} (not a regular file)")
            continue
        try:
            found.append((path, summary.read(path)))
        except UsageError as error:
            say(f"skipped: {error.what} ({error.why})")
    if not found:
        raise UsageError(
            f"there is no conformance report in {folder}",
            why="none of its *.json files is a conformance report",
            hint=f"accelkit conformance run NAME --json {folder / 'NAME.json'} writes one",
        )
    return sorted(found, key=lambda one: _key(one[1]))


def _key(report: Report) -> tuple[int, *tuple[str, ...]]:
    subject, suite = report["subject"], report["suite"]
    return (checks.SUBJECT_KINDS.index(subject["kind"]), subject["name"], subject["plugin"], suite["torch"], suite["profile"])
