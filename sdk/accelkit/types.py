"""Immutable data types shared by the parts of accelkit. This module imports only the standard library.

Types not used by ``accelkit list`` are in ``job_types``, because each dataclass defined here delays that command by about half a
millisecond.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Self, get_args

OWN_DISTRIBUTION = "accelkit"
FROM_CODE = "(code)"
"""The distribution of plugins registered by ``accelkit.register``."""

Kind = Literal["accelerator", "precision", "cluster", "strategy", "hooks"]
"""The kind of a plugin. Its entry-point group is ``accelkit.<kind>s`` (``accelkit.hooks`` for hooks)."""

PluginStatus = Literal["available", "unavailable", "disabled", "incompatible", "broken", "conflict"]
"""The status of a plugin. ``available`` means that accelkit knows of nothing that prevents the use of the plugin."""

ProbeStatus = Literal["usable", "absent", "broken"]


@dataclasses.dataclass(frozen=True, slots=True)
class Availability:
    """The result of a probe: whether a plugin can be used on this machine, and if not, why and what would help.

    Args:
        status: ``usable``, ``absent`` (this machine has no such hardware or driver, which is normal) or
            ``broken`` (the hardware or driver is present but does not work).
        reason: The reason, for a reader who does not know the device. Always give one, unless the status is ``usable``.
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

        Otherwise, return ``absent`` if the library does not exist, or ``broken`` if it exists but cannot be opened. The result's ``reason``
        is the loader's error. Opening a driver's library runs its constructors but does not create a device context.

        Args:
            soname: The file name of the library, such as ``libacme.so``.
            hint: The ``hint`` of the result, unless the result is ``usable``.
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
        is_fallback: Whether the device is known only from accelkit's table of known devices. An installed plugin of the same name takes
            precedence.
        fingerprint: A value that changes when the installed distribution changes. It is part of the key under which accelkit caches the
            results of probing the plugin and of trying the plugin in a child process. An empty string if changes cannot be detected.
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
        """The plugin's ``dist==version``, as shown in errors; only ``dist`` if the version is not known."""
        return f"{self.distribution}=={self.version}" if self.version else self.distribution

    @property
    def qualified_name(self) -> str:
        """The name ``dist:name``, which selects this plugin even if the bare name is ambiguous."""
        return f"{self.distribution}:{self.name}"

    @property
    def is_foreign(self) -> bool:
        """Whether using the plugin runs third-party code. accelkit first tries such a plugin in a child process.

        False for plugins that consist of accelkit's code only, and for classes that the program itself registered.
        """
        return self.distribution != FROM_CODE and (not self.is_builtin or self.is_fallback)

    def with_status(self, status: PluginStatus, reason: str = "", hint: str = "") -> PluginRecord:
        return dataclasses.replace(self, status=status, reason=reason, hint=hint)
