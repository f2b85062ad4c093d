"""``accelkit list``: every plugin, its status, and what to do. Reads metadata; only accelkit's own plugins are asked."""

from __future__ import annotations

from typing import get_args

import click

from accelkit.cli.output import print_json, print_table, say
from accelkit.cli.status_rows import asked
from accelkit.discovery import verdict_cache
from accelkit.discovery.catalog import plugins
from accelkit.discovery.probing import ask_all
from accelkit.types import Kind


@click.command("list")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="Only this kind of plugin.")
@click.option("--all", "is_everything", is_flag=True, help="Also vendors' devices that no installed plugin offers.")
@click.option("--json", "is_json", is_flag=True, help="JSON on standard output.")
def command(kind: Kind | None, is_everything: bool, is_json: bool) -> None:
    """Plugins, their status, and what to do.

    No plugin is imported here. A third party's status is what its metadata says, and what it answered when it was last asked
    (accelkit doctor asks); accelkit's own are asked at most once an hour. Exits 0 whatever the rows.
    """
    records = plugins(kind)
    own = [record for record in records if record.is_builtin and verdict_cache.recall(record) is None]
    verdicts = ask_all(own) if own else {}
    for record, verdict in verdicts.items():
        verdict_cache.remember(record, verdict)
    rows = asked(records, verdicts)
    if is_json:
        print_json("list", {"plugins": [row.as_dict() for row in rows]})
        return
    shown = [row for row in rows if is_everything or not row.record.is_fallback or row.record.status == "available"]
    print_table(
        ["NAME", "KIND", "PLUGIN", "STATUS", "REASON", "WHAT TO DO", "DESCRIPTION"],
        [
            [row.record.name, row.record.kind, row.record.plugin, row.record.status, row.record.reason, row.record.hint, row.description]
            for row in shown
        ],
    )
    if hidden := len(rows) - len(shown):
        say(f"{hidden} vendors' devices are known and not installed; --all shows them")
