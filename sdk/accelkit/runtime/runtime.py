"""The ``Runtime`` class: select a device by name, prepare models, optimizers and loaders, and run the training loop.

This file is the whole public API of a Runtime, from top to bottom. Most methods pass their arguments to one of the Runtime's parts:
``RankInfo``, ``Session`` (the device in use), ``Preparation``, ``Gradients``, ``Collectives``, ``Checkpointing``, ``Trackers``,
``ProgressBars``, ``Preemption`` and ``StopTrigger``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, ParamSpec, Self, TypeVar, overload

import torch

from accelkit import rank_logger
from accelkit.errors import UnsupportedError
from accelkit.gc_pause import collector_paused
from accelkit.job_types import Decision, RuntimeState
from accelkit.plugin_calls import call
from accelkit.runtime import batch_size, seeding
from accelkit.runtime.argument_checks import check_function, path_of
from accelkit.runtime.checkpointing import Checkpointing
from accelkit.runtime.collectives import verification
from accelkit.runtime.collectives.collectives import Collectives
from accelkit.runtime.configuration import check_started, configure
from accelkit.runtime.data import device_transfer, loaders
from accelkit.runtime.data.input_shares import share_of
from accelkit.runtime.device_memory import DeviceMemory
from accelkit.runtime.gradients import Accumulation, Gradients
from accelkit.runtime.preemption import Preemption, check_requeue
from accelkit.runtime.preparation import Preparation, PreparationOptions, PreparedObjects, unwrap_model
from accelkit.runtime.progress import ProgressBar, ProgressBars
from accelkit.runtime.rank_info import RankInfo, run_only_if
from accelkit.runtime.session import Session
from accelkit.runtime.stop_trigger import StopTrigger
from accelkit.selection import Devices
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.precision import Precision
from accelkit.specs.process_group import ProcessGroupOptions
from accelkit.specs.strategy import Strategy
from accelkit.tracking.trackers import Trackers

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from accelkit.runtime.collectives.reduction import Operation
    from accelkit.runtime.comparison.report import Comparison
    from accelkit.runtime.profiling.profiler import Profiler

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Runtime:
    """The main object of a training script.

    Creating a Runtime selects and checks all plugins. The driver is initialised only when the device is first used. An argument that is
    None is read from its environment variable (``ACCELKIT_ACCELERATOR``, ``_DEVICES``, ``_STRATEGY``, ``_PRECISION``, ``_CLUSTER``,
    ``_NUM_NODES``); if the variable is not set, the default is used.

    **Collectives** take any nesting of dicts, lists, tuples, named tuples and dataclasses of tensors. The tensors may have any dtype, may
    be empty or not contiguous, and may be on the device or on the host. Results are on the device of the argument and are detached from the
    graph, unless a method says otherwise. ``group`` is the process group of torch.distributed whose members make the call; None means all
    processes of the job. Before any data are sent, the processes compare their calls and the structure of their data (unless
    ``ACCELKIT_VERIFY_COLLECTIVES`` restricts this). If processes call different methods, or give data that the method cannot combine
    because structure, dtype or shape differ, the method raises CollectiveError on each process immediately. It also raises CollectiveError
    if a process does not make the call before the group's timeout. The error then names the missing process, its host and its last call.

    Args:
        accelerator: The accelerator: a name, ``dist:name``, ``torch:<device_type>``, ``auto`` or an instance.
        devices: A number of devices, ``-1`` or ``"auto"`` for all devices, or indices as a list or as a string such as ``"0,2"``.
        strategy, precision, cluster: Names or instances. For the strategy, ``auto`` means the accelerator's default.
        hooks: Hook plugins, as names or instances.
        cpu: Whether to use the CPU regardless of the environment variables.
        seed: The seed for the generators of Python, NumPy and torch (seeded now) and of the device (seeded at its first use).
        device_placement: Whether ``prepare`` moves modules and batches to the device.
        split_batches: Whether the batch size of a loader is the total for all processes. Otherwise, it is the batch size of each process.
        even_batches: Whether to fill the last batches of an epoch with samples from its beginning, so that all processes get the same
            number of batches.
        dispatch_batches: Whether the main process reads the data for all processes. None means True for iterable datasets, else False.
        rng_types: Names of generators to synchronise across processes before each epoch: ``generator`` (the generators that determine the
            order of a loader), ``torch`` (torch's host generator), and the device type (the device's generator). None means ``generator``.
        gradient_accumulation_steps: Number of micro-batches per optimizer step if ``accumulate`` is used.
        num_nodes: Number of machines in the job.
        process_group: Backend and timeout of the job's process group.
        requeue: Whether ``save_and_stop_if_preempted`` puts the job back into the scheduler's queue.
        trackers: The trackers with which ``log`` records values: names (``csv``, ``jsonl``, ``tensorboard``, ``mlflow``, ``wandb``),
            instances of ``accelkit.tracking.Tracker``, functions ``f(values, step)``, Accelerate trackers and Lightning loggers. If a
            tracker fails, the run goes on: the Runtime warns once and no longer calls the tracker.

    Attributes:
        accelerator: The selected accelerator, an instance of its plugin's class.
        strategy: The selected strategy; ``rt.strategy.name`` is its name.
        cluster: The cluster environment, which provides the rank of this process and the size of the job.
        plugin_manager: pluggy's manager of the selected plugins and the hook plugins. ``rt.plugin_manager.hook.<name>(...)`` calls a hook.

    Raises:
        AccelkitError: If the Runtime cannot be created as requested. The error says why, which plugin is responsible, and what to do.
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
        trackers: Iterable[Any] = (),
        **unknown: Never,
    ) -> None:
        if unknown:
            from accelkit.peer_names import unknown_arguments  # imported only for the error, because it takes time

            raise unknown_arguments(unknown, Runtime)
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "unknown")}
        self._accumulation = Accumulation(gradient_accumulation_steps)
        with collector_paused():
            configuration = configure(
                accelerator=accelerator,
                devices=devices,
                strategy=strategy,
                precision=precision,
                cluster=cluster,
                hooks=hooks,
                cpu=cpu,
                num_nodes=num_nodes,
            )
        self.accelerator = configuration.accelerator
        self.strategy = configuration.strategy
        self.cluster = configuration.cluster
        self.plugin_manager = configuration.plugin_manager
        if requeue:
            check_requeue(self.plugin_manager, self.cluster)
        self._options = PreparationOptions(
            device_placement=device_placement,
            split_batches=split_batches,
            even_batches=even_batches,
            dispatch_batches=dispatch_batches,
            rng_types=seeding.check_rng_types(rng_types, self.accelerator.device_type),
        )
        if seed is not None:
            seeding.seed_host(seed)
        group = process_group or ProcessGroupOptions()
        self._rank_info = ranks = RankInfo(self.cluster, self.strategy)
        self._session = session = Session(configuration, self._rank_info, self._accumulation, process_group=group, seed=seed)
        self._objects = PreparedObjects()
        self._preparation = Preparation(self._session, self._rank_info, self._accumulation, self._options, self._objects)
        self._gradients = Gradients(self._session, self._accumulation, self._objects)
        self._collectives = Collectives(ranks.num_processes, session.start, verification.job_mode(), lambda: session.data_group)
        rank_logger.set_job(self._rank_info, self._collectives)
        self._progress = ProgressBars(self._rank_info)
        self._trackers = track = Trackers(trackers, self._rank_info, describe=self._session.description)
        self._checkpointing = Checkpointing(self._session, self._rank_info, self._collectives, self._objects, track, timeout=group.seconds)
        self._preemption = Preemption(self.cluster, self._rank_info, self._collectives, self.plugin_manager, track, has_to_requeue=requeue)
        self._stop_trigger = StopTrigger(self._collectives)
        with self.plugin_manager.naming_failures("runtime_created"):
            self.plugin_manager.hook.runtime_created(state=self.state)

    # -- what was selected --------------------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """The reasons for the choice of the accelerator: every candidate, with its status and the reason for the status."""
        return self._session.configuration.decision

    @property
    def state(self) -> RuntimeState:
        """A frozen description of this Runtime, suitable for printing. Reading it does not start the device."""
        return self._session.state()

    @property
    def device(self) -> torch.device:
        """The device of this process. The first use starts the device: it is checked and made current, and its generators are seeded."""
        return self._session.device

    @property
    def precision(self) -> Precision:
        """The precision, which determines the dtypes of storage and computation. The first use starts the device (see ``device``)."""
        return self._session.precision

    @property
    def device_placement(self) -> bool:
        """The constructor's argument ``device_placement``: whether ``prepare`` moves modules and batches to the device."""
        return self._options.device_placement

    @property
    def split_batches(self) -> bool:
        """The constructor's argument ``split_batches``: whether the batch size of a loader is the total for all processes.

        Otherwise, it is the batch size of each process.
        """
        return self._options.split_batches

    @property
    def even_batches(self) -> bool:
        """The constructor's argument ``even_batches``: whether samples from the beginning of the epoch fill the last batches."""
        return self._options.even_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """The constructor's argument ``dispatch_batches``: whether the main process reads the data for all processes.

        None means True for iterable datasets and False for other datasets.
        """
        return self._options.dispatch_batches

    @property
    def rng_types(self) -> tuple[str, ...]:
        """The names of the generators that are synchronised across processes before each epoch, as in the constructor's ``rng_types``."""
        return self._options.rng_types

    # -- the place of this process in the job --------------------------------------------------------------------------

    @property
    def num_processes(self) -> int:
        """Number of processes in the job."""
        return self._rank_info.num_processes

    @property
    def process_index(self) -> int:
        """This process's rank in the job."""
        return self._rank_info.process_index

    @property
    def local_process_index(self) -> int:
        """This process's rank on its machine."""
        return self._rank_info.local_process_index

    @property
    def data_parallel_size(self) -> int:
        """The number of shares into which samples are divided: the number of processes, or fewer if some of them train on the same samples.

        With the ``parallel`` strategy, this is ``replicate`` times ``shard``.
        """
        return self._rank_info.data_parallel_size

    @property
    def data_parallel_index(self) -> int:
        """Index of this process's share of the samples. Processes that train on the same samples have the same index."""
        return self._rank_info.data_parallel_index

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of all devices. With strategy ``parallel``, its dimensions are ``replicate``, ``shard``, ``context`` and ``tensor``.

        The first use starts the device. ``rt.mesh["tensor"].get_group()`` is the process group of a dimension, and
        ``rt.mesh.get_local_rank("tensor")`` is the index of this process in that dimension.

        Raises:
            UnsupportedError: If the strategy has no mesh.
        """
        return self._session.mesh

    @property
    def is_main_process(self) -> bool:
        """Whether this process has rank 0."""
        return self._rank_info.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        """Whether this process has local rank 0."""
        return self._rank_info.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        """Whether this process has the highest rank in the job."""
        return self._rank_info.is_last_process

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in function ``print`` on the main process of each machine only."""
        if self.is_local_main_process:
            print(*args, **kwargs)  # noqa: T201 # printing is the purpose of this method

    def progress(self, iterable: Iterable[T], description: str = "", total: int | None = None) -> ProgressBar[T]:
        """Return an iterable over ``iterable`` that draws a progress bar on the main process if stderr is a terminal. Bars may be nested.

        Args:
            iterable: The items, such as a prepared loader. They are passed on unchanged.
            description: The text before the bar.
            total: The number of items. None means the length of the iterable, if it has one.
        """
        return self._progress.bar(iterable, description, total)

    @overload
    def on_main_process(self, function: Callable[P, T]) -> Callable[P, T | None]: ...
    @overload
    def on_main_process(self, function: None = None) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_main_process(self, function: Any = None) -> Any:
        """Decorate a function so that it runs on the main process only and returns None elsewhere. Works with or without parentheses."""
        return self.on_main_process if function is None else run_only_if(lambda: self.is_main_process, function)

    @overload
    def on_local_main_process(self, function: Callable[P, T]) -> Callable[P, T | None]: ...
    @overload
    def on_local_main_process(self, function: None = None) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_local_main_process(self, function: Any = None) -> Any:
        """Decorate a function so that it runs on the main process of each machine only and returns None elsewhere.

        Works with or without parentheses.
        """
        return self.on_local_main_process if function is None else run_only_if(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Decorate a function so that it runs on the last process only and returns None elsewhere."""
        return run_only_if(lambda: self.is_last_process, function)

    @overload
    def on_process(self, function: Callable[P, T], process_index: int) -> Callable[P, T | None]: ...
    @overload
    def on_process(self, function: None = None, process_index: int = ...) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_process(self, function: Any = None, process_index: int = 0) -> Any:
        """Decorate a function so that it runs on one process only and returns None elsewhere.

        Write ``@rt.on_process(process_index=2)``. In a job of one process, the function runs regardless of the index.
        """
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return run_only_if(lambda: self.num_processes == 1 or self.process_index == process_index, function)

    @overload
    def on_local_process(self, function: Callable[P, T], local_process_index: int) -> Callable[P, T | None]: ...
    @overload
    def on_local_process(
        self, function: None = None, local_process_index: int = ...
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_local_process(self, function: Any = None, local_process_index: int = 0) -> Any:
        """Decorate a function so that it runs on one process of each machine only and returns None elsewhere.

        Write ``@rt.on_local_process(local_process_index=2)``. In a job of one process, the function runs regardless of the index.
        """
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return run_only_if(lambda: self.num_processes == 1 or self.local_process_index == local_process_index, function)

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Yield this process's share of ``inputs``, which is a contiguous part. Every process passes all of ``inputs``.

        If the inputs cannot be divided evenly, the first shares are one item longer. All processes of a tensor-parallel group get the
        same share.

        Args:
            inputs: A list, tuple or tensor, a dict of these with equal lengths, or a ``datasets.Dataset``. No data are sent or changed.
            apply_padding: Whether to repeat the last item of ``inputs`` until all shares are equally long, so that results can be gathered.

        Raises:
            TypeError: If ``inputs`` is of an unsupported type.
            ValueError: If the values of a dict differ in length.
        """
        yield share_of(inputs, self.data_parallel_index, self.data_parallel_size, is_padded=apply_padding)

    # -- preparation ---------------------------------------------------------------------------------------------------

    def prepare(self, *objects: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """Prepare models, optimizers, schedulers and data loaders for training.

        Modules are moved to the device, optimizers are pointed at the moved parameters, and loaders deliver their batches to the device.
        Modules are prepared first, then the other arguments in the order given. An optimizer may be prepared in the same call as its model
        or in a later call; with ``deepspeed``, it must be the same call. With ``32-true`` on one device, the modules, optimizers and
        schedulers themselves are returned. Other precisions change the class of a module to a subclass. Loaders are wrapped.

        Args:
            objects: Modules, optimizers, schedulers and DataLoaders, in any order and number. A copy of a prepared loader, made for
                example by pickle, becomes a loader of this Runtime.
            device_placement: For each object, whether it or its batches are moved to the device. None means the Runtime's own setting.

        Returns:
            The prepared objects as a tuple, in the order given; for a single argument, the prepared object instead of a tuple.

        Raises:
            PrepareError: If an object is unsupported, ``device_placement`` has the wrong length, or an optimizer has unprepared parameters.
        """
        prepared = self._preparation.prepare(objects, device_placement)
        self._shorten_calls()
        return prepared[0] if len(prepared) == 1 else prepared

    def unwrap_model(self, model: torch.nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> torch.nn.Module:
        """Return the model without the wrapper of the strategy, if it has one.

        Args:
            model: A prepared model.
            keep_fp32_wrapper: Whether the forward pass of the returned model runs in the Runtime's precision. If False, the model's
                original class is restored in place, and the model computes in the dtypes of its parameters.
            keep_torch_compile: Whether to keep the wrapper of ``torch.compile``. If False, the module inside that wrapper is returned.

        Raises:
            UnsupportedError: If ``keep_fp32_wrapper`` is False and the strategy changed the class of the model, as ``fsdp`` does.
        """
        return unwrap_model(model, self.strategy, keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile)

    def to_device(self, batch: T, non_blocking: bool = False) -> T:
        """Return ``batch`` (any nesting of dicts, lists, tuples, dataclasses and objects with ``.to``) moved to this process's device."""
        return loaders.laid_out(device_transfer.move(batch, self.device, non_blocking), self.strategy)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return a new loader that skips the first ``num_batches`` batches of every pass, to resume in the middle of an epoch."""
        return loaders.skip_batches(dataloader, num_batches)

    def free_memory(self, *objects: Any) -> tuple[None, ...]:
        """Drop all prepared objects, collect garbage and, if the device is in use, release its cached memory.

        Returns:
            A tuple with one None for each of ``objects``. Assign its elements to the variables that hold the objects, which otherwise stay
            alive.
        """
        self._preparation.free_memory()
        return (None,) * len(objects)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run ``loss.backward(**kwargs)`` in the precision of the Runtime. The loss is divided by the number of accumulation steps.

        Args:
            loss: A scalar tensor, or a tensor of any shape if ``gradient=`` is given.
            kwargs: The arguments ``gradient``, ``retain_graph``, ``create_graph`` and ``inputs`` of ``torch.Tensor.backward``.

        Raises:
            UsageError: If ``loss`` is not a tensor (after the first call, torch may raise its own error instead). Until a call has
            succeeded, also if no model has been prepared in a job of several processes, or if the precision scales gradients (``16-mixed``)
            and no optimizer has been prepared.
        """
        self._gradients.backward(loss, **kwargs)
        self._shorten_calls()

    @property
    def gradient_accumulation_steps(self) -> int:
        """Number of micro-batches per optimizer step if ``accumulate`` is used."""
        return self._accumulation.num_steps

    @property
    def sync_gradients(self) -> bool:
        """Whether an optimizer step would update the parameters now.

        Inside ``accumulate``, this is True only at the micro-batch that completes an optimizer step.
        """
        return self._accumulation.is_complete

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step of any optimizer was skipped, for example because a gradient was infinite or NaN with ``16-mixed``."""
        return self._session.stepping.has_skipped

    def accumulate(self, *models: torch.nn.Module) -> AbstractContextManager[None]:
        """Return a context manager for one micro-batch.

        Prepared optimizers and schedulers take a step only on every ``gradient_accumulation_steps``-th micro-batch, and on the last batch
        of a prepared loader. On the other micro-batches, the gradients of ``models`` are not reduced across processes, which saves time.

        Args:
            models: The prepared models whose gradients are computed inside the context.
        """
        return self._gradients.accumulate(*models)

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context manager inside which the gradients of ``model`` are not reduced over processes.

        The next backward pass outside the context reduces them.
        """
        return self._gradients.no_sync(model)

    def join_uneven_inputs(self, joinables: Sequence[torch.nn.Module], even_batches: bool | None = None) -> AbstractContextManager[Any]:
        """Return a context manager inside which processes may have different numbers of batches.

        A process that has no batches left takes part in the reductions of the other processes.

        Args:
            joinables: The prepared models that are trained inside the context.
            even_batches: Whether to fill the last batches of prepared loaders, so that all processes get the same number of batches. The
                setting applies to loops over a loader that begin inside the context. None means the Runtime's ``even_batches``.

        Raises:
            UnsupportedError: If the strategy does not support uneven inputs.
        """
        return self._gradients.join_uneven_inputs(joinables, even_batches if self.num_processes > 1 else None)

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0, **kwargs: Any
    ) -> torch.Tensor:
        """Call ``unscale_gradients``, then scale the gradients of ``parameters`` in place so that their norm is at most ``max_norm``.

        Args:
            parameters: Parameters of prepared modules. The norm covers the gradients of all shards of a sharded parameter.
            max_norm: The largest norm allowed.
            norm_type: The order of the norm.
            kwargs: The arguments ``error_if_nonfinite`` and ``foreach`` of ``torch.nn.utils.clip_grad_norm_``.

        Returns:
            The norm before clipping, as a 0-d tensor.
        """
        return self._gradients.clip_grad_norm_(parameters, max_norm, norm_type, **kwargs)

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Clamp the gradients of ``parameters`` in place to ``[-clip_value, clip_value]``.

        If the precision scales gradients, this method calls ``unscale_gradients`` first.
        """
        self._gradients.clip_grad_value_(parameters, clip_value)

    def unscale_gradients(self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None) -> None:
        """Divide gradients by the loss scale, in place. With ``16-mixed``, ``backward`` leaves gradients scaled.

        The clipping methods call this method themselves. A second call before the optimizer step changes nothing.

        Args:
            optimizer: The optimizers whose gradients are unscaled; None means all prepared optimizers.

        Raises:
            UsageError: If ``backward`` did not compute the gradients, or if the current micro-batch of ``accumulate`` does not complete an
                optimizer step. In the second case, the backward passes of the remaining micro-batches would add scaled gradients to the
                unscaled gradients. If the precision does not scale gradients, neither case raises an error.
        """
        self._gradients.unscale_gradients(optimizer)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context manager that the Runtime's precision uses for forward passes.

        Use it for computations outside prepared modules, for example to compute a loss.
        """
        return self._gradients.autocast()

    # -- collectives ---------------------------------------------------------------------------------------------------

    def wait_for_everyone(self) -> None:
        """Wait until every process has made this call. This does not wait for work on the device.

        Raises:
            CollectiveError: If a process makes a different call, or none before the timeout.
        """
        self._collectives.wait_for_everyone()

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the ``with`` block on the main process first, then on the other processes, which can use what the main process cached.

        Raises:
            CollectiveError: On the other processes, if the block failed on the main process.
        """
        with self._collectives.goes_first("main_process_first", self.is_main_process):
            yield

    @contextlib.contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Run the ``with`` block on the main process of each machine first, then on the other processes.

        Raises:
            CollectiveError: On the other processes, if the block failed on one of the main processes.
        """
        with self._collectives.goes_first("local_main_process_first", self.is_local_main_process):
            yield

    def gather(self, tensor: T, *, group: dist.ProcessGroup | None = None, sync_grads: bool = False) -> T:
        """Gather ``tensor`` from the processes of the job, and concatenate the tensors along the first dimension in the order of ranks.

        If several processes compute on the same samples (tensor parallelism), only one of them contributes, so that each sample is in the
        result once. In a job of one process, the call returns ``tensor`` itself, even if it has no dimensions.

        Args:
            tensor: Nested tensors with the same structure, dtypes and shapes on all processes. The result for a tensor without dimensions
                has one dimension, with one element per contributing process.
            group: A process group, such as ``dist.group.WORLD``. All its members contribute, even if some compute on the same samples.
            sync_grads: Whether the result is differentiable. If True, the gradient of this process's tensor is the sum of the gradients
                that the backward passes of all processes compute for it. Every process must run backward through the result, at the
                same point in its sequence of collectives.

        Raises:
            TypeError: If a leaf of ``tensor`` is not a tensor. ``gather_for_metrics`` accepts other objects.
            CollectiveError: If the tensors differ in structure, dtype or shape. ``pad_across_processes`` makes first dimensions equal.
        """
        return self._collectives.gather(tensor, group=group, sync_grads=sync_grads)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather ``input_data`` as ``gather`` does, but without the samples that were repeated to fill the last batch.

        Samples are dropped only while the innermost running loop over a prepared loader is at its last batch.

        Args:
            input_data: Nested tensors. If any leaf is not a tensor, or there are no leaves (an empty list), the data are pickled. With
                several processes, the result is then a single list. If a process passes a list or tuple, each of its items becomes an item
                of the result. Anything else that a process passes becomes one item as a whole.
            use_gather_object: Whether to pickle tensors too. Use this for tensors that differ in shape and should not be padded.
        """
        return self._collectives.gather_for_metrics(input_data, self._objects.num_real_samples(), use_gather_object)

    def reduce(
        self,
        tensor: T,
        reduction: Operation = "sum",
        scale: float = 1.0,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> T:
        """Reduce ``tensor`` element-wise over all processes and multiply the result by ``scale``.

        If several processes compute on the same samples (tensor parallelism), only one of these processes contributes, so that each sample
        counts once. float16, bfloat16 and float8 are reduced in float32 and rounded once. bool, int16, uint16 and uint32 are reduced in a
        wider integer type; a sum of bools is True if any bool is True. By default, CPU tensors with at most 103 bytes in total are sent in
        the message with which the processes compare their calls, and are reduced in rank order. If ``ACCELKIT_VERIFY_COLLECTIVES``
        restricts the comparison, they are sent like larger tensors.

        Args:
            tensor: Nested tensors with the same structure, dtypes and shapes on all processes.
            reduction: ``sum``, ``mean``, ``max``, ``min``, ``product``, ``none``, or a ``torch.distributed.ReduceOp``.
            scale: The factor by which the result is multiplied.
            group: A process group, such as ``dist.group.WORLD``. All its members contribute, even if some compute on the same samples.

        Returns:
            ``tensor`` itself if ``reduction`` is ``none``, or if the job has one process and ``scale`` is 1. Otherwise, new tensors, equal
            on all processes.

        Raises:
            TypeError: If a leaf of ``tensor`` is not a tensor, or if ``reduction`` is of an unsupported type. Also raised for the mean of
                integers or bools, and for the maximum or minimum of complex numbers.
            ValueError: If ``reduction`` is an unknown string.
        """
        return self._collectives.reduce(tensor, reduction, scale, group=group)

    def broadcast(self, tensor: T, from_process: int = 0, *, group: dist.ProcessGroup | None = None) -> T:
        """Send ``tensor`` from process ``from_process`` to all processes.

        Args:
            tensor: Nested tensors, or any other object. Receiving processes may pass anything, such as None. If all processes pass nested
                tensors with the same structure, dtypes, shapes and device types, only the values are sent. Otherwise, the data are pickled.
                Tensors in pickled data arrive on the receiver's device if they were on the sender's device.
            from_process: The sending process, given as its rank in the job.
            group: The processes that take part.

        Returns:
            ``tensor`` itself on process ``from_process``, and a new object on the other processes.

        Raises:
            ValueError: If ``from_process`` is not the rank of a process that takes part.
        """
        return self._collectives.broadcast(tensor, from_process, group=group)

    def pad_across_processes(self, tensor: T, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> T:
        """Pad each tensor along ``dim`` to its largest size on any process, so that the tensors can be gathered. All processes call this.

        Elements with the value ``pad_index`` are added at the end, or at the start if ``pad_first`` is True. A tensor that already has the
        largest size, or that has no dimension ``dim``, is returned unchanged. Padding is differentiable.
        """
        return self._collectives.pad_across_processes(tensor, dim, pad_index, pad_first)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Register further objects to save and load: anything with ``state_dict`` and ``load_state_dict``.

        With several processes, the state of rank 0 is saved, and every process loads it.

        Raises:
            PrepareError: If an object lacks one of the two methods.
        """
        self._checkpointing.register(objects)

    def save_state(self, path: str | Path, *, is_async: bool = False, keep_last: int | None = None) -> Path:
        """Save models, optimizers, schedulers, loaders, registered objects and random state as the next checkpoint in ``path``.

        All processes call this. ``path`` is a folder that all of them can access. Each process writes its shards and its random state.

        Args:
            path: The folder that contains all checkpoints.
            is_async: Whether to copy everything to main memory, return, and let a thread write it. The next save, load, ``wait_for_saves``
                or ``teardown`` waits for the thread and raises its error. If none follows, the program waits at exit. If the save failed,
                it prints the error and ends with status 1.
            keep_last: The number of checkpoints to keep, including the new one. Older checkpoints are removed once the new one is durable.

        Returns:
            The folder ``path/step-N``, where N counts checkpoints. With ``is_async``, it may not exist yet. Once it exists, it is durable.

        Raises:
            CheckpointError: On every process, if a value has a type that cannot be loaded safely, if writing fails, if a process dies, or
                if ``path`` is itself a checkpoint.
            UsageError: If nothing was prepared or registered, ``path`` is not a path, or ``keep_last`` is not a whole number of at least 1.
            UnsupportedError: If ``is_async`` is True and the strategy saves its engine itself, as ``deepspeed`` does.
        """
        return self._checkpointing.save_state(path_of(path), is_async=is_async, keep_last=keep_last)

    def wait_for_saves(self) -> None:
        """Wait until no save is running in the background.

        Raises:
            CheckpointError: If the last save failed and its error has not been raised yet. Earlier checkpoints are untouched.
        """
        self._checkpointing.wait_for_saves()

    def load_state(self, path: str | Path, *, verify: Literal["full", "lazy"] = "full") -> None:
        """Load a checkpoint written by ``save_state`` into objects that were prepared in the same order.

        The number of processes and the strategy may differ from those of the job that wrote the checkpoint, except with ``deepspeed``. Each
        process reads only what its own shards need. Each process restores the random state of the saving process with the same
        ``data_parallel_index`` (usually the rank). If that state is missing, the process warns and derives its random state from that of
        another process.

        Args:
            path: The folder of one checkpoint, or the folder that contains all checkpoints. In the second case, the latest one is loaded.
            verify: When the checkpoint is verified. With ``full``, every byte is verified before anything is restored. With ``lazy``, the
                tensors of models and optimizers are restored first, and threads verify them while the program goes on. A forward pass, an
                optimizer step, or any other call to a torch function waits until the tensors that it uses are verified, and raises
                CheckpointError if one is damaged. Everything else is verified before it is restored. If a model or optimizer is sharded, or
                if the strategy saves its engine itself, as ``deepspeed`` does, ``lazy`` has the same effect as ``full``.

        Raises:
            CheckpointError: On every process, if the checkpoint is missing or damaged, or does not match the prepared objects. Some objects
                may have been restored if an object rejected its state or if ``verify`` is ``lazy``. Otherwise, nothing has been restored.
            UsageError: If ``verify`` is neither ``full`` nor ``lazy``.
        """
        self._checkpointing.load_state(path_of(path), verify)

    def save(self, obj: Any, f: str | Path) -> None:
        """Call ``torch.save`` on the local main process of each machine. Other processes do nothing. The file is replaced atomically.

        Tensors that have no data pointer, as on XLA, are saved as host tensors, so that they can be loaded without the device.
        """
        self._checkpointing.save(obj, path_of(f))

    def get_state_dict(self, model: torch.nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the state dict of a prepared model. All processes call this; if one does not, CheckpointError is raised.

        Returns:
            If the model is sharded into DTensors: whole tensors in main memory on the main process, and an empty dict on the others.
            Otherwise: the model's own tensors (under ZeRO stage 3, gathered tensors) on every process. The names are those of
            the unwrapped model, or, with ``unwrap=False``, those of the wrapped model.

        Raises:
            UsageError: If ``model`` is not a module.
        """
        return self._checkpointing.get_state_dict(model, unwrap)

    def save_model(
        self,
        model: torch.nn.Module,
        save_directory: str | Path,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Export the weights of a model as ``model.safetensors``. All processes call this; the main process writes.

        Args:
            model: The model, prepared or not.
            save_directory: The folder to write to. It is created if it does not exist.
            max_shard_size: The maximum size of the weights in a file, in bytes or as a string such as ``"5GB"``. A larger model is split
                into several files with an index, ``model.safetensors.index.json``. A single weight that exceeds the maximum gets a file of
                its own.
            safe_serialization: Whether to write safetensors. If False, ``torch.save`` writes ``pytorch_model.bin`` (split in the same way).

        Raises:
            CheckpointError: On every process, if the files cannot be written.
            UsageError: If ``model`` is not a module, or ``max_shard_size`` is not a valid size.
        """
        self._checkpointing.save_model(model, path_of(save_directory), max_shard_size, safe_serialization)

    # -- experiment tracking -------------------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Record values with all trackers, on the main process only. The first call opens the trackers.

        To continue the curves of a saved run, load its checkpoint before the first call. A checkpoint records the position of each tracker.

        Args:
            values: Mapping from names to numbers, strings or tensors with one element. The values of this process are recorded; they are
                not reduced over the processes. Reading a tensor blocks until the device has computed it.
            step: The step of the optimizer. If None, it is the previous call's step plus 1, or 0 in the run's first call.

        Raises:
            UsageError: On the main process, if a value is of an unsupported type, or if the step is negative or not an integer.
        """
        self._trackers.log(values, step)

    def log_hyperparameters(self, values: Any) -> None:
        """Record hyperparameters with all trackers, on the main process only: now if the trackers are open, else when ``log`` opens them.

        Trackers also record the device, the precision, the strategy, ``Runtime.decision``, and the versions of accelkit, torch and Python.

        Args:
            values: A dict (nested or not), an ``argparse.Namespace``, or an instance of a dataclass.

        Raises:
            UsageError: On the main process, if ``values`` is of an unsupported type.
        """
        self._trackers.log_hyperparameters(values)

    @property
    def trackers(self) -> tuple[Any, ...]:
        """The trackers, in the order in which they were given to the constructor. Only those of the main process record anything."""
        return self._trackers.objects

    # -- preemption ----------------------------------------------------------------------------------------------------

    def watch_preemption(self) -> None:
        """Catch SIGTERM and SIGUSR1, so that these signals do not end this process. ``Runtime.is_preempted`` reports them.

        If the cluster environment overrides ``ClusterEnvironment.is_preempted``, a thread calls that override regularly.
        ``Runtime.is_preempted``, ``save_and_stop_if_preempted`` and ``resume`` call ``watch_preemption`` before anything else.

        Raises:
            UsageError: If the first call to ``watch_preemption`` is not made in the main thread.
        """
        self._preemption.watch()

    def is_preempted(self) -> bool:
        """Return whether any process of the job was told to stop, by a signal or by the cluster environment.

        Every process must call this at the same step, and all get the same result. Until ``watch_preemption`` has been called, only the
        main thread may call ``is_preempted``. With several processes, the call reduces one number, which takes about 100 microseconds on
        the CPU. If steps are short, call ``is_preempted`` only at every tenth step.
        """
        return self._preemption.is_preempted()

    def save_and_stop_if_preempted(self, path: str | Path) -> None:
        """Save a checkpoint and exit if any process of the job was told to stop. With ``Runtime(requeue=True)``, also queue the job again.

        Every process must call this at the same step. ``path`` is as for ``save_state``. The job is queued after all processes have saved.

        Raises:
            SystemExit: With status 0 if the scheduler accepted the job again. Otherwise with status 143 (128 + SIGTERM), so that a
                launcher that restarts failed jobs restarts this job.
        """
        if self.is_preempted():
            self._preemption.stop(self.save_state(path))

    def resume(self, path: str | Path, *, verify: Literal["full", "lazy"] = "full") -> bool:
        """Load the latest checkpoint under ``path``, if there is one. The folder need not exist.

        All processes call this, and rank 0 looks for checkpoints. ``path`` is a folder that all processes can access. ``load_state``
        describes ``verify``. ``resume`` calls ``watch_preemption`` first, so that SIGTERM and SIGUSR1 no longer end this process.

        Returns:
            Whether a checkpoint was loaded. The result is the same on all processes.

        Raises:
            CheckpointError: If ``path`` is a file or cannot be read, if its checkpoints were removed but the file LATEST was not, or in the
                cases that ``load_state`` describes.
        """
        self.watch_preemption()
        if not self._checkpointing.has_checkpoint(path_of(path)):
            return False
        self.load_state(path, verify=verify)
        return True

    # -- stopping together --------------------------------------------------------------------------------------------

    def set_trigger(self) -> None:
        """Make the next ``check_trigger`` return True on all processes, so that they can stop together. Nothing is sent by this call."""
        self._stop_trigger.set()

    def check_trigger(self) -> bool:
        """Return whether any process has called ``set_trigger`` since the last check. The trigger is then cleared.

        Every process must call this at the same step, and all processes get the same result. With several processes, the call reduces
        one number, which takes about 100 microseconds on the CPU.
        """
        return self._stop_trigger.check()

    # -- finding out what takes time -----------------------------------------------------------------------------------

    def profile(
        self,
        *,
        wait: int = 0,
        warmup: int = 1,
        active: int = 3,
        folder: str | Path | None = None,
        with_stack: bool = False,
        memory_snapshot: bool = False,
    ) -> Profiler:
        """Return a context manager that records some steps of a training loop with torch.profiler.

        Prepare the models before this call. Call the method ``step`` of the result after each step of the loop. After the loop,
        ``print(profiler.summary)`` shows how long data loading, copies, the forward pass, the backward pass, the optimizer and collectives
        take, and points out anything unusual. Recorded steps take longer than usual. The call starts the device (see ``device``).

        Args:
            wait: The number of steps that pass before anything is recorded.
            warmup: The number of steps that are then recorded and discarded, because the first recorded steps are slower.
            active: The number of steps that are recorded after that and kept.
            folder: The folder in which each process writes its trace as ``rank<N>.<time>.pt.trace.json``. Perfetto and TensorBoard can open
                this file. If None, no trace is written.
            with_stack: Whether to record the Python stack of each operator.
            memory_snapshot: Whether to record the device's allocations during the ``active`` steps. Each process writes them to
                ``rank<N>.<time>.memory.pickle`` in ``folder``. https://docs.pytorch.org/memory_viz can open this file.

        Raises:
            UsageError: If a number of steps is invalid, or if ``memory_snapshot`` is True and ``folder`` is None.
            UnsupportedError: If ``memory_snapshot`` is True and the device cannot record its allocations.
        """
        from accelkit.runtime.profiling.profiler import Profiler

        steps: dict[str, Any] = {"wait": wait, "warmup": warmup, "active": active}
        output: dict[str, Any] = {"folder": folder, "with_stack": with_stack, "memory_snapshot": memory_snapshot}
        return Profiler(self._session, self._objects.modules, self._rank_info, **steps, **output)

    # -- finding wrong results -----------------------------------------------------------------------------------------

    def compare_to_cpu(
        self,
        model: torch.nn.Module,
        batch: Any,
        loss: Callable[[Any, Any], torch.Tensor] | None = None,
        *,
        folder: str | Path | None = None,
    ) -> Comparison:
        """Run a forward and a backward pass to find the first operator with a wrong result and the module that called the operator.

        Each operator runs on the device and, with the same inputs, on the CPU in float64, so errors do not accumulate. The tolerance is
        that of the conformance suite, for the dtype in which the operator runs. A wrong result is replaced by the right result, so that
        later operators are tested too. Parameters, gradients, buffers and generators are left as they were. The two passes take many times
        as long as usual.

        Args:
            model: A prepared model. It keeps its mode (training or evaluation). torch.compile is not used, and gradients are not reduced.
            batch: The batch. It is moved to the device.
            loss: A function ``loss(model, batch)`` that returns the loss. If None, the batch is passed to the model (a dict as keywords, a
                tuple or list as positional arguments). The loss is the output's ``loss``, or else a randomly weighted sum of all outputs.
            folder: The folder for programs that reproduce wrong results. None creates a temporary folder if a result is wrong.

        Returns:
            The report: ``print(report)`` shows it, and ``report.first`` is the first difference, or None.

        Raises:
            UsageError: If a part of the model is not on the device, or ``loss`` does not return a tensor with one element.
            UnsupportedError: If the model is sharded.
        """
        from accelkit.runtime.comparison.comparison import compare_to_cpu

        inner = unwrap_model(model, self.strategy, keep_torch_compile=False) if isinstance(model, torch.nn.Module) else model
        return compare_to_cpu(inner, self.to_device(batch), loss, folder, self._session)

    # -- the rest of the life of a Runtime -----------------------------------------------------------------------------

    def launch(self, function: Callable[..., R], *arguments: Any) -> R:
        """Run ``function(runtime, *arguments)`` on all devices of this Runtime, from a script or a notebook, and wait until it returns.

        With several devices, the function runs in new processes on this machine, one per device, each with a new Runtime like this one.
        When the processes end, modules and optimizers among ``arguments`` get the trained weights and state. With one device, or in a
        job that a launcher started, the function runs in this process, with this Runtime.

        Returns:
            The return value of the function on rank 0. Its tensors are on the CPU if other processes ran the function.

        Raises:
            RankFailedError: If a process failed. The error has the traceback of the process that failed first.
            UnsupportedError: If the function cannot be sent to another process, this process cannot be forked, or ``num_nodes`` is above 1
                and no launcher has started the job.
            UsageError: If ``function`` cannot be called.
        """
        check_function(function, "launch", "function(runtime, *arguments)")
        if self._session.configuration.num_processes == self.num_processes:
            return function(self, *arguments)
        if (self._session.configuration.num_nodes or 1) > 1:
            check_started(self._session.configuration)
        from accelkit.launching import spawn_launcher

        rest = {name: value for name, value in self._arguments.items() if name not in ("accelerator", "devices")}
        chosen: Any = self._arguments["accelerator"]
        result: R = spawn_launcher.launch(function, *arguments, accelerator=chosen, devices=self._arguments["devices"], runtime=rest)
        return result

    def find_executable_batch_size(self, function: Callable[[int], R], starting_batch_size: int = 128) -> R:
        """Call ``function(batch_size)``. As long as it runs out of memory on any process, call it again with half the batch size.

        All processes call this and try the same sizes. Between attempts, prepared objects are dropped and cached memory is released. The
        function must therefore create the model, optimizer and loaders itself, and must leave no references to tensors behind. Inside
        ``accumulate``, ``gradient_accumulation_steps`` grows so that an optimizer step has at least as many samples as in the first
        attempt. Memory use should be similar on all processes. If one process runs out of memory inside a backward pass of ``ddp`` or of
        a strategy that shards, the other processes wait for it until the process group times out.

        Args:
            function: The function that prepares everything and trains.
            starting_batch_size: The first and largest batch size to try, in samples per process.

        Returns:
            The return value of the last call.

        Raises:
            UnsupportedError: On every process, if a batch of one sample does not fit.
            UsageError: If ``function`` cannot be called, or ``starting_batch_size`` is not an integer of at least 1.
        """
        return batch_size.find_executable_batch_size(
            function,
            starting_batch_size,
            before_attempt=lambda: self.__dict__.pop("backward", None),  # the one that _shorten_calls has set may not divide losses
            session=self._session,
            collectives=self._collectives,
            preparation=self._preparation,
            accumulation=self._accumulation,
        )

    def seed_everything(self, seed: int, per_process: bool = False) -> int:
        """Seed Python, NumPy (if imported), torch on the host, and the device. A device that has not started is seeded when it starts.

        Args:
            seed: The seed.
            per_process: Whether the seed is ``seed + data_parallel_index``. Dropout, noise and augmentation then differ between processes
                that compute on different samples. Before this call, seed all processes alike (``Runtime(seed=0)``) and create the model,
                because all processes need equal weights. Rank 0 draws the order of a prepared loader, whatever ``per_process`` is.

        Returns:
            The seed of this process.

        Raises:
            UsageError: If the seed is not a whole number that torch accepts.
        """
        seed = seeding.check_seed(seed) + (self.data_parallel_index if per_process else 0)
        seeding.seed_host(seed)
        self._session.seed_device(seed)
        return seed

    def synchronize(self) -> None:
        """Wait until all work that was queued on the device of this process has finished.

        Call this before reading a clock, for example.

        Raises:
            UnsupportedError: If torch has no way to wait for the device.
        """
        call(self.accelerator, "synchronize", self.device)

    @property
    def memory(self) -> DeviceMemory:
        """Device memory of this process in bytes: ``memory.current`` and ``memory.peak``. ``memory.reset_peak()`` resets the peak."""
        return DeviceMemory(self._session)

    def empty_cache(self) -> None:
        """Give unused cached memory back to the device, if it has a cache. Prepared objects are kept; ``free_memory`` drops them."""
        self._session.start()
        call(self.accelerator, "empty_cache")

    def device_stats(self) -> dict[str, Any]:
        """Return statistics of the device from the accelerator and hook plugins, with the unit in each key.

        The call starts the device (see ``device``).
        """
        return self._session.device_stats()

    def teardown(self) -> None:
        """Finish saves, verify what was loaded, close trackers, tear down plugins and leave the process group. The Runtime stays usable."""
        try:
            self._checkpointing.close()
        finally:  # even if the last save failed
            self._trackers.close("finished")
            self._preemption.forget()
            self._session.stop()
            self.__dict__.pop("backward", None)

    def _shorten_calls(self) -> None:
        """Replace ``backward`` and ``accumulate`` on this instance with the functions to which they pass their arguments.

        This does nothing before the device has started. A method that a subclass overrides is not replaced, and neither is ``backward`` as
        long as it has to check that the program has prepared what it trains.
        """
        if self._session.is_started:
            functions: dict[str, Any] = {"accumulate": self._gradients.accumulate}
            if not self._gradients.has_to_check:
                functions["backward"] = self._gradients.backward_function()
            self.__dict__.update({name: f for name, f in functions.items() if getattr(type(self), name) is getattr(Runtime, name)})

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise UnsupportedError, because a Runtime cannot be pickled. The objects that a Runtime prepared can be pickled."""
        raise UnsupportedError(
            "a Runtime cannot be pickled",
            why="it holds the device and the process group of this process, which another process does not have",
            hint="pickle rt.state or what rt prepared, and make a Runtime in the other process; rt.launch(function) gives each its own",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the Runtime itself, so that a copy of an object that holds a Runtime (a callback, a dataset) uses the same Runtime."""
        return self

    if not TYPE_CHECKING:  # otherwise, a type checker would accept any attribute name

        def __getattr__(self, name: str) -> Any:
            """Raise the error for an attribute that does not exist. Python calls this only after the normal lookup has failed."""
            from accelkit.peer_names import missing_attribute

            if not hasattr(type(self), name) and (error := missing_attribute("Runtime", name)):
                raise error
            return object.__getattribute__(self, name)  # raises the error of a property, or the usual AttributeError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._trackers.close("failed")
        self.teardown()

    def __repr__(self) -> str:
        return f"<Runtime {self.state.device} {self.state.precision} {self.state.strategy}>"
