"""Selection by name: find the record that a name refers to, and try third-party plugins in a child process before loading them here."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from accelkit.discovery import device_table, loading, probing, verdict_cache
from accelkit.discovery.catalog import find, plugins
from accelkit.errors import BrokenPluginError, UnavailableError, UsageError
from accelkit.types import Availability, Kind, PluginRecord

GENERIC = "torch"
"""The accelerator that is selected together with a device type, in the form ``torch:<device_type>``. ``auto`` never considers it."""


class Loaded(NamedTuple):
    """A plugin's class, together with the plugin's record. The class has been checked against its specification."""

    cls: Any
    record: PluginRecord


def generic_record(name: str) -> PluginRecord:
    """Return the record of the accelerator ``torch``, with its name set to ``name``.

    Args:
        name: A name of the form ``torch:<device_type>``, such as ``torch:xpu``.

    Raises:
        UsageError: If the name has no device type.
    """
    if not name.partition(":")[2].isidentifier():
        raise UsageError(
            f"accelerator={name!r} has no device type", why="the expected form is torch:<device_type>", hint="use torch:xpu, for example"
        )
    return dataclasses.replace(find("accelerator", GENERIC), name=name)


def accelerator_record(name: str) -> PluginRecord:
    """Return the record of an accelerator, without checking that the accelerator works.

    Args:
        name: The name of the accelerator, or ``dist:name``, which also names the distribution that provides it.

    Raises:
        UnavailableError: If the accelerator is retired and no available plugin provides it. An accelerator is retired when the package that
            added its device to torch is no longer developed. ``known_devices.py`` lists the retired accelerators under ``RETIRED``.
        UnknownNameError: If no plugin provides the accelerator and it is not retired.
        PluginError: If the plugin is disabled, incompatible or broken, or if several distributions provide the name.
    """
    if (ended := device_table.retirement(name)) and not _is_offered(name):
        raise UnavailableError(f"the accelerator {name!r} cannot be used", why=ended[0], hint=ended[1])
    return find("accelerator", name)


def is_alias(name: str) -> bool:
    """Return whether the name is an alias, such as ``gpu``. The name of an available plugin is never an alias."""
    return name in device_table.aliases() and not _is_offered(name)


def _is_offered(name: str) -> bool:
    return any(record.name == name and record.status == "available" for record in plugins("accelerator"))


def load_named(kind: Kind, name: str) -> Loaded:
    """Check that a plugin works here (see ``try_unless_known``), then load its class, and return the class with the plugin's record.

    Args:
        kind: The kind of the plugin.
        name: The name of the plugin, or ``dist:name``, which also names the distribution that provides it.

    Raises:
        UnknownNameError, UnavailableError, PluginError: If there is no such plugin, if it does not work here, or if its class cannot be
            loaded. The error gives the reason and says what to do.
    """
    record = find(kind, name)
    try_unless_known(record)
    return Loaded(loading.load_class(record), record)


def try_unless_known(record: PluginRecord) -> Availability:
    """Return the Availability of a plugin, or raise an error if the plugin cannot be used.

    A plugin that runs third-party code (see ``PluginRecord.is_foreign``) is loaded and checked in a child process, unless a cached result
    says that the plugin has worked before. An accelerator that runs no third-party code is probed in this process. Any other plugin that
    runs no third-party code is not checked.

    Raises:
        BrokenPluginError, UnavailableError: If the plugin is broken or not available.
    """
    if not record.is_foreign:
        if record.kind != "accelerator":
            return Availability.usable()
        return require_usable(loading.probe(loading.load_class(record), record), record)
    verdict = verdict_cache.tried([record])[record]
    return require_usable(Availability(verdict.status, verdict.reason, verdict.hint), record)


def try_again(record: PluginRecord) -> Availability:
    """Try a plugin in a child process, regardless of any cached verdict, and return its Availability. The new verdict is cached.

    Raises:
        BrokenPluginError, UnavailableError: If the plugin is broken or not available.
    """
    verdict = probing.ask(record, is_trial=True)
    verdict_cache.remember(record, verdict)
    return require_usable(Availability(verdict.status, verdict.reason, verdict.hint), record)


def require_usable(answer: Availability, record: PluginRecord) -> Availability:
    """Return ``answer``, the result of a probe or trial, if its status is ``usable``.

    Raises:
        UnavailableError: If the status is ``absent``. The error has the reason and the hint of ``answer``.
        BrokenPluginError: If the status is ``broken``. The error has the reason and the hint of ``answer``.
    """
    if answer.is_usable:
        return answer
    error = UnavailableError if answer.status == "absent" else BrokenPluginError
    state = "is not available here" if answer.status == "absent" else "is broken"
    hint = answer.hint or f"run accelkit doctor {record.name} for details"
    raise error(f"the {record.kind} {record.name!r} {state}", plugin=record.plugin, why=answer.reason, hint=hint)
