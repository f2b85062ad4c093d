"""``accelkit conformance table REPORT``."""

from __future__ import annotations

from pathlib import Path

import click

from accelkit import UsageError
from accelkit.cli.output import say
from accelkit_conformance.report import read
from accelkit_conformance.reports import markdown, schema

BEGIN, END = "<!-- accelkit conformance table -->\n", "<!-- end of the table -->"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("table")
@click.argument("path", metavar="REPORT", type=_FILE)
@click.option("--write", "page", type=_FILE, metavar="PATH", help="Put it into this Markdown page, between its two marks.")
def command(path: Path, page: Path | None) -> None:
    """What a JSON report says is supported, as Markdown: printed, or put into a plugin's README."""
    made = markdown.table(schema.checked(read(path), path))
    if page is None:
        click.echo(made, nl=False)
        return
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in after:
        raise UsageError(
            f"{page} has no place for the table",
            why="its two marks are not there, once each",
            hint=f"write {BEGIN.strip()} and {END} into it",
        )
    page.write_text(f"{before}{begin}{made}{end}{after}", "utf-8")
    say(f"table: {page}")
