"""``accelkit probe NAME``: run an addition on the device in a child process, and check the result."""

from __future__ import annotations

import click

from accelkit.cli.import_option import IMPORT
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json
from accelkit.cli.status_rows import complete_names
from accelkit.discovery import probing, verdict_cache
from accelkit.discovery.verdict import Verdict
from accelkit.errors import AccelkitError, BrokenPluginError, UnavailableError, printable
from accelkit.selection import resolve
from accelkit.types import PluginRecord


@click.command("probe")
@click.argument("name", shell_complete=complete_names)
@IMPORT
@json_option()
def command(name: str, is_json: bool) -> None:
    """Load the accelerator NAME, run an addition on its device and check the result. A plugin may replace the addition with its own check.

    Exits with 3 if the accelerator is broken, and with 4 if it is unavailable.
    """
    record = resolve(name)
    verdict = try_out(record)
    if is_json:
        print_json("probe", {"name": name, "plugin": record.plugin, **verdict.as_dict()})
        return
    count = f"{verdict.device_count} device{'s' * (verdict.device_count != 1)}"
    checked = verdict.checked or f"[0, 1, 2, 3] + 1 is correct on {verdict.device_type}"
    click.echo(printable(f"{name} ({record.plugin}): {checked}; {count}, {verdict.seconds:.2f} s"))


def try_out(record: PluginRecord) -> Verdict:
    """Check in a child process that an accelerator works, cache the result, and return it.

    Raises:
        UnavailableError: If the accelerator's device is absent.
        BrokenPluginError: If the accelerator does not work.
    """
    verdict = probing.ask(record, is_trial=True)
    verdict_cache.remember(record, verdict)
    if verdict.status != "usable":
        error: type[AccelkitError] = UnavailableError if verdict.status == "absent" else BrokenPluginError
        state = "is not available here" if verdict.status == "absent" else "is broken"
        raise error(f"the accelerator {record.name!r} {state}", plugin=record.plugin, why=verdict.reason, hint=verdict.hint)
    return verdict
