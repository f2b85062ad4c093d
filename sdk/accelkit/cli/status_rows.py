"""What is known of each plugin, as rows: from metadata, from what was asked now, and from what was remembered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import click

from accelkit.discovery import probing, verdict_cache
from accelkit.discovery.catalog import plugins
from accelkit.types import PluginRecord, PluginStatus

Verdicts = Mapping[PluginRecord, probing.Verdict]

_STATUS_OF: dict[str, PluginStatus] = {"usable": "available", "absent": "unavailable", "broken": "broken"}
NOT_ASKED = "not asked yet"
NOT_REMEMBERED = "not known: what an editable installation answered is not remembered, since it changes without notice"


@dataclasses.dataclass(frozen=True)
class Row:
    """A record with the newest knowledge of it."""

    record: PluginRecord
    verdict: probing.Verdict | None

    @property
    def description(self) -> str:
        return self.record.description or (self.verdict.description if self.verdict else "")

    def as_dict(self) -> dict[str, Any]:
        """The fields of ``accelkit list --json``."""
        fields = dataclasses.asdict(self.record)
        del fields["fingerprint"], fields["registered_class"]  # for this process only
        return fields | {"description": self.description, "plugin": self.record.plugin, "qualified_name": self.record.qualified_name}


def asked(records: Iterable[PluginRecord], verdicts: Verdicts) -> list[Row]:
    """A row for each record; its status is the verdict's if it was asked now or is remembered."""
    rows = []
    for record in records:
        verdict = verdicts.get(record)
        if verdict is None and record.status == "available":
            verdict = verdict_cache.recall(record)
        if verdict is not None:
            rows.append(Row(record.with_status(_STATUS_OF[verdict.status], verdict.reason, verdict.hint), verdict))
        elif record.status == "available" and not record.is_builtin and record.kind in ("accelerator", "hooks"):
            reason, hint = (NOT_ASKED, "asks it") if record.fingerprint else (NOT_REMEMBERED, "asks it each time")
            rows.append(Row(record.with_status("available", reason, f"accelkit doctor {record.name} {hint}"), None))
        else:
            rows.append(Row(record, None))
    return rows


def complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of accelerator names, from metadata."""
    return sorted({record.name for record in plugins("accelerator") if record.name.startswith(incomplete)})
