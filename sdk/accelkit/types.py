"""Immutable data types shared by the parts of accelkit. This module imports only the standard library."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Self, get_args

OWN_DISTRIBUTION = "accelkit"
FROM_CODE = "(code)"
"""The distribution of plugins registered by ``accelkit.register``."""

Kind = Literal["accelerator", "precision", "cluster", "strategy", "hooks"]
"""The kind of a plugin. Its entry-point group is ``accelkit.<kind>s`` (``accelkit.hooks`` for hooks)."""

PluginStatus = Literal["available", "unavailable", "disabled", "incompatible", "broken", "conflict"]
"""The status of a plugin. ``available`` means that no reason is known why the plugin could not be used."""

ProbeStatus = Literal["usable", "absent", "broken"]


@dataclasses.dataclass(frozen=True, slots=True)
class Availability:
    """The result of a probe: whether a plugin can be used on this machine, and if not, why and what would help.

    Args:
        status: ``usable``, ``absent`` (this machine has no such hardware or driver, which is normal) or
            ``broken`` (the hardware or driver is present but does not work).
        reason: The reason, for a reader who does not know the device. Required unless the status is ``usable``.
        hint: What the user can do to make the plugin usable.

    Raises:
        ValueError: If the status is not ``usable``, ``absent`` or ``broken``.
    """

    status: ProbeStatus
    reason: str = ""
    hint: str = ""

    def __post_init__(self) -> None:
        if self.status not in get_args(ProbeStatus):
            raise ValueError(f"status must be one of {', '.join(get_args(ProbeStatus))}, got {self.status!r}")

    @property
    def is_usable(self) -> bool:
        return self.status == "usable"

    @classmethod
    def usable(cls, reason: str = "") -> Self:
        return cls("usable", reason)

    @classmethod
    def absent(cls, reason: str, hint: str = "") -> Self:
        return cls("absent", reason, hint)

    @classmethod
    def broken(cls, reason: str, hint: str = "") -> Self:
        return cls("broken", reason, hint)

    @classmethod
    def from_library(cls, soname: str, hint: str = "") -> Self:
        """Return ``usable`` if the dynamic loader can open the shared library ``soname``.

        Otherwise, return ``absent`` if the library does not exist, or ``broken`` if it cannot be opened for another reason. The reason is
        the loader's error. Opening a driver's library runs its constructors but does not create a device context.
        """
        import ctypes  # rarely needed, and slow to import

        try:
            ctypes.CDLL(soname)
        except OSError as error:
            is_missing = "cannot open shared object file" in str(error) or "image not found" in str(error)
            is_missing = is_missing or "no such file" in str(error).lower()
            return cls("absent" if is_missing and soname in str(error).split(":")[0] else "broken", str(error), hint)
        return cls("usable", f"{soname} was found")


@dataclasses.dataclass(frozen=True, slots=True)
class PluginRecord:
    """Record of a plugin: its name, where it comes from (a distribution or ``accelkit.register``), and its status.

    Attributes:
        kind, name: The kind of the plugin, and the name by which users select it.
        distribution, version: The distribution that provides the plugin, and its version. For a registered class, ``(code)`` and the module
            of the class.
        value: The value of the entry point, ``module:Class``.
        status, reason, hint: The status known without importing the plugin, the reason for the status, and what the user can do.
        description: A description for users. The default is the summary of the distribution.
        is_builtin: Whether the plugin is part of accelkit.
        is_fallback: Whether the device is known only from accelkit's table of vendors. An installed plugin of the same name takes
            precedence.
        fingerprint: A value that changes when the installed distribution changes. It is part of the key under which results of probes and
            trials are cached. An empty string if changes cannot be detected.
        registered_class: The class itself if it was registered by code, otherwise None.
    """

    kind: Kind
    name: str
    distribution: str
    version: str
    value: str
    status: PluginStatus = "available"
    reason: str = ""
    hint: str = ""
    description: str = ""
    is_builtin: bool = False
    is_fallback: bool = False
    fingerprint: str = ""
    registered_class: type | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def plugin(self) -> str:
        """The plugin's ``dist==version``, as shown in errors."""
        return f"{self.distribution}=={self.version}" if self.version else self.distribution

    @property
    def qualified_name(self) -> str:
        """The name ``dist:name``, which selects this plugin even if the bare name is ambiguous."""
        return f"{self.distribution}:{self.name}"

    @property
    def is_foreign(self) -> bool:
        """Whether using the plugin runs third-party code, which is first tried in a child process.

        False for plugins that consist of accelkit's code only, and for classes that the program itself registered.
        """
        return self.distribution != FROM_CODE and (not self.is_builtin or self.is_fallback)

    def with_status(self, status: PluginStatus, reason: str = "", hint: str = "") -> PluginRecord:
        return dataclasses.replace(self, status=status, reason=reason, hint=hint)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """An accelerator in a ``Decision``, with its status and the reason for the status."""

    name: str
    plugin: str
    status: Literal["chosen", "usable", "absent", "broken", "refused"]
    reason: str = ""
    hint: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The explanation of a selection: the request, its source, and the status of each candidate.

    Attributes:
        requested: The requested name, or ``auto``.
        source: The source of the request: ``argument``, the name of the environment variable, or ``default``.
        chosen: The name of the selected accelerator.
        plugin: The ``dist==version`` of the plugin that provides this accelerator.
        candidates: All accelerators that were considered, the chosen one first.
        notes: Remarks, such as which accelerator an alias stands for, or that a plugin took precedence over accelkit's table of vendors.
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
    """The result of ``detect_cluster``: a cluster environment to which this process may belong.

    Attributes:
        name: The name of the cluster environment.
        priority: The ``ClusterDetection`` with the highest priority is used. The priority is negative if the process does not belong to the
            environment.
        reason: Why the process belongs to the environment, or why not. ``accelkit why --cluster`` shows the reason.
    """

    name: str
    priority: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeState:
    """A summary of a Runtime, passed to hooks and printed for users.

    Some values are unknown until the processes join the process group, if neither the user nor the cluster environment specifies them.

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
