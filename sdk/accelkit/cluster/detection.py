"""Select the cluster environment of this process, and record every candidate. This module does not import torch.

The argument ``cluster`` of ``select_cluster`` takes precedence over the variable ``ACCELKIT_CLUSTER``, which takes precedence over
detection. Detection asks the built-in environments and hook plugins. An environment or plugin that recognises the environment variables of
the process answers with a claim, a ``ClusterDetection``. A third-party environment is used only if the argument or ``ACCELKIT_CLUSTER``
names it, or if a hook plugin that the user enabled claims the process for this environment.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from accelkit.discovery import loading
from accelkit.discovery.catalog import plugins
from accelkit.errors import AccelkitError, UnknownPlacementError, UsageError
from accelkit.job_types import ClusterDetection
from accelkit.selection import load_named
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.types import PluginRecord

VARIABLE = "ACCELKIT_CLUSTER"
_DETECT = "auto"
SETTINGS = (
    "main_address",
    "main_port",
    "world_size",
    "global_rank",
    "local_rank",
    "local_world_size",
    "node_rank",
    "num_nodes",
    "creates_processes_externally",
    "job_id",
    "restart_count",
)
"""The properties of a cluster environment that ``accelkit why --cluster`` shows."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterCandidate:
    """One cluster environment that was considered, and the outcome.

    Attributes:
        name, plugin: The name of the environment, and its plugin as ``dist==version``. ``plugin`` is empty if a hook plugin claims the
            process for an environment that no installed plugin provides.
        status: ``chosen``; ``claimed`` (the environment claimed the process, but another claim has a higher priority); ``declined`` (some
            variables of the environment are set, and ``reason`` says why the environment ignores them); ``absent`` (no variable of the
            environment is set); ``not selected`` (a third party provides the environment, and neither the user nor a hook plugin selected
            the environment).
        priority: The priority of the environment's claim. Negative if the environment declined; None if the status is ``absent`` or
            ``not selected``, or if the environment was selected by name.
        reason: The reason for the status, taken from the claim if there is one. For ``not selected``, how to select the environment, or why
            its plugin is not available.
    """

    name: str
    plugin: str
    status: Literal["chosen", "claimed", "declined", "absent", "not selected"]
    priority: int | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterDecision:
    """The cluster environment that was selected, and the reasons.

    Attributes:
        requested: The name that was requested, or ``auto``.
        source: The source of the request: ``argument``, ``ACCELKIT_CLUSTER`` or ``default``.
        chosen, plugin: The name of the selected environment, and the plugin that provides it.
        candidates: All environments that were considered: the chosen one first, then the others by descending ``priority``, then those
            without a priority. If the environment was requested by name or as an instance, only the chosen one.
    """

    requested: str
    source: str
    chosen: str
    plugin: str
    candidates: tuple[ClusterCandidate, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        request = "detected" if self.source == "default" else f"{self.requested!r} ({self.source})"
        lines = [f"cluster environment {self.chosen} from {self.plugin}: {request}"]
        lines += [f"  {one.name} ({one.plugin}) {one.status}{': ' if one.reason else ''}{one.reason}" for one in self.candidates]
        return "\n".join(lines)


class ClusterSelection(NamedTuple):
    """The cluster environment that was selected, and the decision that led to it."""

    environment: ClusterEnvironment
    decision: ClusterDecision


def select_cluster(
    cluster: str | ClusterEnvironment | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    further_claims: Iterable[ClusterDetection | None] = (),
) -> ClusterSelection:
    """Select one cluster environment, without reading its ranks, its sizes or its rendezvous address.

    Args:
        cluster: A name, ``dist:name``, ``auto`` or an instance. None means ACCELKIT_CLUSTER if it is set, and detection otherwise.
        environ: The variables to read. None means the environment variables of this process. An instance keeps its own ``environ``.
        further_claims: The claims that hook plugins returned from ``detect_cluster``. They are used only for detection.

    Raises:
        UsageError, UnknownNameError, UnavailableError, PluginError: If the environment cannot be used.
    """
    environ = os.environ if environ is None else environ
    name, source = cluster, "argument"
    if name is None:
        name, source = environ.get(VARIABLE, "").strip() or None, VARIABLE
    if name is None:
        name, source = _DETECT, "default"
    if isinstance(name, ClusterEnvironment):
        environment = loading.adopt(name)
        decision = ClusterDecision(environment.name, source, environment.name, environment.plugin, (_chosen(environment, "it was given"),))
    elif isinstance(name, str) and name == _DETECT:
        environment, decision = _detect(environ, further_claims, source)
    elif isinstance(name, str) and name.strip():
        environment = make_environment(name, environ)
        decision = ClusterDecision(name, source, environment.name, environment.plugin, (_chosen(environment, "it was selected by name"),))
    else:
        raise UsageError(
            f"cluster={name!r:.80} is invalid",
            why="it must be a name or an instance of accelkit.ClusterEnvironment",
            hint="accelkit list --kind cluster shows the names",
        )
    return ClusterSelection(environment, decision)


def check_environment(environment: ClusterEnvironment) -> None:
    """Read the ranks, the sizes and the number of machines, so that an invalid variable causes an error now.

    The properties are ``world_size``, ``global_rank``, ``local_rank``, ``local_world_size`` and ``num_nodes``. A property that is known
    only after the processes have joined the process group is skipped.

    Raises:
        AccelkitError: If a variable is invalid. The error names the variable and its value, and says what to do. Any other exception in
            the plugin's code is raised as a BrokenPluginError.
    """
    with loading.plugin_errors(environment.plugin, f"reading the cluster environment {environment.name}"):
        for name in ("world_size", "global_rank", "local_rank", "local_world_size", "num_nodes"):
            environment.known(name)


def make_environment(name: str, environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
    """Return an instance of a cluster environment.

    Args:
        name: The name of the cluster environment, or ``dist:name``, which also names the distribution that provides it.
        environ: The variables that the cluster environment reads. None means the environment variables of this process.

    Raises:
        UnknownNameError, UnavailableError, PluginError: If the environment cannot be used. The error says why, and what to do.
    """
    loaded = load_named("cluster", name)
    environment: ClusterEnvironment = loading.instantiate(loaded.cls, loaded.record)
    if environ is not None:
        environment.environ = environ
    return environment


def _detect(
    environ: Mapping[str, str], further_claims: Iterable[ClusterDetection | None], source: str
) -> tuple[ClusterEnvironment, ClusterDecision]:
    records = plugins("cluster")
    builtin = {record.name: make_environment(record.name, environ) for record in records if record.is_builtin}
    claims = {name: environment.detect_cluster(environ) for name, environment in builtin.items()}
    for claim in further_claims:
        if claim is not None and (claims.get(claim.name) is None or claim.priority > _priority(claims[claim.name])):
            claims[claim.name] = claim
    winner = max((claim for claim in claims.values() if claim is not None), key=_priority)
    chosen = builtin.get(winner.name) or make_environment(winner.name, environ)
    providers = {record.name: record.plugin for record in records}
    others = [ClusterCandidate(name, providers.get(name, ""), *_status(claim)) for name, claim in claims.items() if claim is not winner]
    others.sort(key=lambda other: (other.priority is None, -(other.priority or 0), other.name))
    unselected = [record for record in records if record.name not in claims]
    if not chosen.creates_processes_externally:
        _warn_of_unselected(unselected, environ)
    candidates = (_chosen(chosen, winner.reason, winner.priority), *others, *map(_not_selected, unselected))
    return chosen, ClusterDecision(_DETECT, source, chosen.name, chosen.plugin, candidates)


def _not_selected(record: PluginRecord) -> ClusterCandidate:
    reason = f"{record.reason}; {record.hint}" if record.status != "available" else f"select it with {VARIABLE}={record.name}"
    return ClusterCandidate(record.name, record.plugin, "not selected", None, reason)


def _warn_of_unselected(records: Iterable[PluginRecord], environ: Mapping[str, str]) -> None:
    """Warn about third-party cluster environments that were not selected, if their launcher seems to have started this process.

    The evidence is a variable whose name begins with the first word of the cluster environment's name, and contains RANK, WORLD or SIZE,
    such as ``ACME_RANK`` for the cluster environment ``acme``. There is no warning about cluster environments that are not available.
    Called only if this process trains alone.
    """
    for record in records:
        prefix = re.split(r"[^A-Z0-9]", record.name.upper())[0]
        found = sorted(name for name in environ if re.fullmatch(rf"{re.escape(prefix)}_\w*(RANK|WORLD|SIZE)\w*", name))
        if record.status == "available" and found:
            warnings.warn(
                f"{' and '.join(found[:2])} {'are' if len(found) > 1 else 'is'} set, but the cluster environment {record.name!r} "
                f"({record.plugin}) is not used, because it was not selected: this process trains alone. "
                f"Select it with {VARIABLE}={record.name}.",
                RuntimeWarning,
                stacklevel=2,
            )


def _chosen(environment: ClusterEnvironment, reason: str, priority: int | None = None) -> ClusterCandidate:
    if priority is None:
        reason += ", so the claims of other environments do not apply"
    return ClusterCandidate(environment.name, environment.plugin, "chosen", priority, reason)


def _status(claim: ClusterDetection | None) -> tuple[Literal["claimed", "declined", "absent"], int | None, str]:
    if claim is None:
        return "absent", None, "none of its variables is set"
    return "declined" if claim.priority < 0 else "claimed", claim.priority, claim.reason


def _priority(claim: ClusterDetection | None) -> int:
    return claim.priority if claim is not None else -1


def describe(environment: ClusterEnvironment) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return all properties of the environment, and a dict with ``name``, ``what``, ``why`` and ``hint`` for each unreadable property.

    An unreadable property is None. A property that is not known before the processes join the process group is None too, but does not count
    as unreadable.
    """
    settings: dict[str, Any] = {}
    errors: list[dict[str, str]] = []
    for name in SETTINGS:
        try:
            with loading.plugin_errors(environment.plugin, f"reading {name} of the cluster environment {environment.name}"):
                settings[name] = getattr(environment, name)
        except UnknownPlacementError:
            settings[name] = None
        except AccelkitError as error:
            settings[name] = None
            errors.append({"name": name, "what": error.what, "why": error.why, "hint": error.hint})
    return settings, errors
