"""``accelkit info NAME``: show everything about one plugin."""

from __future__ import annotations

from typing import get_args

import click

from accelkit.capabilities import Support
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json
from accelkit.cli.status_rows import Row, complete_names, rows_of
from accelkit.discovery import probing
from accelkit.discovery.catalog import find, plugins
from accelkit.errors import AccelkitError, UsageError, printable
from accelkit.precision_support import precisions_of
from accelkit.selection import GENERIC, resolve
from accelkit.types import Kind, PluginRecord


@click.command("info")
@click.argument("name", required=False, shell_complete=complete_names)
@click.option("--kind", type=click.Choice(get_args(Kind)), help="The kind of the plugin, if plugins of several kinds have this name.")
@click.option(
    "--spec-diff",
    "old",
    metavar="OLD",
    help="Instead, list what changed in the specifications since accelkit OLD, and what plugins must do about it; with NAME, only the "
    "changes to which this plugin must adapt. OLD is a version, or a .json file that records the specifications of a version.",
)
@json_option()
@click.pass_context
def command(context: click.Context, name: str | None, kind: Kind | None, old: str | None, is_json: bool) -> None:
    """Show where a plugin comes from, its status and what it declares. NAME may be dist:name."""
    if old is not None:
        from accelkit.cli import spec_diff

        context.exit(spec_diff.show(old, _find(name, kind) if name else None, is_json))
    if name is None:
        hint = "accelkit list shows the names of all plugins; only with --spec-diff OLD can NAME be omitted"
        raise UsageError("accelkit info needs the NAME of a plugin", hint=hint)
    record = _find(name, kind)
    verdicts = {record: probing.ask(record, is_trial=record.name != GENERIC)} if record.status == "available" else {}
    (row,) = rows_of([record], verdicts)
    if is_json:
        verdict = row.verdict.as_dict() if row.verdict else None
        print_json("info", row.as_dict() | {"verdict": verdict, "precisions": _precisions(row)})
        return
    for field, value in _fields(row):
        click.echo(printable(f"{field:<14}{value}"))


def _find(name: str, kind: Kind | None) -> PluginRecord:
    """Return the record of the plugin, whatever its status is."""
    if name.startswith(f"{GENERIC}:"):
        return resolve(name)
    candidates = [r for r in plugins(kind) if name in (r.name, r.qualified_name)]
    kinds = sorted({record.kind for record in candidates})
    if len(kinds) > 1:
        raise UsageError(f"several plugins are named {name!r}", why=f"their kinds are {', '.join(kinds)}", hint=f"add --kind {kinds[0]}")
    try:
        return find(kind or (candidates[0].kind if candidates else "accelerator"), name)
    except AccelkitError:
        if not candidates:
            raise
        return candidates[0]


def _precisions(row: Row) -> dict[str, Support]:
    """Return an accelerator's support for each precision. The result is empty if the accelerator's capabilities are unknown."""
    return precisions_of(row.verdict.capabilities) if row.verdict is not None and row.verdict.capabilities else {}


def _fields(row: Row) -> list[tuple[str, str]]:
    record, verdict = row.record, row.verdict
    fields = [
        ("name", record.name),
        ("kind", record.kind),
        ("plugin", record.plugin),
        ("class", record.value),
        ("description", row.description),
        ("status", record.status),
        ("reason", record.reason),
        ("what to do", record.hint),
        ("selected by", f"{record.kind}={record.name!r} or {record.qualified_name!r}"),
    ]
    if verdict is not None and record.kind == "accelerator":
        declared = ", ".join(f"{key} {support}" for key, support in verdict.capabilities.items())
        fields += [
            ("device type", verdict.device_type),
            ("simulated", "yes (auto never selects it)" if verdict.is_simulated else "no"),
            ("devices", "" if verdict.device_count is None else str(verdict.device_count)),
            ("capabilities", declared or "none declared"),
            ("precisions", ", ".join(f"{name} {support}" for name, support in _precisions(row).items())),
        ]
    return [(field, value) for field, value in fields if value]
