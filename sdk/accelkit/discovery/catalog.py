"""The catalog of plugins. It has a record, with a status, for each plugin of an installed distribution, for each class that the program
registers, and for the remaining devices in accelkit's table. Imports no plugin."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import get_args

from accelkit.discovery import device_table
from accelkit.discovery.compatibility import objection
from accelkit.discovery.metadata import NAME, Installed, Inventory, installed_version, normalized, scan
from accelkit.discovery.policy import Policy
from accelkit.errors import (
    AccelkitError,
    BrokenPluginError,
    DisabledPluginError,
    IncompatiblePluginError,
    NameConflictError,
    UnknownNameError,
    UsageError,
)
from accelkit.types import FROM_CODE, OWN_DISTRIBUTION, Kind, PluginRecord, PluginStatus

_KIND_NAMES = {"cluster": "cluster environment", "hooks": "hook plugin"}

_lock = threading.RLock()
_inventory: Inventory | None = None
_records: tuple[PluginRecord, ...] | None = None
_registered: dict[tuple[Kind, str, str], PluginRecord] = {}


def plugins(kind: Kind | None = None) -> tuple[PluginRecord, ...]:
    """Return the records of all plugins, or of the plugins of one kind.

    The records are sorted by kind. Within a kind, built-in plugins come first, then devices known only from accelkit's table, then all
    other plugins. Each of these groups is sorted by name.

    Metadata is read on the first call in a process and cached until ``refresh()`` is called. Does not import plugins or torch.

    Raises:
        UsageError: If the value of ACCELKIT_PLUGINS or ACCELKIT_DISABLE_PLUGINS is invalid.
    """
    global _records
    with _lock:
        if _records is None:
            _records = _collect(inventory())
        return tuple(record for record in _records if kind in (None, record.kind))


def inventory() -> Inventory:
    """Return the inventory of installed distributions. It is read on the first call and cached until ``refresh()``."""
    global _inventory
    with _lock:
        if _inventory is None:
            _inventory = scan()
        return _inventory


def refresh() -> None:
    """Clear the cached metadata. Call this after installing a plugin or changing ACCELKIT_PLUGINS or ACCELKIT_DISABLE_PLUGINS."""
    global _inventory, _records
    with _lock:
        _inventory = _records = None
        installed_version.cache_clear()


def register(name: str, cls: type, description: str = "") -> None:
    """Register ``cls`` under ``name`` from code (such as a notebook or a test).

    Like the class of an installed plugin, ``cls`` is checked only when the plugin is loaded.

    If a class with the same module and qualified name as ``cls`` is already registered under ``name``, ``cls`` replaces this class, so that
    a notebook cell can be run twice.

    Args:
        name: The name by which users select the plugin.
        cls: A subclass of Accelerator, Precision, ClusterEnvironment or Strategy. Any other class is a hook plugin.
        description: A one-line description for ``accelkit list``. If it is empty, the first line of the docstring of ``cls`` is used.

    Raises:
        UsageError: If ``cls`` is not a class or ``name`` is not a valid name.
        NameConflictError: If the name belongs to a built-in plugin or another plugin, or is reserved.
    """
    global _records
    from accelkit.discovery.loading import BASES, base_class  # the specifications are needed only here

    if not isinstance(cls, type):
        raise UsageError(f"register({name!r}, ...) needs a class, got {cls!r}", hint="pass the class itself instead of an instance")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name", why="a name consists of letters, digits and _ . + -", hint="choose another name")
    kind: Kind = next((kind for kind in BASES if issubclass(cls, base_class(kind))), "hooks")
    record = PluginRecord(
        kind=kind,
        name=name,
        distribution=FROM_CODE,
        version=cls.__module__,
        value=f"{cls.__module__}:{cls.__qualname__}",
        description=description or (cls.__doc__ or "").strip().partition("\n")[0],
        registered_class=cls,
    )
    with _lock:
        taken = [other for other in plugins(kind) if other.name == name and not other.is_fallback and other.value != record.value]
        if taken or (kind == "accelerator" and name in device_table.reserved_names()):
            owner = taken[0].plugin if taken else OWN_DISTRIBUTION
            raise NameConflictError(
                f"the {kind} name {name!r} is taken",
                plugin=owner,
                why=f"{owner} provides or reserves it",
                hint="register under another name",
            )
        _registered[kind, name, record.value] = record
        _records = None


def find(kind: Kind, name: str) -> PluginRecord:
    """Return the record of a plugin.

    Args:
        kind: The kind of the plugin.
        name: The name of the plugin, or ``dist:name``, which also names the distribution that provides it. If no plugin has the name and
            the name is a known alternative spelling, the plugin with the canonical spelling is returned.

    Raises:
        UnknownNameError: If no plugin provides the name. The hint suggests a package to install or a similar name.
        NameConflictError, IncompatiblePluginError, DisabledPluginError, BrokenPluginError: If the status of the plugin forbids its use.
    """
    distribution, _, bare = name.rpartition(":")
    records = [record for record in plugins(kind) if record.name == bare]
    if distribution:
        wanted = normalized(distribution)
        records = [record for record in records if normalized(record.distribution) == wanted]
    if not records and (spelled := device_table.canonical_name(kind, name)) != name:
        return find(kind, spelled)
    if not records:
        raise _unknown(kind, name)
    usable = [record for record in records if record.status == "available"]
    if not distribution and (conflict := next((r for r in records if r.status == "conflict" and not usable), None)):
        raise _refusal(conflict)
    if usable:
        return usable[0]
    record = records[0]
    if record.status == "conflict" and distribution and bare not in _untouchable(kind):
        return record
    raise _refusal(record)


def _collect(found: Inventory) -> tuple[PluginRecord, ...]:
    policy = Policy.from_environment()
    records: list[PluginRecord] = []
    for installed in found.installed:
        refusal = policy.objection(installed.distribution)
        gate = None if refusal else _gate(installed)
        for record in installed.records:
            if refusal:
                records.append(record.with_status("disabled", *refusal))
            elif gate and record.status == "available":
                records.append(record.with_status(*gate))
            else:
                records.append(record)
    records += _registered.values()
    own = next((record.version for record in records if record.is_builtin), "")
    claimed = {record.name for record in records if record.kind == "accelerator" and record.status != "disabled"}
    records += [record for record in device_table.fallback_records(own) if record.name not in claimed]
    order = get_args(Kind)
    adjudicated = _adjudicate(records)
    return tuple(sorted(adjudicated, key=lambda r: (order.index(r.kind), not r.is_builtin, r.is_fallback, r.name, r.distribution)))


def _gate(installed: Installed) -> tuple[PluginStatus, str, str] | None:
    if installed.distribution == OWN_DISTRIBUTION:
        return None
    return objection(installed.requirements, installed_version)


def _adjudicate(records: Sequence[PluginRecord]) -> Iterable[PluginRecord]:
    """Yield all records. A record gets the status ``conflict`` if its name is reserved or if several plugins claim the name."""
    builtin = {(record.kind, record.name) for record in records if record.is_builtin and not record.is_fallback}
    reserved = {("accelerator", name) for name in device_table.reserved_names()}
    claims: dict[tuple[str, str], list[PluginRecord]] = {}
    for record in records:
        if record.status == "available" and not record.is_builtin:
            claims.setdefault((record.kind, record.name), []).append(record)
    for record in records:
        key = (record.kind, record.name)
        if record.is_builtin or record.status != "available":
            yield record
        elif key in builtin or key in reserved:
            hint = f"ask the vendor to rename it, or uninstall {record.distribution}"
            yield record.with_status("conflict", f"the name {record.name} is reserved for accelkit", hint)
        elif len(claims[key]) > 1:
            owners = f"{' and '.join(other.plugin for other in claims[key])} {'both' if len(claims[key]) == 2 else 'all'}"
            names = " or ".join(other.qualified_name for other in claims[key])
            hint = f"select {names}, or uninstall all but one of them"
            yield record.with_status("conflict", f"{owners} claim the name {record.name}", hint)
        else:
            yield record


def _untouchable(kind: Kind) -> set[str]:
    names = {record.name for record in plugins(kind) if record.is_builtin and not record.is_fallback}
    return names | (set(device_table.reserved_names()) if kind == "accelerator" else set())


def _refusal(record: PluginRecord) -> AccelkitError:
    errors: dict[str, type[AccelkitError]] = {
        "disabled": DisabledPluginError,
        "incompatible": IncompatiblePluginError,
        "conflict": NameConflictError,
    }
    error = errors.get(record.status, BrokenPluginError)
    is_conflict = record.status == "conflict"
    what = (
        f"the {record.kind} name {record.name!r} cannot be used" if is_conflict else f"the {record.kind} {record.name!r} is {record.status}"
    )
    return error(what, plugin=record.plugin, why=record.reason, hint=record.hint)


def _unknown(kind: Kind, name: str) -> UnknownNameError:
    what = f"there is no {_KIND_NAMES.get(kind, kind)} named {name!r}"
    if absent := device_table.not_offered(kind, name.lower()):
        return UnknownNameError(what, why=absent[0], hint=absent[1])
    for record in plugins():
        if record.name == name:  # a precision where an accelerator belongs, for example
            other = _KIND_NAMES.get(record.kind, record.kind)
            argument = f"{record.kind}={[name] if record.kind == 'hooks' else name!r}"
            return UnknownNameError(
                what,
                why=f"it is the name of another kind of plugin: {other} ({record.plugin})",
                hint=f"use {argument} in Runtime, and --kind {record.kind} in commands",
            )
    names = sorted({record.name for record in plugins(kind)})
    if kind == "accelerator":
        names = sorted({*names, *device_table.aliases(), "auto"})
    bare = name.rpartition(":")[2]
    near = _similar(device_table.canonical_name(kind, bare.lower()), names)
    variable = os.environ.get("ACCELKIT_PLUGINS")
    numbered, _, number = name.partition(":")
    if numbered in names and number.isdecimal():
        separate = f"accelerator={numbered!r}, devices=[{number}] in Runtime, or accelkit.device({numbered!r}, {number})"
        hint = f"specify the index of the device separately: {separate}"
    else:
        known = f"known names are {', '.join(names)}" if names else "no names are known"
        hint = f"did you mean {near[0]!r}?" if near else f"{known}; install the package of a plugin to add more"
    why = "no installed distribution provides it" + (f" (ACCELKIT_PLUGINS={variable})" if variable else "")
    return UnknownNameError(what, why=why, hint=hint)


def _similar(wanted: str, names: Sequence[str]) -> list[str]:
    """Return the names that a user who wrote ``wanted`` may have meant, the most likely one first. Upper and lower case do not matter.

    Args:
        wanted: What the user wrote, in lower case.
        names: All names.
    """
    import difflib  # slow to import, and needed only for errors

    lowered = {name.lower(): name for name in names}
    if wanted in lowered:
        return [lowered[wanted]]
    near = [name for name in lowered if name.startswith(wanted)] or difflib.get_close_matches(wanted, lowered, n=1)
    return [lowered[name] for name in near]
