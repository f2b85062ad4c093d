"""The device that this process uses. It is checked and set up at first use, together with the precision and the process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelkit.discovery import loading
from accelkit.errors import UnsupportedError
from accelkit.job_types import RuntimeState
from accelkit.plugin_calls import call
from accelkit.plugin_manager import wrong_hook_result
from accelkit.runtime import seeding
from accelkit.runtime.configuration import Configuration, check_started
from accelkit.runtime.device_checks import check_backward, check_device
from accelkit.runtime.gradients import Accumulation
from accelkit.runtime.optimizer_step import Stepping, ending_a_step
from accelkit.runtime.precision_forward import backward_of, backward_of_engine
from accelkit.runtime.rank_info import RankInfo
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.engine_strategy import EngineStrategy
from accelkit.specs.overrides import overridden
from accelkit.specs.precision import Precision
from accelkit.specs.process_group import ProcessGroupOptions

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh


class Session:
    """The device of this process, and the other objects that exist only while the device is in use, such as the precision.

    Reading any property except ``is_started`` starts the device if it is not in use yet. The methods ``state`` and ``description`` do not
    start the device.

    Args:
        configuration: The selected plugins and devices.
        rank_info: The ranks of this process and the number of processes.
        accumulation: The counter of micro-batches, which decides when optimizers step.
        process_group: The backend and the timeout of the process group.
        seed: The seed for the generators of the device. If None, the generators are not seeded.

    Attributes:
        configuration: The configuration. If the processes must find out which machine each of them runs on, starting the device replaces
            the configuration with a copy. The copy has the devices and the number of machines that the processes determined.
    """

    def __init__(
        self,
        configuration: Configuration,
        rank_info: RankInfo,
        accumulation: Accumulation,
        *,
        process_group: ProcessGroupOptions,
        seed: int | None = None,
    ) -> None:
        self.configuration = configuration
        self._rank_info = rank_info
        self._accumulation = accumulation
        self._process_group = process_group
        self._seed = seed
        self._device: torch.device | None = None
        self._mesh: DeviceMesh | None = None
        self._data_group: dist.ProcessGroup | None = None
        self._precision: Precision
        self._stepping: Stepping
        self._backward: Callable[..., None]

    @property
    def is_started(self) -> bool:
        """Whether the device is in use. Reading this property does not start the device."""
        return self._device is not None

    def start(self) -> torch.device:
        """Start the device, unless it has started, and return it.

        Starting the device initialises the driver. If the strategy is distributed, this process also joins the process group.
        """
        return self._device if self._device is not None else self._start()

    @property
    def device(self) -> torch.device:
        """The device of this process, as tensors report it: with an index, except for the CPU."""
        return self.start()

    @property
    def precision(self) -> Precision:
        """The precision, which determines the dtypes of storage and computation."""
        self.start()
        return self._precision

    @property
    def stepping(self) -> Stepping:
        """The implementation of ``step`` and ``zero_grad`` for optimizers and schedulers."""
        self.start()
        return self._stepping

    @property
    def backward(self) -> Callable[..., None]:
        """The function that runs the backward pass: ``torch.Tensor.backward``, unless the precision, strategy or accelerator changes it."""
        self.start()
        return self._backward

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the strategy; see ``Runtime.mesh``.

        Raises:
            UnsupportedError: If the strategy has no mesh.
        """
        self.start()
        if self._mesh is None:
            strategy = self.configuration.strategy
            raise UnsupportedError(
                f"strategy {strategy.name!r} has no mesh of devices",
                plugin=strategy.plugin,
                why="it divides the job in one dimension, or not at all",
                hint="use strategy='parallel', whose mesh has the dimensions replicate, shard, context and tensor",
            )
        return self._mesh

    @property
    def data_group(self) -> dist.ProcessGroup | None:
        """The data-parallel process group to which this process belongs. Each process of the group trains on different samples.

        None if every process of the job trains on different samples: the group would then contain the whole job.
        """
        self.start()
        return self._data_group

    def state(self) -> RuntimeState:
        """Return a description of the plugins, the device and the ranks. Does not start the device."""
        config, ranks = self.configuration, self._rank_info
        accelerator, strategy, cluster = config.accelerator, config.strategy, config.cluster
        local_rank = cluster.known("local_rank")
        is_known = len(config.device_indices) == 1 or ranks.num_processes > 1 or strategy.drives_all_devices
        device = None
        if is_known and local_rank is not None:
            device = call(strategy, "root_device", accelerator, config.device_indices, local_rank)
        return RuntimeState(
            accelerator=accelerator.name,
            plugin=accelerator.plugin,
            device=str(device or accelerator.device_type),
            devices=config.known_devices,
            precision=config.precision.name,
            strategy=strategy.name,
            cluster=cluster.name,
            num_processes=ranks.num_processes,
            process_index=ranks.process_index,
            local_process_index=local_rank,
            num_nodes=config.num_nodes,
            seed=self._seed,
        )

    def description(self) -> dict[str, Any]:
        """Return a description of the job for trackers.

        It consists of the settings of the job, the reason for the choice of the accelerator, and the versions of accelkit, torch and
        Python. Does not start the device.
        """
        from accelkit.tracking.description import describe  # needed only if there are trackers

        return describe(self.configuration.decision, self.state())

    def device_stats(self) -> dict[str, Any]:
        """Return the statistics of the device from the accelerator and from hook plugins; see ``Runtime.device_stats``."""
        manager, device = self.configuration.plugin_manager, self.device
        merged: dict[str, Any] = {}
        with manager.naming_failures("get_device_stats"):
            found = manager.hook.get_device_stats(device=device)
        for stats in reversed(found):  # pluggy's first result is that of the plugin that was registered last
            if not isinstance(stats, Mapping):
                owner = manager.owner_that_returns("get_device_stats", lambda result: not isinstance(result, Mapping), device=device)
                raise wrong_hook_result("get_device_stats", stats, "a dict of statistics by name", owner)
            merged |= {key: value for key, value in stats.items() if key not in merged}
        return merged

    def seed_device(self, seed: int) -> None:
        """Seed the generators of the device now if the device has started, or else when it starts."""
        self._seed = seed
        if self._device is not None:
            seeding.seed_device(seed, self.configuration.accelerator, self._device)

    def stop(self) -> None:
        """Tear down the plugins and leave the process group, if the device is in use. The next use starts the device again."""
        if self._device is None:
            return
        config, errors = self.configuration, []
        for teardown in (
            lambda: call(self._precision, "teardown"),
            lambda: call(config.strategy, "teardown"),
            self._tear_down_device,
            self._leave,
        ):
            try:
                teardown()
            except Exception as error:
                errors.append(error)
        self._device = self._mesh = self._data_group = None
        if errors:
            raise errors[0]

    def _tear_down_device(self) -> None:
        manager = self.configuration.plugin_manager
        with manager.naming_failures("teardown"):
            manager.hook.teardown()

    def _leave(self) -> None:
        if self.configuration.strategy.is_distributed:
            from accelkit.runtime import process_group

            process_group.leave(self)

    def _start(self) -> torch.device:
        check_started(self.configuration)
        if self.configuration.strategy.is_distributed:
            self._learn_placement()
        config = self.configuration
        accelerator, strategy, manager = config.accelerator, config.strategy, config.plugin_manager
        with loading.plugin_errors(strategy.plugin, f"setting up the strategy {strategy.name}"):
            strategy.setup(accelerator, config.device_indices)
        device: torch.device = call(strategy, "root_device", accelerator, config.device_indices, self._rank_info.local_process_index)
        check_device(accelerator)
        with loading.plugin_errors(accelerator.plugin, f"setting up {device}"):
            with manager.naming_failures("setup_device", handled=accelerator.plugin):
                manager.hook.setup_device(device=device)
            device = torch.empty(0, device=device).device  # the device as tensors report it: the CPU has no index
        check_backward(accelerator, device)
        named = config.precision
        with loading.plugin_errors(named.plugin, f"making the precision {named.name} for {device}"):
            with manager.naming_failures("make_precision", handled=named.plugin):
                precision: Precision = manager.hook.make_precision(name=named.name, accelerator=accelerator, device=device)
            if not isinstance(precision, Precision):
                owners = manager.other_owners("make_precision")
                raise wrong_hook_result("make_precision", precision, "a Precision", owners)
            precision.name, precision.plugin = precision.name or named.name, precision.plugin or named.plugin
            precision.setup(accelerator, device)
        if strategy.is_distributed:
            self._join(device)
        if self._seed is not None:
            seeding.seed_device(self._seed, accelerator, device)
        backward = backward_of_engine(strategy) if isinstance(strategy, EngineStrategy) else backward_of(precision)
        if (step_end := overridden(accelerator, Accelerator, "step_end")) is not None:
            backward = ending_a_step(backward, step_end)
        self._precision, self._backward = precision, backward
        self._stepping = Stepping(self._accumulation, precision, strategy, accelerator)
        self._device = device
        return device

    def _learn_placement(self) -> None:
        from accelkit.runtime import process_group

        if process_group.learn_placement(self.configuration.cluster, self._process_group.seconds):
            self._rank_info.read_again()
            self.configuration = self.configuration.placed()

    def _join(self, device: torch.device) -> None:
        from accelkit.runtime import process_group
        from accelkit.runtime.strategy_options import option_texts

        config, options = self.configuration, self._process_group
        backend = options.process_group_backend or call(config.strategy, "process_group_backend", config.accelerator)
        process_group.join(self, config.cluster, device, backend, options.seconds)
        chosen = {"accelerator": config.accelerator.name, "plugin": config.accelerator.plugin}
        chosen |= {"precision": config.precision.name, "strategy": config.strategy.name}
        process_group.agree(chosen, option_texts(config.strategy), device)
        self._mesh = call(config.strategy, "device_mesh", device)
        if (size := self._rank_info.data_parallel_size) < self._rank_info.num_processes:
            self._data_group = process_group.data_parallel_group(size, options.seconds)
        with config.plugin_manager.naming_failures("process_group_initialized"):
            config.plugin_manager.hook.process_group_initialized(state=self.state())
