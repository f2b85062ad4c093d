"""The ``Runtime`` class: select a device by name, prepare models, optimizers and loaders, and run the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch.optim.lr_scheduler import LRScheduler

from accelkit.discovery import loading
from accelkit.errors import HookError, PrepareError
from accelkit.gc_pause import collector_paused
from accelkit.plugin_calls import call
from accelkit.runtime import seeding
from accelkit.runtime.accumulation import Accumulation
from accelkit.runtime.checkpointing import SavedState
from accelkit.runtime.configuration import Configuration, check_started, configure
from accelkit.runtime.data import loaders
from accelkit.runtime.device_checks import check_backward, check_device
from accelkit.runtime.gradients import Gradients
from accelkit.runtime.optimizer_step import Stepping, ending_a_step
from accelkit.runtime.placement import ParameterMoves
from accelkit.runtime.precision_forward import backward_of, backward_of_engine
from accelkit.runtime.preemption import Notice, Preemption, check_requeue
from accelkit.runtime.preparation import Prepared
from accelkit.runtime.processes import Processes
from accelkit.selection import Devices
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.engine_strategy import EngineStrategy
from accelkit.specs.overrides import overridden
from accelkit.specs.precision import Precision
from accelkit.specs.process_group import ProcessGroupOptions
from accelkit.specs.strategy import Strategy
from accelkit.types import Decision, RuntimeState

T = TypeVar("T")
R = TypeVar("R")


class Runtime(Prepared, Processes, Gradients, SavedState, Preemption):
    """The main object of a training script.

    Creating a Runtime selects and checks all plugins. It does not initialise a driver; the first use of the device does. An
    argument that is None is read from its environment variable (``ACCELKIT_ACCELERATOR``, ``_DEVICES``, ``_STRATEGY``,
    ``_PRECISION``, ``_CLUSTER``, ``_NUM_NODES``); if that is not set, the default is used.

    Args:
        accelerator: The accelerator: a name, ``dist:name``, ``torch:<device_type>``, ``auto`` or an instance.
        devices: The devices to use: a number of devices, ``-1`` or ``"auto"`` for all, a list of indices, or ``"0,2"``.
        strategy, precision, cluster: The strategy, the precision and the cluster environment, as names or instances.
        hooks: Hook plugins, as names or instances.
        cpu: Whether to use the CPU regardless of the environment.
        seed: The seed for the generators of Python, NumPy and torch (seeded now) and of the device (seeded at its first use).
        device_placement: Whether ``prepare`` moves modules and batches to the device.
        split_batches: Whether a loader's batch is the batch of the whole job (else of each process).
        even_batches: Whether the last batches are filled with samples from the beginning, so that all processes have equally many.
        dispatch_batches: Whether the main process reads the data for all processes. If None, it does if the dataset is iterable.
        rng_types: The generators that are synchronised across processes: ``torch``, the device's name, ``generator``.
        gradient_accumulation_steps: Number of backward passes per optimizer step, inside ``accumulate``.
        num_nodes: Number of machines in the job.
        process_group: Backend and timeout of the job's process group.
        requeue: Whether ``save_and_stop_if_preempted`` puts the job back into the scheduler's queue.

    Raises:
        AccelkitError: If something cannot be used. The error says which plugin is responsible, why, and what to do.
    """

    def __init__(
        self,
        accelerator: str | Accelerator | None = None,
        *,
        devices: Devices | None = None,
        strategy: str | Strategy | None = None,
        precision: str | Precision | None = None,
        cluster: str | ClusterEnvironment | None = None,
        hooks: Iterable[str | object] = (),
        cpu: bool = False,
        seed: int | None = None,
        device_placement: bool = True,
        split_batches: bool = False,
        even_batches: bool = True,
        dispatch_batches: bool | None = None,
        rng_types: Sequence[str] | None = None,
        gradient_accumulation_steps: int = 1,
        num_nodes: int | None = None,
        process_group: ProcessGroupOptions | None = None,
        requeue: bool = False,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if gradient_accumulation_steps < 1:
            raise PrepareError(f"gradient_accumulation_steps={gradient_accumulation_steps}", why="at least 1 is expected")
        with collector_paused():
            self._configuration = configure(
                accelerator=accelerator,
                devices=devices,
                strategy=strategy,
                precision=precision,
                cluster=cluster,
                hooks=hooks,
                cpu=cpu,
                num_nodes=num_nodes,
            )
        self.accelerator = self._configuration.accelerator
        self.strategy = self._configuration.strategy
        self.cluster = self._configuration.cluster
        self.plugin_manager = self._configuration.plugin_manager
        self.device_placement = device_placement
        self.split_batches, self.even_batches, self.dispatch_batches = split_batches, even_batches, dispatch_batches
        self._process_group = process_group or ProcessGroupOptions()
        self._timeout = self._process_group.seconds
        self._notice, self._wants_requeue = Notice(), requeue
        if requeue:
            check_requeue(self.plugin_manager, self.cluster)
        self.rng_types = seeding.check_rng_types(rng_types, self.accelerator.device_type)
        self._seed = seed
        if seed is not None:
            seeding.seed_host(seed)
        self._accumulation = Accumulation(gradient_accumulation_steps)
        self._device: torch.device | None = None
        self._precision: Precision | None = None
        self._moves = ParameterMoves()
        self._modules: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._schedulers: list[LRScheduler] = []
        self._loaders: list[loaders.PreparedLoader] = []
        self._custom: list[Any] = []
        with self.plugin_manager.naming_failures("configured"):
            self.plugin_manager.hook.configured(state=self.state)

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """The reasons for the choice of this accelerator: every candidate with its verdict and the reason."""
        return self._configuration.decision

    @property
    def state(self) -> RuntimeState:
        """A frozen description of this Runtime, suitable for printing."""
        config = self._configuration
        local_rank = self.cluster.known("local_rank")
        is_known = len(config.device_indices) == 1 or self.num_processes > 1 or self.strategy.drives_all_devices
        device = None
        if is_known and local_rank is not None:
            device = call(self.strategy, "root_device", self.accelerator, config.device_indices, local_rank)
        return RuntimeState(
            accelerator=self.accelerator.name,
            plugin=self.accelerator.plugin,
            device=str(device or self.accelerator.device_type),
            devices=config.known_devices,
            precision=config.precision.name,
            strategy=self.strategy.name,
            cluster=self.cluster.name,
            num_processes=self.num_processes,
            process_index=self.process_index,
            local_process_index=local_rank,
            num_nodes=config.num_nodes,
            seed=self._seed,
        )

    @property
    def device(self) -> torch.device:
        """The device of this process. The first use checks that it computes, makes it current, and seeds its generators."""
        return self._device if self._device is not None else self._start()

    @property
    def precision(self) -> Precision:
        """The precision in which numbers are stored and computed. The first use starts the device."""
        if self._precision is None:
            self._start()
        assert self._precision is not None
        return self._precision

    def _start(self) -> torch.device:
        check_started(self._configuration)
        if self.strategy.is_distributed:
            self._learn_placement()
        config: Configuration = self._configuration
        with loading.plugin_errors(self.strategy.plugin, f"setting up the strategy {self.strategy.name}"):
            self.strategy.setup(self.accelerator, config.device_indices)
        device: torch.device = call(self.strategy, "root_device", self.accelerator, config.device_indices, self.local_process_index)
        check_device(self.accelerator)
        with loading.plugin_errors(self.accelerator.plugin, f"setting up {device}"):
            self.plugin_manager.hook.setup_device(device=device)
            device = torch.empty(0, device=device).device  # the device as tensors report it: the CPU has no index
        check_backward(self.accelerator, device)
        named = config.precision
        with loading.plugin_errors(named.plugin, f"making the precision {named.name} for {device}"):
            precision: Precision = self.plugin_manager.hook.make_precision(name=named.name, accelerator=self.accelerator, device=device)
            precision.name, precision.plugin = precision.name or named.name, precision.plugin or named.plugin
            precision.setup(self.accelerator, device)
        if self.strategy.is_distributed:
            self._join(device)
        self._precision, self._device = precision, device
        if self._seed is not None:
            seeding.seed_device(self._seed, self.accelerator, device)
        self._stepping = Stepping(self._accumulation, precision, self.strategy, self.accelerator)
        backward = backward_of_engine(self.strategy) if isinstance(self.strategy, EngineStrategy) else backward_of(precision)
        if (step_end := overridden(self.accelerator, Accelerator, "step_end")) is not None:
            backward = ending_a_step(backward, step_end)
        self.__dict__["_backward"] = backward
        if self._accumulation.num_steps == 1:
            self.__dict__["backward"] = backward
        return device

    def _learn_placement(self) -> None:
        from accelkit.runtime import process_group

        if process_group.learn_placement(self.cluster, self._timeout):
            self.__dict__.pop("local_process_index", None)
            self._configuration = self._configuration.placed()

    def _join(self, device: torch.device) -> None:
        from accelkit.runtime import process_group

        config = self._configuration
        backend = self._process_group.process_group_backend or call(self.strategy, "process_group_backend", self.accelerator)
        process_group.join(self, self.cluster, device, backend, self._timeout)
        chosen = {"accelerator": self.accelerator.name, "plugin": self.accelerator.plugin}
        process_group.agree(chosen | {"precision": config.precision.name, "strategy": self.strategy.name}, device)
        with self.plugin_manager.naming_failures("launched"):
            self.plugin_manager.hook.launched(state=self.state)

    def launch(self, function: Callable[..., R], *arguments: Any) -> R:
        """Run ``function(runtime, *arguments)`` on all devices of this Runtime, from a script or a notebook, and wait for it to end.

        With several devices, the function runs in new processes on this machine, one per device, each with a Runtime made from the same
        arguments. Afterwards, the modules and optimizers among the arguments have the trained weights and state. With one device, or in a
        job that a launcher started, the function runs in this process, with this Runtime.

        Returns:
            The return value of the function on rank 0. Its tensors are on the CPU if other processes ran the function.

        Raises:
            RankFailedError: If a process failed. The error has the traceback of the process that failed first.
            UnsupportedError: If the function cannot be sent to another process.
        """
        if self._configuration.num_processes == self.num_processes:
            return function(self, *arguments)
        if (self._configuration.num_nodes or 1) > 1:
            check_started(self._configuration)
        from accelkit.launching import spawn_launcher

        rest = {name: value for name, value in self._arguments.items() if name not in ("accelerator", "devices")}
        chosen: Any = self._arguments["accelerator"]
        result: R = spawn_launcher.launch(function, *arguments, accelerator=chosen, devices=self._arguments["devices"], runtime=rest)
        return result

    def to_device(self, batch: T, non_blocking: bool = False) -> T:
        """Move ``batch`` (any nesting of dicts, lists, tuples, dataclasses, objects with ``.to``) to the device of this process."""
        return loaders.laid_out(loaders.move(batch, self.device, non_blocking), self.strategy)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return a loader that starts ``num_batches`` later and yields the rest of the epoch, to resume in the middle of it."""
        return loaders.skip_batches(dataloader, num_batches)

    def device_stats(self) -> dict[str, Any]:
        """Return the statistics of this process's device from the accelerator and from hook plugins. Each key includes the unit."""
        merged: dict[str, Any] = {}
        with self.plugin_manager.naming_failures("get_device_stats"):
            found = self.plugin_manager.hook.get_device_stats(device=self.device)
        for stats in reversed(found):  # the plugin that was registered last comes first
            if not isinstance(stats, Mapping):
                why = f"it returned {stats!r:.80}; a dict of statistics by name is expected"
                owner = self.plugin_manager.owner_that_returns(
                    "get_device_stats", lambda one: not isinstance(one, Mapping), device=self.device
                )
                raise HookError("the hook get_device_stats failed", plugin=owner, why=why)
            merged |= {key: value for key, value in stats.items() if key not in merged}
        return merged

    def teardown(self) -> None:
        """Wait for saves, leave the process group and tear down the device. The device starts again if the Runtime is used again."""
        self.wait_for_saves()
        self._notice.forget()
        if self._device is not None:
            call(self.precision, "teardown")
            call(self.strategy, "teardown")
            with self.plugin_manager.naming_failures("teardown"):
                self.plugin_manager.hook.teardown()
            if self.strategy.is_distributed:
                from accelkit.runtime import process_group

                process_group.leave(self)
            self._device = self._precision = None
            self.__dict__.pop("backward", None)
            self.__dict__.pop("_backward", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.teardown()

    def __repr__(self) -> str:
        return f"<Runtime {self.state.device} {self.state.precision} {self.state.strategy}>"
