"""Arguments for Trainer or Fabric: Lightning objects created from accelkit's plugins, which are given by name or as instances."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from accelkit.bridges.lightning import precisions, strategies
from accelkit.bridges.lightning.accelerators import load, make_accelerator
from accelkit.bridges.lightning.compat import FABRICS, TRAINERS, Framework, find_framework
from accelkit.bridges.lightning.deepspeed import check_deepspeed_precision, is_adapted
from accelkit.bridges.lightning.environments import make_environment
from accelkit.bridges.lightning.plugin_precision import make_plugin_precision
from accelkit.cluster.detection import check_environment, select_cluster
from accelkit.errors import ContradictionError, UnsupportedError
from accelkit.runtime.configuration import select_devices, select_precision, strategy_or_default
from accelkit.runtime.process_group import learn_placement
from accelkit.selection import Devices, select
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.cluster import PLACEMENT, ClusterEnvironment
from accelkit.specs.precision import Precision
from accelkit.specs.process_group import ProcessGroupOptions

AUTO, SINGLE, ALL = "auto", "single_device", -1


def trainer_kwargs(
    accelerator: str | Accelerator | None = None,
    *,
    devices: Devices = AUTO,
    num_nodes: int | None = None,
    strategy: Any = AUTO,
    precision: str | int | Precision | None = None,
    cluster: str | ClusterEnvironment | None = None,
    plugins: Any = (),
    package: str | None = None,
) -> dict[str, Any]:
    """Return arguments for a ``Trainer``, as in ``Trainer(**trainer_kwargs("acme", devices=2), max_epochs=3)``.

    Does not initialise a driver. If a launcher started several processes, every process must call this function, because they may have to
    tell each other which machine they are on.

    Args:
        accelerator: The accelerator, as for ``accelkit.select``: a name or an instance. None uses ACCELKIT_ACCELERATOR, or else ``auto``.
        devices: The devices, as for ``parse_devices``. ``auto`` uses ACCELKIT_DEVICES, or else one device for each process that a
            launcher started. If ACCELKIT_DEVICES is not set and there is no launcher, ``auto`` uses all devices, or one device if
            ``strategy`` is ``single_device``.
        num_nodes: The number of machines. None takes it from the cluster environment.
        strategy: The strategy, a name or an instance. The names are ``auto``, ``single_device``, ``ddp``,
            ``ddp_find_unused_parameters_true``, ``ddp_find_unused_parameters_false``, ``fsdp`` (accelkit's strategy, which uses torch's
            FSDP2) and Lightning's names for DeepSpeed, such as ``deepspeed_stage_2``. An instance may be of your own strategy class, or of
            Lightning's ``ModelParallelStrategy`` or ``DeepSpeedStrategy``.
        precision: The precision, as for ``accelkit.Runtime``: a name or an instance.
        cluster: The cluster environment, as for ``accelkit.Runtime``: a name or an instance. None detects it.
        plugins: Further Lightning plugins. A precision or cluster environment among them replaces that of accelkit. If there is a precision
            among them, ``precision`` must be None.
        package: The package, ``lightning`` or ``pytorch_lightning``. None uses the one that is already imported, or else
            the first one that is installed.

    Returns:
        A dict with ``accelerator``, ``devices``, ``num_nodes``, ``strategy`` and ``plugins``.

    Raises:
        AccelkitError: If the accelerator, devices, precision, strategy or cluster environment cannot be used. The error says why and what
            to do.
    """
    framework = find_framework(TRAINERS, package)
    return make_arguments(
        framework,
        accelerator,
        devices=devices,
        num_nodes=num_nodes,
        strategy=strategy,
        precision=precision,
        cluster=cluster,
        plugins=plugins,
    )


def fabric_kwargs(
    accelerator: str | Accelerator | None = None,
    *,
    devices: Devices = AUTO,
    num_nodes: int | None = None,
    strategy: Any = AUTO,
    precision: str | int | Precision | None = None,
    cluster: str | ClusterEnvironment | None = None,
    plugins: Any = (),
    package: str | None = None,
) -> dict[str, Any]:
    """Return arguments for a ``Fabric``. Like ``trainer_kwargs``, but ``package`` is ``lightning`` or ``lightning_fabric``."""
    framework = find_framework(FABRICS, package)
    return make_arguments(
        framework,
        accelerator,
        devices=devices,
        num_nodes=num_nodes,
        strategy=strategy,
        precision=precision,
        cluster=cluster,
        plugins=plugins,
    )


def make_arguments(
    framework: Framework,
    accelerator: str | Accelerator | None,
    *,
    devices: Devices,
    num_nodes: int | None,
    strategy: Any,
    precision: Any,
    cluster: str | ClusterEnvironment | None,
    plugins: Any,
) -> dict[str, Any]:
    """Return arguments for the Trainer or Fabric of ``framework``. The parameters are described in ``trainer_kwargs``.

    If the environment variables do not say on which machine each process runs, the processes exchange this information here. All processes
    of the job must therefore call this function.
    """
    selection = select(accelerator, devices=None if devices == AUTO else devices)
    plugin = selection.accelerator
    load(plugin)
    environment = select_cluster(cluster).environment
    check_environment(environment)
    if any(environment.known(name) is None for name in PLACEMENT):  # Lightning needs all of these before the processes join
        learn_placement(environment, ProcessGroupOptions().seconds)
    started = environment.local_world_size if environment.creates_processes_externally else None
    wanted = selection.devices
    if wanted is None and started is None:
        wanted = 1 if strategy == SINGLE else ALL
    indices = select_devices(plugin, wanted, environment)
    own = started if wanted is None and started is not None and len(indices) < started else None
    nodes = num_nodes if num_nodes is not None else environment.num_nodes
    processes = own or len(indices)
    if started is not None:
        environment.validate_settings(processes, nodes)
    device = plugin.device(indices[0])
    made = _strategy(framework, strategy, plugin, device, processes * nodes)
    given = [] if plugins is None else [*plugins] if isinstance(plugins, Iterable) else [plugins]
    return {
        "accelerator": make_accelerator(framework, plugin, own),
        "devices": processes if own or indices == list(range(processes)) else indices,
        "num_nodes": nodes,
        "strategy": made,
        "plugins": [
            *given,
            *_precision(framework, precision, given, plugin, strategy=made, device=device),
            *([] if _has(given, framework.environments.ClusterEnvironment) else [make_environment(framework, environment)]),
        ],
    }


def _strategy(framework: Framework, strategy: Any, plugin: Accelerator, device: torch.device, num_processes: int) -> Any:
    if not isinstance(strategy, str):
        return strategies.check_given(framework, strategy, plugin, device)
    name = strategy.lower()
    if name == AUTO:
        default = plugin.default_strategy if num_processes == 1 else plugin.default_distributed_strategy
        name = str(strategy_or_default(None, default))
    if name == SINGLE and num_processes > 1:
        raise UnsupportedError(
            f"strategy {name!r} supports only one process with one device",
            plugin=plugin.plugin,
            why=f"{num_processes} devices of {plugin.name} were requested, or one process was started for each",
            hint=f"use strategy='auto' for {plugin.default_distributed_strategy!r}, or devices=1",
        )
    return strategies.make_strategy(framework, name, plugin, device, num_processes)


def _precision(
    framework: Framework, precision: Any, given: list[Any], plugin: Accelerator, *, strategy: Any, device: torch.device
) -> list[Any]:
    given_precisions = [one for one in given if isinstance(one, framework.part("plugins.precision").Precision)]
    if given_precisions and precision is not None:
        raise ContradictionError(
            f"both precision={precision!r} and {type(given_precisions[0]).__name__} are given",
            plugin=plugin.plugin,
            why="each of them determines the precision",
            hint="remove one of them",
        )
    for one in given_precisions:
        precisions.check_given(one, plugin)
        if is_adapted(strategy) and not isinstance(one, framework.part("plugins.precision").DeepSpeedPrecision):
            check_deepspeed_precision(type(one).__name__, plugin, is_lightnings=False)
    if given_precisions:
        return []
    chosen = select_precision(precision, plugin)
    is_lightnings = precisions.is_lightnings(chosen, plugin, device)
    strategies.check_precision(framework, strategy, chosen.name, plugin, is_lightnings=is_lightnings)
    if not is_lightnings:
        return [make_plugin_precision(framework, chosen, plugin, strategy)]
    return [precisions.make_precision(framework, chosen, plugin, device, for_deepspeed=is_adapted(strategy))]


def _has(given: list[Any], cls: type) -> bool:
    return any(isinstance(one, cls) for one in given)
