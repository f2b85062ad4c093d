"""``accelkit why [NAME]``: which accelerator would be used, and why."""

from __future__ import annotations

import click

from accelkit.cli.output import print_json, print_table
from accelkit.cli.rows import complete_names
from accelkit.errors import printable
from accelkit.selection import decide


@click.command("why")
@click.argument("name", required=False, shell_complete=complete_names)
@click.option("--json", "is_json", is_flag=True, help="JSON on standard output.")
def command(name: str | None, is_json: bool) -> None:
    """Which accelerator would be used for NAME (or for nothing: the environment, then auto), and why not the others."""
    decision = decide(name)
    if is_json:
        print_json("why", decision.as_dict())
        return
    click.echo(printable(str(decision).partition("\n")[0]))
    rows = [[c.name, c.plugin, c.verdict, c.reason, c.hint] for c in decision.candidates]
    print_table(["NAME", "PLUGIN", "STATUS", "REASON", "WHAT TO DO"], rows)
    for note in decision.notes:
        click.echo(printable(f"note: {note}"))
