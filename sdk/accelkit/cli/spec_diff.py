"""``accelkit info [NAME] --spec-diff OLD``: show what has changed in the specifications since version OLD of accelkit.

For each change, also show what plugins must do about it. If NAME is given, show only the changes to which the plugin NAME must adapt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from accelkit.cli.output import print_json, print_table, say
from accelkit.discovery import probing
from accelkit.discovery.catalog import find
from accelkit.errors import BrokenPluginError
from accelkit.specs.api_snapshot.diff import Change, compare
from accelkit.specs.api_snapshot.impact import concerned
from accelkit.specs.api_snapshot.snapshot import Record, read, record
from accelkit.types import PluginRecord

_FINDINGS = 1


def show(old: str, plugin: PluginRecord | None, is_json: bool) -> int:
    """Print how the specifications have changed, and return the exit code: 1 if a plugin must change, otherwise 0.

    Args:
        old: The version of accelkit to compare with, or the path of a JSON file (see ``snapshot.read``).
        plugin: If given, only the changes that affect this plugin are printed. None prints all changes.
        is_json: Whether to print JSON instead of a table.

    Raises:
        UsageError: If there is no record of ``old``, or if the record cannot be read.
        PluginError: If the methods of ``plugin`` cannot be read, or if the plugin is disabled or its name is in conflict.
    """
    then, now = read(old), record()
    changes = compare(then, now)
    if plugin is not None:
        changes = _of_plugin(changes, then, now, plugin)
    findings = sum(change.concerns != "nobody" for change in changes)
    if is_json:
        subject = {"name": plugin.name, "kind": plugin.kind, "plugin": plugin.plugin} if plugin else None
        fields = {"old": then["version"], "new": now["version"], "subject": subject, "findings": findings}
        print_json("spec_diff", {**fields, "changes": [dataclasses.asdict(change) for change in changes]})
    else:
        if changes:
            rows = [(change.name, change.what, "" if plugin else change.concerns, change.what_to_do) for change in changes]
            print_table(("MEMBER", "CHANGE", "AFFECTS", "WHAT TO DO"), rows)
        say(_summary(len(changes), findings, f"from accelkit {then['version']} to {now['version']}", plugin))
    return _FINDINGS if findings else 0


def _of_plugin(changes: Sequence[Change], then: Record, now: Record, plugin: PluginRecord) -> list[Change]:
    """Return the changes that affect the plugin's class.

    The class is imported in a child process, even if the plugin is incompatible with the installed version of accelkit.

    Args:
        changes: All changes to the specifications between two versions of accelkit.
        then, now: The specifications of the older and of the newer version.
        plugin: The plugin.
    """
    if plugin.status in ("disabled", "conflict"):
        find(plugin.kind, plugin.qualified_name)
    verdict = probing.ask_definitions(plugin)
    if verdict.status != "usable":
        what = f"the methods of the {plugin.kind} {plugin.name!r} cannot be read"
        raise BrokenPluginError(what, plugin=plugin.plugin, why=verdict.reason, hint=verdict.hint)
    return concerned(changes, then, now, plugin.kind, verdict.definitions)


def _summary(number: int, findings: int, span: str, plugin: PluginRecord | None) -> str:
    if plugin is not None:
        needs = f"must adapt to {findings} change{'s' * (findings != 1)}" if findings else "needs no changes"
        return f"{plugin.name} ({plugin.plugin}) {needs} {span}"
    return f"{number} change{'s' * (number != 1)} {span}; plugins must adapt to {findings} of them"
