"""``accelkit list``: list every plugin, its status and, if the plugin cannot be used, the remedy.

Only built-in plugins without a recent result are probed, in a child process.
"""

from __future__ import annotations

from typing import get_args

import click

from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json, print_table, say
from accelkit.cli.status_rows import rows_of
from accelkit.discovery import verdict_cache
from accelkit.discovery.catalog import plugins
from accelkit.types import Kind


@click.command("list")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="List only plugins of this kind.")
@click.option("--all", "is_everything", is_flag=True, help="Also list vendors' devices for which no plugin is installed.")
@json_option()
def command(kind: Kind | None, is_everything: bool, is_json: bool) -> None:
    """List plugins with their status and, for those that cannot be used, the reason and what to do about it.

    No plugin is imported in this process. The status of a third-party plugin comes from its metadata and from the cached result of its
    last test. To test plugins now, run accelkit doctor. The status of a built-in plugin comes from a result that is less than an hour old
    or, if there is none, from a probe in a child process. The exit code is always 0.
    """
    records = plugins(kind)
    own = [record for record in records if record.is_builtin]
    verdicts = verdict_cache.recalled(own)
    if missing := [record for record in own if record not in verdicts]:
        from accelkit.discovery.probing import ask_all  # probing is slow to import, and rarely needed

        fresh = ask_all(missing)
        for record, verdict in fresh.items():
            verdict_cache.remember(record, verdict, is_of_probe=True)
        verdicts |= fresh
    rows = rows_of(records, verdicts)
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
        say(f"{hidden} known vendors' devices without an installed plugin are not listed; --all lists them")
