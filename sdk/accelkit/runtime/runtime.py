"""``Runtime``: select a device by name, prepare what trains, run the loop."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from accelkit.discovery import loading
from accelkit.errors import PrepareError, UnsupportedError
from accelkit.runtime import data, seeding
from accelkit.runtime.accumulation import Accumulation
from accelkit.runtime.configuration import Configuration, Plugin, check_device, configure
from accelkit.runtime.gradients import Gradients
from accelkit.runtime.mixed import is_overridden
from accelkit.runtime.preparing import ParameterMoves, follow_parameters, place_module
from accelkit.runtime.processes import Processes
from accelkit.runtime.saved_state import SavedState
from accelkit.selection import Devices
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy
from accelkit.startup import collector_paused
from accelkit.types import Decision, RuntimeState

T = TypeVar("T")


class Runtime(Processes, Gradients, SavedState):
    """The object that a training script talks to.

    Making one selects and checks everything and initialises no driver; the first use of the device does. An argument that
    is None takes the environment variable (``ACCELKIT_ACCELERATOR``, ``_DEVICES``, ``_STRATEGY``, ``_PRECISION``,
    ``_CLUSTER``, ``_NUM_NODES``), then the default.

    Args:
        accelerator: A name, ``dist:name``, ``torch:<device_type>``, ``auto`` or an instance.
        devices: An int, ``-1`` or ``"auto"`` for all, a list of indices, or ``"0,2"``.
        strategy, precision, cluster: Names or instances.
        plugins: Any mix of accelerator, precision, cluster environment, strategy and hook plugins, as names or instances.
        hooks: Hook plugins, by name or as instances.
        cpu: Force the CPU and one process.
        seed: For the generators of Python, NumPy and torch now, and for the device's at its first use.
        device_placement: Whether ``prepare`` moves modules and batches to the device.
        split_batches: Whether a loader's batch is the whole job's (else each process's).
        rng_types: Which generators processes synchronise: ``torch``, the device's name, ``generator``.
        gradient_accumulation_steps: Backward passes a step, inside ``accumulate``.
        num_nodes: Machines of the job.

    Raises:
        AccelkitError: What cannot be used, whose fault it is, why, and what to do.
    """

    def __init__(
        self,
        accelerator: str | Accelerator | None = None,
        *,
        devices: Devices | None = None,
        strategy: str | Strategy | None = None,
        precision: str | Precision | None = None,
        cluster: str | ClusterEnvironment | None = None,
        plugins: Sequence[Plugin] = (),
        hooks: Iterable[str | object] = (),
        cpu: bool = False,
        seed: int | None = None,
        device_placement: bool = True,
        split_batches: bool = False,
        rng_types: Sequence[str] | None = None,
        gradient_accumulation_steps: int = 1,
        num_nodes: int | None = None,
    ) -> None:
        if gradient_accumulation_steps < 1:
            raise PrepareError(f"gradient_accumulation_steps={gradient_accumulation_steps}", why="at least 1 is expected")
        with collector_paused():
            self._configuration = configure(
                accelerator=accelerator,
                devices=devices,
                strategy=strategy,
                precision=precision,
                cluster=cluster,
                given_plugins=plugins,
                hooks=hooks,
                cpu=cpu,
                num_nodes=num_nodes,
            )
        self.accelerator = self._configuration.accelerator
        self.strategy = self._configuration.strategy
        self.cluster = self._configuration.cluster
        self.hooks = self._configuration.hooks
        self.device_placement, self.split_batches = device_placement, split_batches
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
        self._loaders: list[data.PreparedLoader] = []
        self._custom: list[Any] = []
        self.hooks.hook.configured(state=self.state)

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """Why this accelerator: every candidate, its verdict and the reason."""
        return self._configuration.decision

    @property
    def state(self) -> RuntimeState:
        """A frozen description, that prints well."""
        device_indices = self._configuration.device_indices
        return RuntimeState(
            accelerator=self.accelerator.name,
            plugin=self.accelerator.plugin,
            device=str(self.accelerator.device(device_indices[0])) if len(device_indices) == 1 else self.accelerator.device_type,
            devices=device_indices,
            precision=self._configuration.precision_name,
            strategy=self.strategy.name,
            cluster=self.cluster.name,
            num_processes=self.num_processes,
            process_index=self.process_index,
            local_process_index=self.local_process_index,
            num_nodes=self._configuration.num_nodes,
            seed=self._seed,
        )

    @property
    def device(self) -> torch.device:
        """This process's device. The first use checks that it computes, makes it current, and seeds its generators."""
        return self._device if self._device is not None else self._start()

    @property
    def precision(self) -> Precision:
        """How numbers are stored and computed. The first use starts the device."""
        if self._precision is None:
            self._start()
        assert self._precision is not None
        return self._precision

    def _start(self) -> torch.device:
        config: Configuration = self._configuration
        needed = config.strategy.num_processes(list(config.device_indices), config.num_nodes)
        if len(config.device_indices) * config.num_nodes != needed or needed != self.num_processes:
            raise UnsupportedError(
                f"devices={list(config.device_indices)} on {config.num_nodes} node(s) is more than one process can drive",
                why=f"strategy {config.strategy.name!r} runs {needed} process on one device; processes of this job: {self.num_processes}",
                hint="accelkit 0.1.0 trains on one device: devices=1, or devices=[i] for the i-th",
            )
        device = self.strategy.root_device(self.accelerator, list(config.device_indices), self.local_process_index)
        check_device(self.accelerator)
        with loading.blaming(self.accelerator.plugin, f"setting up {device}"):
            self.hooks.hook.setup_device(device=device)
            device = torch.empty(0, device=device).device  # as tensors on it name it: the CPU's has no index
        with loading.blaming(config.precision_plugin, f"making the precision {config.precision_name} for {device}"):
            precision: Precision = self.hooks.hook.make_precision(name=config.precision_name, accelerator=self.accelerator, device=device)
            precision.name = precision.name or config.precision_name
            precision.plugin = precision.plugin or config.precision_plugin
        self._precision, self._device = precision, device
        if self._seed is not None:
            seeding.seed_device(self._seed, self.accelerator, device)
        if self._accumulation.num_steps == 1 and not is_overridden(precision, "backward"):
            self.__dict__["backward"] = torch.Tensor.backward  # nothing of ours on the step path
        return device

    # -- preparing ----------------------------------------------------------------------------------------------------

    def prepare(self, *objects: Any) -> Any:
        """Place models, point optimizers at their parameters, let loaders deliver to the device.

        Modules are placed first, whatever the order of arguments. In ``32-true`` on one device the very same objects come back;
        another precision changes a module's class to a subclass of it.

        Args:
            objects: Modules, optimizers, schedulers and DataLoaders, in any order and number.

        Returns:
            The prepared objects in the order given; one object for one argument.

        Raises:
            PrepareError: For anything else, or an optimizer of parameters that are in no prepared module.
        """
        for thing in objects:
            if not isinstance(thing, torch.nn.Module | torch.optim.Optimizer | LRScheduler | DataLoader | data.PreparedLoader):
                raise PrepareError(
                    f"prepare cannot prepare {type(thing).__module__}.{type(thing).__qualname__}",
                    why="it prepares torch.nn.Module, Optimizer, LRScheduler and DataLoader objects",
                    hint="pass it to register_for_checkpointing if it has a state_dict, to to_device if it is a batch",
                )
        prepared = {id(thing): self._prepare_module(thing) for thing in objects if isinstance(thing, torch.nn.Module)}
        for thing in objects:
            if isinstance(thing, torch.optim.Optimizer):
                self._prepare_optimizer(thing)
            elif isinstance(thing, LRScheduler):
                self._prepare_scheduler(thing)
            elif isinstance(thing, DataLoader):
                prepared[id(thing)] = self._prepare_loader(thing)
        result = tuple(prepared.get(id(thing), thing) for thing in objects)
        return result[0] if len(result) == 1 else result

    def _prepare_module(self, module: torch.nn.Module) -> torch.nn.Module:
        device = self.device if self.device_placement else None
        placed = place_module(module, device, self.precision, self.strategy, self._moves)
        _add_once(self._modules, placed)
        return placed

    def _prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        follow_parameters(optimizer, self._moves)
        _add_once(self._optimizers, optimizer)
        if self._accumulation.num_steps > 1:
            self._accumulation.govern(optimizer)

    def _prepare_scheduler(self, scheduler: LRScheduler) -> None:
        _add_once(self._schedulers, scheduler)
        if self._accumulation.num_steps > 1:
            self._accumulation.govern(scheduler)

    def _prepare_loader(self, loader: DataLoader[Any]) -> Any:
        if self.split_batches:
            data.check_split(loader, self.num_processes)
        has_to_move = self.device_placement and not torch.empty(0, device=self.device).is_cpu
        if not has_to_move and self._accumulation.num_steps == 1:
            return loader
        has_streams = has_to_move and self.accelerator.capabilities(self.device).can("streams")
        prepared = data.PreparedLoader(loader, self.device if has_to_move else None, has_streams=has_streams)
        self._loaders.append(prepared)
        return prepared

    def unwrap_model(self, model: torch.nn.Module, keep_torch_compile: bool = True) -> torch.nn.Module:
        """The model without what a strategy wrapped around it: on one device, itself. Without ``torch.compile``'s wrapper if asked."""
        inner = getattr(model, "_orig_mod", None)
        return inner if isinstance(inner, torch.nn.Module) and not keep_torch_compile else model

    def to_device(self, batch: T, non_blocking: bool = False) -> T:
        """``batch`` (any nesting of dicts, lists, tuples, dataclasses, objects with ``.to``) on this process's device."""
        return data.move(batch, self.device, non_blocking)

    def skip_first_batches(self, loader: Any, num_batches: int = 0) -> Any:
        """A loader that begins ``num_batches`` later: to resume in the middle of an epoch."""
        return data.skip_batches(loader, num_batches)

    def free_memory(self, *objects: Any) -> tuple[None, ...]:
        """Forget everything that was prepared, collect garbage, give cached memory back. Returns a None for each object, to assign."""
        for kept in (self._modules, self._optimizers, self._schedulers, self._loaders, self._custom):
            kept.clear()
        gc.collect()
        if self._device is not None:
            self.accelerator.empty_cache()
        return (None,) * len(objects)

    def device_stats(self) -> dict[str, Any]:
        """Statistics of this process's device, with the unit in each key; the accelerator's and those of hook plugins."""
        merged: dict[str, Any] = {}
        for stats in reversed(self.hooks.hook.get_device_stats(device=self.device)):  # the last registered answers first
            merged |= {key: value for key, value in stats.items() if key not in merged}
        return merged

    def teardown(self) -> None:
        """Give back what the device was given. The Runtime starts anew if it is used again."""
        if self._device is not None:
            self.hooks.hook.teardown()
            self._device = self._precision = None
            self.__dict__.pop("backward", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.teardown()

    def __repr__(self) -> str:
        return f"<Runtime {self.state.device} {self.state.precision} {self.state.strategy}>"


def _add_once(kept: list[Any], thing: Any) -> None:
    if not any(other is thing for other in kept):
        kept.append(thing)
