"""Selection among several accelerators by probing each, for ``auto`` and for aliases such as ``gpu``."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Sequence
from typing import Any

from accelkit.discovery import device_table, loading, verdict_cache
from accelkit.discovery.catalog import find, plugins
from accelkit.discovery.verdict import Verdict
from accelkit.errors import AccelkitError, AmbiguousError, BrokenPluginError, UnavailableError, UnknownNameError
from accelkit.job_types import Candidate
from accelkit.selection.by_name import GENERIC
from accelkit.types import Availability, PluginRecord

ORDER_VARIABLE = "ACCELKIT_AUTO_ORDER"
Choice = tuple[PluginRecord, tuple[Candidate, ...], list[str]]
"""The chosen record, every candidate with its verdict (the chosen one first), and notes."""

_warned: set[str] = set()


def choose(*, is_fresh: bool = False) -> Choice:
    """Choose the accelerator for ``auto``.

    If the user set an order in ACCELKIT_AUTO_ORDER, the first usable accelerator in this order is chosen. Without such an order, the choice
    is the only usable accelerator other than the host or, if there is none, the host. Simulated accelerators are never chosen.

    Args:
        is_fresh: Whether to ignore cached results of probes.

    Raises:
        UnknownNameError: If the user's order contains an unknown name.
        PluginError: If a plugin in the user's order is disabled, incompatible or broken, or if several distributions provide its name.
        UnavailableError: If no accelerator in the user's order can be used.
        AmbiguousError: If the user set no order and several accelerators other than the host can be used.
    """
    order = [name.strip() for name in os.environ.get(ORDER_VARIABLE, "").split(",") if name.strip()]
    records = [_in_order(name) for name in order] if order else [record for record in plugins("accelerator") if _is_candidate(record)]
    usable, candidates = _ask(records, is_fresh)
    ignored = _warn_of_ignored(records, candidates)
    if order:
        if not usable:
            reasons = "; ".join(f"{c.name}: {c.reason or c.status}" for c in candidates)
            hint = f"append {device_table.host_name()!r} to it to allow the CPU"
            raise UnavailableError(f"no accelerator in {ORDER_VARIABLE}={','.join(order)} is available", why=reasons, hint=hint)
        chosen = usable[0]
        return chosen, _mark(candidates, chosen), [f"the order is that of {ORDER_VARIABLE}"]
    host = device_table.host_name()
    hardware = [record for record in usable if record.name != host]
    if len(hardware) > 1:
        names = [record.name for record in hardware]
        raise AmbiguousError(
            f"auto found several usable accelerators: {', '.join(names)}",
            why="accelkit does not guess which one you want",
            hint=f"select one with accelerator={names[0]!r} or ACCELKIT_ACCELERATOR={names[0]}, or set {ORDER_VARIABLE}={','.join(names)}",
        )
    chosen = hardware[0] if hardware else find("accelerator", host)
    notes = [] if hardware else [f"{ignored and f'auto ignored {ignored}; '}no other accelerator is available on this machine"]
    return chosen, _mark(candidates, chosen), notes


def _is_candidate(record: PluginRecord) -> bool:
    """Return whether ``auto`` considers this accelerator.

    ``auto`` does not consider the generic accelerator ``torch``, because the user has to name its device type (``torch:<device_type>``).
    If an accelerator comes from accelkit's table of known devices and not from a plugin, the vendor's package must be installed.
    """
    return record.name != GENERIC and (not record.is_fallback or device_table.has_package(record.name))


def _in_order(name: str) -> PluginRecord:
    if name.rpartition(":")[2] in ("auto", GENERIC, *device_table.aliases()):
        raise UnknownNameError(
            f"{ORDER_VARIABLE} contains {name!r}",
            why="it stands for several accelerators, and the order consists of single accelerators",
            hint="accelkit list shows their names",
        )
    try:
        record = find("accelerator", name)
        return record.with_status("available") if record.status == "conflict" else record  # `dist:name` says which plugin is meant
    except UnknownNameError as error:
        raise UnknownNameError(f"{ORDER_VARIABLE} contains the unknown name {name!r}", why=error.why, hint=error.hint) from error


def choose_for_alias(alias: str, *, is_fresh: bool = False) -> Choice:
    """Choose the usable accelerator among those that the alias stands for.

    Args:
        alias: The alias, such as ``gpu``.
        is_fresh: Whether to ignore cached results of probes.

    Raises:
        AmbiguousError: If several of these accelerators can be used.
        UnavailableError: If none of these accelerators can be used.
    """
    names = [str(name) for name in device_table.aliases()[alias]["candidates"]]
    records = {record.name: record for record in plugins("accelerator")}
    offered = {name: record for name, record in records.items() if record.status == "available"}
    usable, candidates = _ask([offered[name] for name in names if name in offered], is_fresh)
    for name in names:
        if name in offered:
            continue
        if (record := records.get(name)) is not None:
            candidates += (Candidate(name, record.plugin, "refused", record.reason or record.status, record.hint),)
        else:
            candidates += (Candidate(name, "", "absent", *(device_table.retirement(name) or ("no installed plugin provides it",))),)
    if len(usable) == 1:
        return usable[0], _mark(candidates, usable[0]), [f"{alias} stands for {usable[0].name} here"]
    if usable:
        several = ", ".join(record.name for record in usable)
        raise AmbiguousError(
            f"{alias!r} is ambiguous on this machine",
            why=f"{several} are all available",
            hint=f"select one, for example accelerator={usable[0].name!r}",
        )
    raise UnavailableError(
        f"no accelerator for {alias!r} is available here",
        why="; ".join(f"{candidate.name}: {candidate.reason}" for candidate in candidates),
        hint=next((candidate.hint for candidate in candidates if candidate.hint), "accelkit doctor shows more"),
    )


def _ask(records: Sequence[PluginRecord], is_fresh: bool) -> tuple[list[PluginRecord], tuple[Candidate, ...]]:
    """Return the usable accelerators that are not simulated, in the order of ``records``, and each candidate with its verdict.

    Third-party plugins are probed in child processes, which end before this process loads a plugin. If ``is_fresh`` is False, a plugin for
    which ``verdict_cache`` has a valid result is not probed.

    After the probes, this function tries each usable plugin that runs third-party code (see ``PluginRecord.is_foreign``) and is not
    simulated. In a trial, a child process loads the plugin and computes with it. A plugin for which ``verdict_cache`` has the result of a
    successful trial is not tried again, even if ``is_fresh`` is True.
    """
    askable = [record for record in records if record.status == "available"]
    verdicts = verdict_cache.probed([record for record in askable if not record.is_builtin and record.is_foreign], is_fresh=is_fresh)
    answers = {record: _ask_here(record) for record in askable if record not in verdicts}
    answers |= {record: (_availability(verdict), verdict.is_simulated) for record, verdict in verdicts.items()}
    claiming = [record for record, (answer, is_simulated) in answers.items() if record.is_foreign and answer.is_usable and not is_simulated]
    answers |= {record: (_availability(verdict), False) for record, verdict in verdict_cache.tried(claiming).items()}

    usable, candidates = [], []
    for record in records:
        if record not in answers:
            candidates.append(Candidate(record.name, record.plugin, "refused", f"{record.status}: {record.reason}", record.hint))
            continue
        answer, is_simulated = answers[record]
        if is_simulated:
            hint = f"to use it, select it by name: {record.name}"
            candidates.append(
                Candidate(record.name, record.plugin, "refused", "it is simulated, and auto never selects simulated devices", hint)
            )
            continue
        if answer.is_usable:
            usable.append(record)
        candidates.append(Candidate(record.name, record.plugin, answer.status, answer.reason, answer.hint))
    return usable, tuple(candidates)


def _availability(verdict: Verdict) -> Availability:
    reason = verdict.reason
    if verdict.cached_at and verdict.status == "absent":
        reason += f" (probed {time.time() - verdict.cached_at:.0f} s ago; accelkit why probes again)"
    return Availability(verdict.status, reason, verdict.hint)


def _ask_here(record: PluginRecord) -> tuple[Availability, bool]:
    try:
        cls: Any = loading.load_class(record)
        return loading.probe(cls, record), bool(cls.is_simulated)
    except UnavailableError as error:
        return Availability.absent(error.why or error.what, error.hint), False
    except AccelkitError as error:
        return Availability.broken(error.why or error.what, error.hint), False


def _mark(candidates: Sequence[Candidate], chosen: PluginRecord) -> tuple[Candidate, ...]:
    """Return the candidates, with the chosen candidate marked and moved to the front."""
    winners, others = [], []
    for candidate in candidates:
        if (candidate.name, candidate.plugin) == (chosen.name, chosen.plugin):
            winners.append(dataclasses.replace(candidate, status="chosen"))
        else:
            others.append(candidate)
    return (*winners, *others)


def warn_once(topic: str, text: str) -> None:
    """Warn the user once per process and topic."""
    if topic not in _warned:
        _warned.add(topic)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _warn_of_ignored(records: Sequence[PluginRecord], candidates: Sequence[Candidate]) -> str:
    """Warn about each accelerator that ``auto`` ignores although its device may be present. Return their names, each with its status, as
    text.

    These are the accelerators that are broken or incompatible, and those whose name is in conflict. Plugins with the same problem, such as
    two that claim one name, share a warning.
    """
    problems: dict[tuple[str, str, str, str], list[str]] = {}
    for record, candidate in zip(records, candidates, strict=True):
        if candidate.status == "broken":
            problem = ("broken", record.name, candidate.reason, candidate.hint)
        elif record.status in ("broken", "incompatible", "conflict"):
            problem = (record.status, record.name, record.reason, record.hint)
        else:
            continue
        problems.setdefault(problem, []).append(record.plugin)
    for (status, name, reason, hint), claimants in problems.items():
        error = BrokenPluginError(
            f"auto ignores the accelerator {name!r}" if status == "conflict" else f"auto ignores the {status} accelerator {name!r}",
            plugin=", ".join(claimants),
            why=reason,
            hint=hint,
        )
        warn_once(f"{status} {name} {error.plugin}", str(error))
    return ", ".join(f"{name} ({status})" for status, name, *_ in problems)
