"""Preparation of modules, optimizers, schedulers and loaders. The Runtime keeps track of the objects that it prepared."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from accelkit.errors import PrepareError
from accelkit.plugin_calls import call
from accelkit.runtime.data import loaders
from accelkit.runtime.optimizer_step import Stepping, pairs
from accelkit.runtime.placement import (
    ParameterMoves,
    follow_parameters,
    place_module,
    refuse_steps_of_others,
    warn_of_holders_at_first_step,
)
from accelkit.runtime.precision_forward import remove_from_forward
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.engine_strategy import EngineStrategy, Training
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy


class Prepared:
    """The part of a Runtime that prepares objects and keeps track of them."""

    accelerator: Accelerator
    strategy: Strategy
    device_placement: bool
    split_batches: bool
    even_batches: bool
    dispatch_batches: bool | None
    rng_types: tuple[str, ...]
    _device: torch.device | None
    _moves: ParameterMoves
    _stepping: Stepping
    _modules: list[torch.nn.Module]
    _optimizers: list[torch.optim.Optimizer]
    _schedulers: list[LRScheduler]
    _loaders: list[loaders.PreparedLoader]
    _custom: list[Any]

    if TYPE_CHECKING:

        @property
        def device(self) -> torch.device: ...
        @property
        def precision(self) -> Precision: ...
        @property
        def gradient_accumulation_steps(self) -> int: ...
        @property
        def num_processes(self) -> int: ...
        @property
        def process_index(self) -> int: ...

    def prepare(self, *objects: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """Prepare models, optimizers, schedulers and data loaders for training.

        Modules are moved to the device, optimizers are pointed at the moved parameters, and loaders deliver their batches to the device.
        Modules are placed first, regardless of the order of the arguments. With ``32-true`` on one device, the same modules, optimizers
        and schedulers are returned. Other precisions change the class of a module to a subclass. Loaders are wrapped.

        Args:
            objects: Modules, optimizers, schedulers and DataLoaders, in any order and number. A copy of a prepared loader, such as
                pickle makes, becomes a loader of this Runtime.
            device_placement: For each object, whether the object or its batches are moved to the device. None stands for the
                ``device_placement`` of the Runtime.

        Returns:
            The prepared objects in the order given; for a single argument, the object itself.

        Raises:
            PrepareError: If an object is of another type, or if an optimizer has parameters that are in no prepared module.
        """
        placements = self._placements(objects, device_placement)
        for thing in objects:
            if not isinstance(thing, torch.nn.Module | torch.optim.Optimizer | LRScheduler | DataLoader | loaders.PreparedLoader):
                raise PrepareError(
                    f"prepare cannot prepare {type(thing).__module__}.{type(thing).__qualname__}",
                    why="it prepares torch.nn.Module, Optimizer, LRScheduler and DataLoader objects",
                    hint="pass it to register_for_checkpointing if it has a state_dict, to to_device if it is a batch",
                )
        trained = pairs(objects, self.strategy) if isinstance(self.strategy, EngineStrategy) else {}
        prepared = {
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
                self._prepare_scheduler(thing)
            elif isinstance(thing, DataLoader):
                prepared[id(thing)] = self._prepare_loader(thing, has_to_move)
            elif isinstance(thing, loaders.PreparedLoader):
                _add_once(self._loaders, thing)
        if self._moves.has_replaced:
            refuse_steps_of_others(self._moves)
            self._moves.has_replaced, self._moves.is_unsearched = False, True
        if self._moves.is_unsearched and (optimizers := [thing for thing in objects if isinstance(thing, torch.optim.Optimizer)]):
            warn_of_holders_at_first_step(self._moves, optimizers[0])
            self._moves.is_unsearched = False
        result = tuple(prepared.get(id(thing), thing) for thing in objects)
        return result[0] if len(result) == 1 else result

    def _placements(self, objects: Sequence[object], given: Sequence[bool | None] | None) -> list[bool]:
        if given is not None and len(given) != len(objects):
            raise PrepareError(
                f"device_placement has {len(given)} values for {len(objects)} objects",
                why="each object needs one",
                hint="give True, False or None for each object, in their order",
            )
        return [self.device_placement if one is None else one for one in given or (None,) * len(objects)]

    def _prepare_module(self, module: torch.nn.Module, has_to_move: bool) -> torch.nn.Module:
        device = self.device
        placed = place_module(module, device, self.precision, self.strategy, self._moves, has_to_move=has_to_move)
        _add_once(self._modules, placed)
        return placed

    def _wrap_training(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, objects: Sequence[object]) -> torch.nn.Module:
        sizes = [thing.batch_size for thing in objects if isinstance(thing, DataLoader) and thing.batch_size is not None]
        training = Training(
            device=self.device,
            precision=self.precision,
            num_processes=self.num_processes,
            accumulation_steps=self.gradient_accumulation_steps,
            batch_size=sizes[0] // (self.num_processes if self.split_batches else 1) if sizes else None,
        )
        wrapped: torch.nn.Module = call(self.strategy, "wrap_training", module, optimizer, training)
        self._modules[:] = [wrapped if other is module else other for other in self._modules]
        return wrapped

    def _prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        _add_once(self._optimizers, optimizer)
        call(self.precision, "check_optimizer", optimizer)
        self._stepping.take_over(optimizer)

    def _prepare_scheduler(self, scheduler: LRScheduler) -> None:
        _ = self.device
        _add_once(self._schedulers, scheduler)
        self._stepping.take_over(scheduler)

    def _prepare_loader(self, loader: DataLoader[Any], has_to_move: bool) -> Any:
        has_to_move = has_to_move and not torch.empty(0, device=self.device).is_cpu
        device = self.device if has_to_move else None
        if self.num_processes == 1:
            prepared = loaders.PreparedLoader(loader, device, accelerator=self.accelerator, strategy=self.strategy)
        else:
            from accelkit.runtime.data.distribute import prepare_loader

            prepared = prepare_loader(
                loader,
                device=device,
                num_processes=self.num_processes,
                process_index=self.process_index,
                split_batches=self.split_batches,
                even_batches=self.even_batches,
                dispatch_batches=self.dispatch_batches,
                rng_types=self.rng_types,
                accelerator=self.accelerator,
                strategy=self.strategy,
                number=len(self._loaders),
            )
        self._loaders.append(prepared)
        return prepared

    def unwrap_model(self, model: torch.nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> torch.nn.Module:
        """Return the model without the wrapper of the strategy. On one device, this is the model itself.

        Args:
            model: A prepared model.
            keep_fp32_wrapper: Whether the forward pass still runs in the precision. If False, the model gets its own class back, in place.
            keep_torch_compile: Whether to keep the wrapper of ``torch.compile``.

        Raises:
            UnsupportedError: If ``keep_fp32_wrapper`` is False and the strategy changed the class of the model, as ``fsdp`` does.
        """
        bare = call(self.strategy, "unwrap_module", model)
        if not keep_fp32_wrapper:
            remove_from_forward(bare)
        inner = getattr(bare, "_orig_mod", None)
        return inner if isinstance(inner, torch.nn.Module) and not keep_torch_compile else bare

    def free_memory(self, *objects: Any) -> tuple[None, ...]:
        """Drop all prepared objects, collect garbage and release cached memory.

        Returns:
            One None for each of ``objects``, to assign to the variables that held them.
        """
        for kept in (self._modules, self._optimizers, self._schedulers, self._loaders, self._custom):
            kept.clear()
        gc.collect()
        if self._device is not None:
            self.accelerator.empty_cache()
        return (None,) * len(objects)


def _add_once(kept: list[Any], thing: Any) -> None:
    if not any(other is thing for other in kept):
        kept.append(thing)
