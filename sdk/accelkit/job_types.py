"""Immutable data types: what was selected for a job and why, and a summary of the job's Runtime.

This module imports only the standard library.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """An accelerator that was considered for a ``Decision``.

    Attributes:
        name: The name of the accelerator.
        plugin: The ``dist==version`` of the plugin that provides the accelerator. Empty if no installed plugin provides it.
        status: ``chosen``; ``usable``, ``absent`` or ``broken``, as for ``Availability``; or ``refused`` if the accelerator is simulated or
            its plugin is not available.
        reason: The reason for the status.
        hint: What the user can do to use the accelerator.
    """

    name: str
    plugin: str
    status: Literal["chosen", "usable", "absent", "broken", "refused"]
    reason: str = ""
    hint: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The explanation of a selection: the request, its source, and the status of each candidate.

    Attributes:
        requested: The requested name, ``auto``, or the ``repr`` of the instance of Accelerator that was passed.
        source: The source of the request: ``argument``, the name of the environment variable that was set, or ``default``.
        chosen: The name of the selected accelerator.
        plugin: The ``dist==version`` of the plugin that provides this accelerator.
        candidates: All accelerators that were considered, the chosen one first.
        notes: Remarks, such as which accelerator an alias stands for, or that an installed plugin took precedence over accelkit's own table
            of known devices.
    """

    requested: str
    source: str
    chosen: str
    plugin: str
    candidates: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        request = "selected by auto, as no name was given" if self.source == "default" else f"{self.requested!r} ({self.source})"
        lines = [f"accelerator {self.chosen} from {self.plugin}: {request}"]
        for candidate in self.candidates:
            because = f": {candidate.reason}" if candidate.reason else ""
            lines.append(f"  {candidate.name} ({candidate.plugin}) {candidate.status}{because}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterDetection:
    """The result of ``detect_cluster``: whether this process belongs to a cluster environment, and why.

    Attributes:
        name: The name of the cluster environment.
        priority: The ``ClusterDetection`` with the highest priority is used. A negative priority means that the process does not belong to
            the environment; such a ``ClusterDetection`` is never used.
        reason: Why the process belongs to the environment, or why not. ``accelkit why --cluster`` shows the reason.
    """

    name: str
    priority: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeState:
    """A summary of a Runtime, passed to hooks and printed for users.

    Values that neither the user nor the cluster environment specifies may be unknown until the processes join the process group.

    Attributes:
        devices: The indices of the devices that the job uses on this machine. Empty while they are unknown.
        local_process_index: The index of this process among the processes on this machine. None while it is unknown.
        num_nodes: The number of machines. None while it is unknown.
    """

    accelerator: str
    plugin: str
    device: str
    devices: tuple[int, ...]
    precision: str
    strategy: str
    cluster: str
    num_processes: int = 1
    process_index: int = 0
    local_process_index: int | None = 0
    num_nodes: int | None = 1
    seed: int | None = None

    def __str__(self) -> str:
        width = max(len(field.name) for field in dataclasses.fields(self))
        rows = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
