"""``accelkit conformance matrix DIR``."""

from __future__ import annotations

from pathlib import Path

import click

from accelkit import UsageError
from accelkit.cli.output import print_json, say
from accelkit_conformance.report import Report, write
from accelkit_conformance.reports import matrix, page, summary

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("matrix")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--html", "html_path", type=_FILE, metavar="PATH", help="Write one self-contained page.")
@click.option(
    "--write",
    "page_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Put it into this Markdown page, between its two marks.",
)
@click.option(
    "--summaries",
    "kept",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write each report without its results into this folder, from which a matrix can be made again.",
)
@click.option("--json", "is_json", is_flag=True, help="JSON on standard output.")
def command(folder: Path, html_path: Path | None, page_path: Path | None, kept: Path | None, is_json: bool) -> None:
    """A page of all JSON reports in DIR, or of their summaries: areas and capabilities down, subjects across."""
    if not (html_path or page_path or kept or is_json):
        why = "none of --html, --write, --summaries and --json is given"
        raise UsageError("matrix has nothing to write", why=why, hint="--html matrix.html")
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
        rendered = html.render("matrix.html.j2", columns=made["subjects"], areas=made["areas"], capabilities=made["capabilities"])
        html_path.write_text(rendered, "utf-8", "replace")
        say(f"html: {html_path}")
    if is_json:
        print_json("conformance.matrix", made)


def _summaries(folder: Path) -> list[tuple[Path, Report]]:
    """Those of a folder's reports, by subject; files that are none are named on standard error."""
    found = []
    for path in sorted(folder.glob("*.json")):
        if not path.is_file():
            say(f"passed over: {path} (it is no regular file)")
            continue
        try:
            found.append((path, summary.read(path)))
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
