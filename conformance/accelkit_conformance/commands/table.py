"""``accelkit conformance table REPORT``."""

from __future__ import annotations

from pathlib import Path

import click

from accelkit.cli.output import say
from accelkit_conformance.report import read
from accelkit_conformance.reports import markdown, page, schema

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("table")
@click.argument("path", metavar="REPORT", type=_FILE)
@click.option("--write", "target", type=_FILE, metavar="PATH", help="Put it into this Markdown page, between its two marks.")
def command(path: Path, target: Path | None) -> None:
    """What a JSON report says is supported, as Markdown: printed, or put into a plugin's README."""
    made = markdown.table(schema.checked(read(path), path))
    if target is None:
        click.echo(made, nl=False)
        return
    page.put(made, target, "table")
    say(f"table: {target}")
