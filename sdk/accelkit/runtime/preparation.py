"""Preparation of modules, optimizers, schedulers and loaders, and the record of what was prepared."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from accelkit.errors import PrepareError
from accelkit.plugin_calls import call
from accelkit.runtime.data.loaders import PreparedLoader, innermost
from accelkit.runtime.gradients import Accumulation
from accelkit.runtime.module_placement import (
    ParameterMoves,
    follow_parameters,
    place_module,
    refuse_steps_of_others,
    warn_of_holders_at_first_step,
)
from accelkit.runtime.optimizer_step import pairs
from accelkit.runtime.precision_forward import remove_from_forward
from accelkit.runtime.rank_info import RankInfo
from accelkit.runtime.scheduler_length import check_length
from accelkit.runtime.session import Session
from accelkit.specs.engine_strategy import EngineSettings, EngineStrategy
from accelkit.specs.strategy import Strategy


@dataclasses.dataclass(slots=True)
class PreparedObjects:
    """Prepared and registered objects, in the order in which the program passed them.

    This order determines the names of the objects in a checkpoint. If the strategy is an engine strategy, ``engines`` contains the modules
    that its ``wrap_training`` returned. They are in ``modules`` too.
    """

    modules: list[torch.nn.Module] = dataclasses.field(default_factory=list)
    engines: list[torch.nn.Module] = dataclasses.field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = dataclasses.field(default_factory=list)
    schedulers: list[LRScheduler] = dataclasses.field(default_factory=list)
    loaders: list[PreparedLoader] = dataclasses.field(default_factory=list)
    registered: list[Any] = dataclasses.field(default_factory=list)

    def is_empty(self) -> bool:
        """Return whether nothing was prepared or registered."""
        return not any(getattr(self, field.name) for field in dataclasses.fields(self))

    def clear(self) -> None:
        """Forget all objects."""
        for field in dataclasses.fields(self):
            getattr(self, field.name).clear()

    def num_real_samples(self) -> int | None:
        """Return the number of samples in the current global batch, not counting repeated samples.

        The result is None unless some of the samples are known to be repeated. It is also None if the batch is not the last one of its
        loader, or if no loop over a prepared loader is running.
        """
        loader = innermost(self.loaders)
        return loader.remainder if loader is not None and loader.remainder > 0 else None


@dataclasses.dataclass(frozen=True, slots=True)
class PreparationOptions:
    """The arguments of ``Runtime`` that concern ``prepare``. The docstring of ``Runtime`` describes them."""

    device_placement: bool = True
    split_batches: bool = False
    even_batches: bool = True
    dispatch_batches: bool | None = None
    rng_types: tuple[str, ...] = ()


class Preparation:
    """Prepares objects for the device, precision and strategy of a session, and records them.

    Args:
        session: The session, which has the device, the precision and the strategy.
        rank_info: The ranks of this process, which determine the share of the data that this process gets.
        accumulation: The counter of micro-batches. Its ``num_steps`` is the number of micro-batches per optimizer step.
        options: How objects are prepared.
        objects: The record to which prepared objects are added.
    """

    def __init__(
        self,
        session: Session,
        rank_info: RankInfo,
        accumulation: Accumulation,
        options: PreparationOptions,
        objects: PreparedObjects,
    ) -> None:
        self._session = session
        self._rank_info = rank_info
        self._accumulation = accumulation
        self._options = options
        self._objects = objects
        self._moves = ParameterMoves()
        self._unchecked_schedulers: list[LRScheduler] = []

    def prepare(self, objects: Sequence[Any], device_placement: Sequence[bool | None] | None) -> tuple[Any, ...]:
        """See ``Runtime.prepare``. Return the prepared objects in the order given."""
        placements = self._placements(objects, device_placement)
        for thing in objects:
            if not isinstance(thing, torch.nn.Module | torch.optim.Optimizer | LRScheduler | DataLoader | PreparedLoader):
                raise PrepareError(
                    f"prepare does not support {type(thing).__module__}.{type(thing).__qualname__}",
                    why="it prepares torch.nn.Module, Optimizer, LRScheduler and DataLoader objects",
                    hint="pass it to register_for_checkpointing if it has a state_dict, to to_device if it is a batch",
                )
        strategy = self._session.configuration.strategy
        trained = pairs(objects, strategy) if isinstance(strategy, EngineStrategy) else {}
        prepared: dict[int, Any] = {
            id(thing): self._prepare_module(thing, has_to_move)
            for thing, has_to_move in zip(objects, placements, strict=True)
            if isinstance(thing, torch.nn.Module)
        }
        for thing, has_to_move in zip(objects, placements, strict=True):
            if isinstance(thing, torch.optim.Optimizer):
                follow_parameters(thing, self._moves)
                if trained:
                    module = id(trained[id(thing)])
                    prepared[module] = self._wrap_training(prepared[module], thing, objects)
                self._prepare_optimizer(thing)
            elif isinstance(thing, LRScheduler):
                if _add_once(self._objects.schedulers, thing):
                    self._unchecked_schedulers.append(thing)
                self._session.stepping.take_over(thing)
            elif isinstance(thing, DataLoader):
                prepared[id(thing)] = self._prepare_loader(thing, has_to_move)
            elif isinstance(thing, PreparedLoader):
                _add_once(self._objects.loaders, thing)
        self._check_others(objects)
        self._check_schedulers()
        return tuple(prepared.get(id(thing), thing) for thing in objects)

    def _placements(self, objects: Sequence[object], given: Sequence[bool | None] | None) -> list[bool]:
        if given is not None and len(given) != len(objects):
            raise PrepareError(
                f"device_placement has {len(given)} values for {len(objects)} objects",
                why="it needs one value for each object",
                hint="give True, False or None for each object, in their order",
            )
        return [self._options.device_placement if value is None else value for value in given or (None,) * len(objects)]

    def _prepare_module(self, module: torch.nn.Module, has_to_move: bool) -> torch.nn.Module:
        session = self._session
        placed = place_module(
            module, session.device, session.precision, session.configuration.strategy, self._moves, has_to_move=has_to_move
        )
        _add_once(self._objects.modules, placed)
        return placed

    def _wrap_training(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, objects: Sequence[object]) -> torch.nn.Module:
        sizes = [thing.batch_size for thing in objects if isinstance(thing, DataLoader) and thing.batch_size is not None]
        num_processes = self._rank_info.num_processes
        settings = EngineSettings(
            device=self._session.device,
            precision=self._session.precision,
            num_processes=num_processes,
            accumulation_steps=self._accumulation.num_steps,
            batch_size=sizes[0] // (self._rank_info.data_parallel_size if self._options.split_batches else 1) if sizes else None,
        )
        wrapped: torch.nn.Module = call(self._session.configuration.strategy, "wrap_training", module, optimizer, settings)
        self._objects.modules[:] = [wrapped if other is module else other for other in self._objects.modules]
        _add_once(self._objects.engines, wrapped)
        return wrapped

    def _prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        _add_once(self._objects.optimizers, optimizer)
        call(self._session.precision, "check_optimizer", optimizer)
        self._session.stepping.take_over(optimizer)

    def _prepare_loader(self, loader: DataLoader[Any], has_to_move: bool) -> PreparedLoader:
        config, options = self._session.configuration, self._options
        strategy = config.strategy if has_to_move else None
        device = self._session.device if has_to_move and not torch.empty(0, device=self._session.device).is_cpu else None
        if self._rank_info.num_processes == 1:
            prepared = PreparedLoader(loader, device, accelerator=config.accelerator, strategy=strategy)
        else:
            from accelkit.runtime.data.prepare_loader import prepare_loader

            prepared = prepare_loader(
                loader,
                device=device,
                num_processes=self._rank_info.num_processes,
                process_index=self._rank_info.process_index,
                split_batches=options.split_batches,
                even_batches=options.even_batches,
                dispatch_batches=options.dispatch_batches,
                rng_types=options.rng_types,
                accelerator=config.accelerator,
                strategy=strategy,
                number=len(self._objects.loaders),
                num_shares=self._rank_info.data_parallel_size,
            )
        self._objects.loaders.append(prepared)
        return prepared

    def _check_others(self, objects: Sequence[object]) -> None:
        """Make optimizers check at their next step whether anything in the program still holds parameters that ``prepare`` has replaced.

        If an optimizer itself holds replaced parameters, its next step raises an error, unless the optimizer is prepared before that step.
        If an object that is not an optimizer holds replaced parameters, the next step of a prepared optimizer warns.

        Args:
            objects: The objects of one call to ``prepare``. The first optimizer among them gives the warning. If ``objects`` contains no
                optimizer, the first optimizer in a later call gives the warning.
        """
        if self._moves.has_replaced:
            refuse_steps_of_others(self._moves)
            self._moves.has_replaced, self._moves.is_unsearched = False, True
        if self._moves.is_unsearched and (optimizers := [thing for thing in objects if isinstance(thing, torch.optim.Optimizer)]):
            warn_of_holders_at_first_step(self._moves, optimizers[0])
            self._moves.is_unsearched = False

    def _check_schedulers(self) -> None:
        """Warn on the main process if the length of a scheduler, in steps, does not match the prepared loaders.

        Each scheduler is checked only once. Schedulers that are prepared before any loader are checked when the first loader is prepared.
        """
        if not self._objects.loaders:
            return
        for scheduler in self._unchecked_schedulers if self._rank_info.is_main_process else ():
            check_length(scheduler, self._objects.loaders, self._rank_info.data_parallel_size, self._accumulation.num_steps)
        self._unchecked_schedulers.clear()

    def free_memory(self) -> None:
        """Drop all prepared objects, collect garbage and, if the device is in use, release its cached memory."""
        self._objects.clear()
        self._unchecked_schedulers.clear()
        gc.collect()
        if self._session.is_started:
            call(self._session.configuration.accelerator, "empty_cache")


def unwrap_model(
    model: torch.nn.Module, strategy: Strategy, *, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
) -> torch.nn.Module:
    """Return the model without the wrapper that the strategy added. See ``Runtime.unwrap_model``."""
    unwrapped: torch.nn.Module = call(strategy, "unwrap_module", model)
    if not keep_fp32_wrapper:
        remove_from_forward(unwrapped)
    inner = getattr(unwrapped, "_orig_mod", None)
    return inner if isinstance(inner, torch.nn.Module) and not keep_torch_compile else unwrapped


def user_module(model: torch.nn.Module, strategy: Strategy) -> torch.nn.Module:
    """Return the user's own module, without the wrappers of the strategy and of ``torch.compile``, in whichever order they are nested."""
    inner = unwrap_model(model, strategy, keep_torch_compile=False)
    return inner if inner is model else user_module(inner, strategy)


def _add_once(kept: list[Any], thing: Any) -> bool:
    """Append ``thing`` unless the list contains this very object. Return whether it was appended."""
    is_new = not any(other is thing for other in kept)
    if is_new:
        kept.append(thing)
    return is_new
