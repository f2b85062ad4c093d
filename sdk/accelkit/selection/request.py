"""Selection of one accelerator from the user's request, with the Decision that explains the choice.

``decide`` does not run third-party code in this process (it probes plugins in child processes). ``select`` also imports the chosen plugin
in this process and calls its ``probe``. In both functions, the argument ``accelerator`` takes precedence over the environment variable
``ACCELKIT_ACCELERATOR``. If neither is given, ``auto`` is used.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from accelkit.discovery import autoload, device_table, loading, probing
from accelkit.errors import AccelkitError, ContradictionError, UsageError
from accelkit.job_types import Candidate, Decision
from accelkit.selection.auto import choose, choose_for_alias, warn_once
from accelkit.selection.by_name import (
    GENERIC,
    accelerator_record,
    generic_record,
    is_alias,
    require_usable,
    try_again,
    try_unless_known,
)
from accelkit.specs.accelerator import Accelerator
from accelkit.types import FROM_CODE, PluginRecord

AUTO = "auto"
ACCELERATOR_VARIABLE, DEVICES_VARIABLE = "ACCELKIT_ACCELERATOR", "ACCELKIT_DEVICES"

Devices = int | str | Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The selected accelerator. Its ``probe`` has been called, but not its ``load``, and no driver has been initialised.

    Attributes:
        accelerator: The accelerator instance. Its attributes ``name`` and ``plugin`` are set.
        devices: The devices to use, to be parsed by ``accelerator.parse_devices``. This is the argument ``devices`` of ``select`` or, if
            that is None, the value of the environment variable ACCELKIT_DEVICES. None if neither is set. With ``cpu=True``, the variable is
            ignored.
        decision: The explanation of the choice.
    """

    accelerator: Accelerator
    devices: Devices | None
    decision: Decision


def select(accelerator: str | Accelerator | None = None, *, devices: Devices | None = None, cpu: bool = False) -> Selection:
    """Select one accelerator, without initialising a driver. torch is imported only if the module of a plugin imports it.

    Args:
        accelerator: A name, ``dist:name``, ``torch:<device_type>``, an alias, ``auto`` or an instance. If None, the name is read from
            the environment variable ACCELKIT_ACCELERATOR. If the variable is not set, the name is ``auto``.
        devices: The devices to use, as for ``parse_devices``. If None and the environment variable ACCELKIT_DEVICES is set, its
            value is used.
        cpu: Whether to use the CPU regardless of the environment variables.

    Raises:
        UnknownNameError, UnavailableError, AmbiguousError, PluginError: If no accelerator can be selected. The error gives the reason
            and says what to do.
        ContradictionError: If ``cpu`` is True and ``accelerator`` is neither None nor the name of the CPU.
        UsageError: If ``accelerator`` is neither a name nor an instance, or is ``torch`` without a device type.
        AccelkitError: If the module or the ``probe`` of a plugin calls ``select`` while accelkit probes the plugin.
    """
    _refuse_nesting()
    wanted: Devices | None = devices if devices is not None else os.environ.get(DEVICES_VARIABLE) or None
    if cpu:
        host = device_table.host_name()
        if accelerator not in (None, host):
            raise ContradictionError(
                f"cpu=True contradicts accelerator={accelerator!r}", why="they select different devices", hint="keep one of the two"
            )
        accelerator, wanted = host, devices
    if isinstance(accelerator, Accelerator):
        return _from_instance(accelerator, wanted)
    for is_fresh in (False, True):
        decision, record = _decide(accelerator, is_fresh=is_fresh)
        cls: Any = loading.load_class(record)
        answer = loading.probe(cls, record)
        if answer.is_usable or len(decision.candidates) == 1:  # otherwise, the decision may rest on an outdated cached result
            break
    require_usable(answer, record)
    instance: Accelerator = loading.instantiate(cls, record)
    return Selection(instance, wanted, decision)


def decide(accelerator: str | None = None, *, is_fresh: bool = False) -> Decision:
    """Return the decision that ``select`` would make. Third-party plugins are probed only in child processes.

    Args:
        accelerator: As for ``select``, but not an instance.
        is_fresh: Whether to ignore the cached results of probes and trials. In a trial, a child process loads a plugin and computes with
            it, which may initialise drivers. If ``is_fresh`` is True, a third-party plugin selected by name is tried even if an earlier
            trial succeeded, and ``auto`` and aliases such as ``gpu`` probe all plugins again. ``torch:<device_type>`` is tried only if
            ``is_fresh`` is True.

    Raises:
        UnknownNameError, UnavailableError, AmbiguousError, PluginError: If no accelerator can be selected. The error gives the reason
            and says what to do.
        UsageError: If ``accelerator`` is not a name, or is ``torch`` without a device type.
        AccelkitError: If the module or the ``probe`` of a plugin calls ``decide`` while accelkit probes the plugin.
    """
    _refuse_nesting()
    return _decide(accelerator, is_fresh=is_fresh)[0]


def resolve(name: str) -> PluginRecord:
    """Return the record of the accelerator that a name refers to.

    An alias or ``auto`` refers to the accelerator that ``select`` would choose. For any other name, the accelerator is not probed, and its
    record is returned even if the accelerator does not work.

    Args:
        name: A name, ``dist:name``, ``torch:<device_type>``, an alias or ``auto``.

    Raises:
        UnknownNameError, PluginError, UnavailableError: If the name does not refer to an accelerator.
        UsageError: If the name is ``torch`` without a device type.
    """
    name = name.strip()
    if name.partition(":")[0] == GENERIC:
        return generic_record(name)
    if name == AUTO or is_alias(name):
        return _decide(name)[1]
    return accelerator_record(name)


def _decide(accelerator: str | None, *, is_fresh: bool = False) -> tuple[Decision, PluginRecord]:
    name, source = accelerator, "argument"
    if name is None:
        name, source = os.environ.get(ACCELERATOR_VARIABLE) or None, ACCELERATOR_VARIABLE
    if name is None:
        name, source = AUTO, "default"
    if not isinstance(name, str) or not name.strip():
        raise UsageError(
            f"accelerator={name!r} is invalid", why="it must be a name or an instance of Accelerator", hint="accelkit list shows the names"
        )
    name = name.strip()
    notes = _autoload_notes()
    if name == AUTO:
        record, candidates, more = choose(is_fresh=is_fresh)
        return Decision(name, source, record.name, record.plugin, candidates, (*notes, *more)), record
    if is_alias(name):
        record, candidates, more = choose_for_alias(name, is_fresh=is_fresh)
        return Decision(name, source, record.name, record.plugin, candidates, (*notes, *more)), record
    if name.partition(":")[0] == GENERIC:
        record = generic_record(name)
        if is_fresh:
            try_again(record)
        candidate = Candidate(name, record.plugin, "chosen", "a device of torch, or of a package that adds it, without a plugin of its own")
        return Decision(name, source, name, record.plugin, (candidate,), notes), record
    record = accelerator_record(name)
    answer = try_again(record) if is_fresh and record.is_foreign else try_unless_known(record)
    if record.is_fallback:
        notes = (
            *notes,
            f"{record.name} comes from accelkit's table of known devices; an installed plugin of that name would take precedence",
        )
    elif record.name in device_table.vendors():
        notes = (*notes, f"the plugin {record.plugin} takes precedence over accelkit's table of known devices")
    candidate = Candidate(record.name, record.plugin, "chosen", answer.reason, answer.hint)
    return Decision(name, source, record.name, record.plugin, (candidate,), notes), record


def _from_instance(accelerator: Accelerator, devices: Devices | None) -> Selection:
    cls = type(accelerator)
    accelerator.name = accelerator.name or accelerator.device_type
    accelerator.plugin = accelerator.plugin or f"{FROM_CODE}=={cls.__module__}"
    record = PluginRecord("accelerator", accelerator.name, FROM_CODE, cls.__module__, f"{cls.__module__}:{cls.__qualname__}")
    answer = require_usable(loading.probe(accelerator, record), record)
    candidate = Candidate(accelerator.name, accelerator.plugin, "chosen", answer.reason)
    return Selection(accelerator, devices, Decision(repr(accelerator), "argument", accelerator.name, accelerator.plugin, (candidate,)))


def _autoload_notes() -> tuple[str, ...]:
    conflict = autoload.privateuse1_conflict()
    if not conflict:
        return ()
    warn_once("autoload", f"import torch will fail, or use either of two backends: {conflict}")
    return (conflict,)


def _refuse_nesting() -> None:
    if os.environ.get(probing.INSIDE_A_PROBE):
        raise AccelkitError(
            "an accelerator was selected while a plugin was being probed",
            why="the module and the probe of a plugin must not select an accelerator",
            hint="move the selection out of the plugin's module and its probe()",
        )
