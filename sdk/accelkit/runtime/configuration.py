"""Turn the arguments of ``Runtime`` into a checked configuration. No driver is initialised."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import torch

from accelkit.capabilities import Capabilities
from accelkit.cluster.detection import check_environment, select_cluster
from accelkit.discovery import loading
from accelkit.errors import ContradictionError, DevicesError, UnavailableError, UnsupportedError, UsageError
from accelkit.job_types import ClusterDetection, Decision
from accelkit.plugin_calls import call, checked
from accelkit.plugin_manager import PluginManager, wrong_hook_result
from accelkit.precision_support import precisions_of
from accelkit.selection import Devices, load_named, select
from accelkit.selection.request import AUTO
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.device_parsing import spell_devices
from accelkit.specs.hooks import hookimpl
from accelkit.specs.overrides import overrides
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy
from accelkit.types import FROM_CODE, Kind
from accelkit.whole_number import whole_number

_DEFAULT_PRECISION = "32-true"


@dataclasses.dataclass(frozen=True, slots=True)
class Configuration:
    """The selected plugins, devices and number of machines of a Runtime, checked for consistency.

    Attributes:
        device_indices: Indices of the devices that the job uses on this machine. If the user did not request devices and the number of
            processes on this machine is not known yet, these are the indices 0 to ``local_rank``.
        num_nodes: Number of machines; None if it is not known until the processes join the process group.
        devices_said, nodes_said: The devices and the number of machines that the user requested; None if unspecified.
    """

    accelerator: Accelerator
    device_indices: tuple[int, ...]
    decision: Decision
    precision: Precision
    strategy: Strategy
    cluster: ClusterEnvironment
    plugin_manager: PluginManager
    num_nodes: int | None
    devices_said: Devices | None
    nodes_said: int | None

    @property
    def num_processes(self) -> int:
        """Number of processes of the job: the number that a launcher started or, without a launcher, the number that the strategy needs."""
        if self.cluster.creates_processes_externally:
            return self.cluster.world_size
        needed: int = call(self.strategy, "num_processes", len(self.device_indices), self.num_nodes or 1)
        return needed

    @property
    def known_devices(self) -> tuple[int, ...]:
        """Indices of the devices of this machine's processes. Empty if they are not known until the processes join the process group."""
        is_known = self.devices_said is not None or self.cluster.known("local_world_size") is not None
        return self.device_indices if is_known else ()

    def placed(self) -> Configuration:
        """Return this configuration with the devices and the number of machines that the cluster environment has reported.

        Raises:
            ContradictionError: If they contradict the user's request, or if more processes run on this machine than it has devices.
        """
        indices, nodes = _check_against(self.cluster, self.accelerator, self.devices_said, self.nodes_said)
        return dataclasses.replace(self, device_indices=indices, num_nodes=nodes)


def configure(
    *,
    accelerator: str | Accelerator | None,
    devices: Devices | None,
    strategy: str | Strategy | None,
    precision: str | Precision | None,
    cluster: str | ClusterEnvironment | None,
    hooks: Iterable[str | object],
    cpu: bool,
    num_nodes: int | None,
) -> Configuration:
    """Select all plugins, and return the configuration. An argument overrides an environment variable, which overrides a default.

    Raises:
        AccelkitError: If a selection cannot be used, or if selections contradict each other. The error says what to change.
    """
    if isinstance(hooks, str):
        raise UsageError(f"hooks={hooks!r} is a string", why="a list is expected", hint=f"write hooks=[{hooks!r}]")
    if not isinstance(hooks, Iterable):
        kind = type(hooks).__name__
        raise UsageError(f"hooks={hooks!r:.80} is not a list", why=f"a list is expected, not {kind}", hint=f"write hooks=[{kind}(...)]")
    selection = select(accelerator, devices=devices, cpu=cpu)
    chosen = selection.accelerator
    with loading.plugin_errors(chosen.plugin, f"loading the accelerator {chosen.name}"):
        chosen.load()
    plugin_manager = PluginManager()
    plugin_manager.add(chosen, chosen.plugin)
    for hook in hooks:
        plugin_manager.add(*_hook_plugin(hook))
    environment = _cluster(cluster, plugin_manager)
    plugin_manager.add(environment, environment.plugin)
    nodes_said = _num_nodes(num_nodes)
    indices, nodes = _check_against(environment, chosen, selection.devices, nodes_said)
    is_alone = environment.world_size == len(indices) * (nodes or 1) == 1
    default = chosen.default_strategy if is_alone else chosen.default_distributed_strategy
    the_strategy = _instance("strategy", strategy_or_default(strategy, default))
    _check_strategy(the_strategy, chosen)
    plugin_manager.add(the_strategy, the_strategy.plugin)
    the_precision = select_precision(precision, chosen)
    plugin_manager.add(_NamedPrecision(the_precision), the_precision.plugin)
    configuration = Configuration(
        chosen, indices, selection.decision, the_precision, the_strategy, environment, plugin_manager, nodes, selection.devices, nodes_said
    )
    if overrides(the_strategy, Strategy, "data_parallel_size"):
        call(the_strategy, "data_parallel_size", configuration.num_processes)  # raises an error if the number is not possible
    return configuration


def _check_against(
    environment: ClusterEnvironment, accelerator: Accelerator, devices_said: Devices | None, nodes_said: int | None
) -> tuple[tuple[int, ...], int | None]:
    """Check the requested devices and machines against the job. Return the device indices and the number of machines (None if unknown)."""
    with loading.plugin_errors(accelerator.plugin, f"counting the devices of {accelerator.name}"):
        indices = tuple(select_devices(accelerator, devices_said, environment))
    environment.validate_settings(len(indices) if devices_said is not None else None, nodes_said)
    return indices, nodes_said or environment.known("num_nodes")


def strategy_or_default(given: str | Strategy | None, default: str) -> str | Strategy:
    """Return ``given``, or else the value of ACCELKIT_STRATEGY, or else ``default``. None, ``auto`` and an empty variable are skipped."""
    requested = (given, os.environ.get("ACCELKIT_STRATEGY") or None)
    return next((one for one in requested if one is not None and one != AUTO), default)


class _NamedPrecision:
    """The default implementation of the hook ``make_precision``. It returns the selected precision.

    It is called only if all other implementations return None.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision

    @hookimpl(trylast=True)
    def make_precision(self) -> Precision:
        return self._precision


def _instance(kind: Kind, plugin: Any) -> Any:
    if not isinstance(plugin, str):
        base: Any = loading.base_class(kind)
        if not isinstance(plugin, base):
            why = f"a name or an instance of accelkit.{base.__name__} is expected"
            raise UsageError(f"{kind}={plugin!r:.80} cannot be used", why=why, hint=f"accelkit list --kind {kind} shows the names")
        return loading.adopt(plugin)
    loaded = load_named(kind, plugin)
    return loading.instantiate(loaded.cls, loaded.record)


def _hook_plugin(hook: str | object) -> tuple[object, str]:
    if not isinstance(hook, str):
        for kind in loading.BASES:
            base = loading.base_class(kind)
            if isinstance(hook, base):
                why = f"it is an instance of accelkit.{base.__name__}"
                raise UsageError(f"hooks=[{hook!r:.80}] is not a hook plugin", why=why, hint=f"pass it as {kind}=")
        return hook, f"{FROM_CODE}=={(hook if isinstance(hook, type) else type(hook)).__module__}"
    loaded = load_named("hooks", hook)
    return loading.instantiate(loaded.cls, loaded.record), loaded.record.plugin


def select_precision(precision: Any, accelerator: Accelerator) -> Precision:
    """Return an instance of the precision, after checking that the accelerator does not declare it as unsupported.

    ``precision`` is a name or an instance. None means the value of ACCELKIT_PRECISION, or else ``32-true``.

    Raises:
        UnsupportedError, UsageError, PluginError: If the precision cannot be used. The error says why, and what to do.
    """
    precision = precision if precision is not None else os.environ.get("ACCELKIT_PRECISION") or _DEFAULT_PRECISION
    if isinstance(precision, int) and not isinstance(precision, bool):
        precision = str(precision)
    chosen: Precision = _instance("precision", precision)
    capabilities: Capabilities = call(accelerator, "capabilities")
    if lacking := [key for key in chosen.required_capabilities if capabilities[key] == "none"]:
        able = [name for name, support in precisions_of(capabilities).items() if support != "none"]
        raise UnsupportedError(
            f"{accelerator.name} does not support precision {chosen.name!r}",
            plugin=accelerator.plugin,
            why=f"the accelerator declares that it does not support {', '.join(lacking)}",
            hint=f"it supports: {', '.join(able)}",
        )
    return chosen


def select_devices(accelerator: Accelerator, wanted: Devices | None, environment: ClusterEnvironment) -> list[int]:
    """Return the indices of the devices in ``wanted``. If ``wanted`` is None, choose as many devices as this machine's processes need.

    This is one device if no external launcher starts the processes, or if each process sees only its own device (as with ``srun
    --gpus-per-task=1``). Otherwise, it is one device for each process on this machine, or ``local_rank + 1`` devices if the number of
    processes is not known.

    Raises:
        DevicesError: If ``wanted`` is invalid or names a device that does not exist.
        UnavailableError: If one device is needed, but the accelerator has none.
        ContradictionError: If there are more processes on this machine than devices.
    """
    if wanted is not None:
        return _indices(accelerator, wanted)
    started = 1
    if environment.creates_processes_externally:
        started = environment.known("local_world_size") or (environment.known("local_rank") or 0) + 1
    limited = accelerator.visible_devices_variable
    if started > 1 and limited and os.environ.get(limited) and accelerator.auto_device_count() == 1:
        return _indices(accelerator, 1)
    try:
        return _indices(accelerator, started)
    except DevicesError as error:
        if started == 1:
            what = f"the accelerator {accelerator.name!r} has no device that this process can use"
            hint = f"run accelkit doctor {accelerator.name} for details, and check the variables that limit which devices are visible"
            raise UnavailableError(what, plugin=accelerator.plugin, why=error.hint, hint=hint) from error
        raise ContradictionError(
            f"{started} processes were started on this machine, more than {accelerator.name} has devices",
            plugin=accelerator.plugin,
            why=error.hint,
            hint="start one process per device, or set devices=",
        ) from error


def _indices(accelerator: Accelerator, wanted: Devices) -> list[int]:
    with loading.plugin_errors(accelerator.plugin, f"counting the devices of {accelerator.name}"):
        return list(checked(accelerator, "parse_devices", accelerator.parse_devices(wanted)))


def _check_strategy(strategy: Strategy, accelerator: Accelerator) -> None:
    call(strategy, "check", accelerator)
    if strategy.requested_device is None:
        return
    wanted = torch.device(strategy.requested_device).type
    if wanted != accelerator.device_type:
        raise ContradictionError(
            f"strategy {strategy.name!r} and accelerator {accelerator.name!r} disagree about the device",
            why=f"the strategy was created for {wanted}, but the accelerator drives {accelerator.device_type}",
            hint="create the strategy without a device, or select the other accelerator",
        )


def _cluster(cluster: str | ClusterEnvironment | None, plugin_manager: PluginManager) -> ClusterEnvironment:
    claims = _further_claims(plugin_manager) if cluster is None else []
    environment = select_cluster(cluster, further_claims=claims).environment
    check_environment(environment)
    return environment


def _further_claims(plugin_manager: PluginManager) -> list[ClusterDetection]:
    """Return the results of all ``detect_cluster`` hooks: the cluster environments to which this process may belong."""
    environ = MappingProxyType(os.environ)
    with plugin_manager.naming_failures("detect_cluster"):
        claims: list[ClusterDetection] = plugin_manager.hook.detect_cluster(environ=environ)
    for claim in claims:
        if not isinstance(claim, ClusterDetection):
            owner = plugin_manager.owner_that_returns("detect_cluster", lambda it: not isinstance(it, ClusterDetection), environ=environ)
            raise wrong_hook_result("detect_cluster", claim, "an accelkit.ClusterDetection or None", owner)
    return claims


def _num_nodes(given: int | None) -> int | None:
    if given is not None:
        number = whole_number(given)
        if number is None or number < 1:
            what = f"num_nodes={given!r:.60} is not a valid number of nodes"
            raise UsageError(what, why="it must be a positive integer", hint="leave it out to use 1")
        return number
    text = os.environ.get("ACCELKIT_NUM_NODES")
    if text and not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        what = f"ACCELKIT_NUM_NODES={text!r:.60} is not a valid number of nodes"
        raise UsageError(what, why="it must be a positive integer", hint="unset it to use 1")
    return int(text) if text else None


def check_started(config: Configuration) -> None:
    """Check that the job has as many processes as the configuration needs, and that the strategy supports this number.

    The check is made before any device is used. A strategy that is not distributed supports only one process on one device.

    Raises:
        UnsupportedError: If the number of processes is wrong, or the strategy does not support the number of processes or devices. The
            error says how to start the processes, or what to change.
    """
    needed, there = config.num_processes, config.cluster.world_size
    num_devices = 1 if config.strategy.drives_all_devices else len(config.device_indices)
    if not config.strategy.is_distributed and max(needed, there, num_devices * (config.num_nodes or 1)) > 1:
        raise UnsupportedError(
            f"strategy {config.strategy.name!r} runs one process on one device",
            plugin=config.strategy.plugin,
            why=f"devices={list(config.device_indices)}, nodes: {config.num_nodes}, processes of this job: {there}",
            hint=f"leave strategy out for {config.accelerator.default_distributed_strategy!r}, or use one process and devices=1",
        )
    if needed != there:
        nodes = f" --num-nodes {config.num_nodes}" if (config.num_nodes or 1) > 1 else ""
        devices = spell_devices(config.device_indices)
        program = " ".join(shlex.quote(word) for word in sys.argv) if sys.argv[0] not in ("", "-c") else "train.py"
        requested = f"devices={list(config.device_indices)} and num_nodes={config.num_nodes or 1}"
        raise UnsupportedError(
            f"{requested} require {needed} processes, but the job has {there}",
            why=f"according to the cluster environment {config.cluster.name!r}, no other processes were started",
            hint=f"accelkit launch --accelerator {config.accelerator.name} --devices {devices}{nodes} {program}",
        )
