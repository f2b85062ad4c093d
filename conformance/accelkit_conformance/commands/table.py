"""``accelkit conformance table REPORT``: print a report as Markdown tables, or insert the tables into a Markdown page."""

from __future__ import annotations

from pathlib import Path

import click

from accelkit.cli.output import say
from accelkit_conformance.report import read
from accelkit_conformance.reports import markdown, page, schema

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("table")
@click.argument("path", metavar="REPORT", type=_FILE)
@click.option(
    "--write",
    "target",
    type=_FILE,
    metavar="PATH",
    help="Insert the tables into this Markdown page, between the two comments that mark their place.",
)
def command(path: Path, target: Path | None) -> None:
    """Print a JSON report as Markdown tables, or insert the tables into a Markdown page.

    The tables show how many tests of each area passed, and which capabilities the plugin declares.
    """
    made = markdown.table(schema.checked(read(path), path))
    if target is None:
        click.echo(made, nl=False)
        return
    page.put(made, target, "table")
    say(f"table: {target}")
