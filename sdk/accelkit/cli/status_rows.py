"""Rows of the tables of plugins. The status in a row comes from the plugin's metadata, or from a new or cached result of probing it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from accelkit.discovery import verdict_cache
from accelkit.discovery.catalog import plugins
from accelkit.discovery.verdict import Verdict
from accelkit.types import PluginRecord, PluginStatus

Verdicts = Mapping[PluginRecord, Verdict]

_STATUS_OF: dict[str, PluginStatus] = {"usable": "available", "absent": "unavailable", "broken": "broken"}
NOT_PROBED = "not probed yet"
NOT_CACHED = "not probed: the result for an editable installation is not cached, since the code may change at any time"


class Row(NamedTuple):
    """A row of a table of plugins.

    Attributes:
        record: The plugin's record, with the status that the row shows.
        verdict: The newest result of probing the plugin, or None.
        asked: The plugin's record in the catalog. Its status does not depend on ``verdict``.
    """

    record: PluginRecord
    verdict: Verdict | None
    asked: PluginRecord

    @property
    def description(self) -> str:
        return self.record.description or (self.verdict.description if self.verdict else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that ``accelkit list --json`` prints for the plugin."""
        fields = dataclasses.asdict(self.record)
        del fields["fingerprint"], fields["registered_class"]  # these are used only within this process
        return fields | {"description": self.description, "plugin": self.record.plugin, "qualified_name": self.record.qualified_name}


def rows_of(records: Iterable[PluginRecord], verdicts: Verdicts) -> list[Row]:
    """Return a row for each record, with the status from the plugin's newest verdict, or the record's own status if there is no verdict.

    The newest verdict is the one in ``verdicts`` or, for an ``available`` record that is not in ``verdicts``, the cached one.
    """
    records = list(records)
    cached = verdict_cache.recalled(record for record in records if record.status == "available" and record not in verdicts)
    rows = []
    for record in records:
        verdict = verdicts.get(record, cached.get(record))
        if verdict is not None:
            rows.append(Row(record.with_status(_STATUS_OF[verdict.status], verdict.reason, verdict.hint), verdict, record))
        elif record.status == "available" and not record.is_builtin and record.kind in ("accelerator", "hooks"):
            reason = NOT_PROBED if record.fingerprint else NOT_CACHED
            rows.append(Row(record.with_status("available", reason, f"accelkit doctor {record.name} probes it"), None, record))
        else:
            rows.append(Row(record, None, record))
    return rows


def complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete accelerator names in a shell. Reads only metadata."""
    return sorted({record.name for record in plugins("accelerator") if record.name.startswith(incomplete)})
