"""Optimizer steps with gradient accumulation, or with a precision or strategy that takes part in them.

The program keeps its own optimizer and scheduler objects, because schedulers refer to the optimizer and hooks are registered with the
optimizer. These objects are not wrapped; their classes are swapped. The code here runs in steps only if the Runtime accumulates gradients,
the precision overrides ``optimizer_step``, the strategy is an EngineStrategy, or the accelerator overrides ``step_end``.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from accelkit.errors import PrepareError, UnsupportedError
from accelkit.plugin_calls import note_plugin, wrong_result
from accelkit.runtime.dynamic_subclass import swap_class
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.engine_strategy import EngineStrategy
from accelkit.specs.overrides import overridden, overrides
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy

if TYPE_CHECKING:
    from accelkit.runtime.gradients import Accumulation

_steppings: weakref.WeakKeyDictionary[Any, Stepping] = weakref.WeakKeyDictionary()
"""The Stepping of each prepared optimizer and scheduler. It is not stored in an attribute of the scheduler, because a scheduler's state
dict contains all of its attributes."""


class Stepping:
    """Implementation of ``step`` and ``zero_grad`` for the optimizers and schedulers of a Runtime.

    Args:
        accumulation: The accumulation state. ``step`` and ``zero_grad`` do nothing until gradients are complete.
        precision: The precision. It takes part in a step if it overrides ``optimizer_step``.
        strategy: The strategy. An EngineStrategy runs all steps. If the EngineStrategy itself calls the optimizer's ``step`` or
            ``zero_grad``, the original method runs.
        accelerator: The accelerator. Its ``step_end`` is called after each step if it overrides that method.
    """

    def __init__(self, accumulation: Accumulation, precision: Precision, strategy: Strategy, accelerator: Accelerator) -> None:
        self._accumulation = accumulation
        self._precision = precision if overrides(precision, Precision, "optimizer_step") else None
        self._end = overridden(accelerator, Accelerator, "step_end")
        self._strategy = strategy if isinstance(strategy, EngineStrategy) else None
        self._inside: torch.optim.Optimizer | None = None
        self._skipped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    @property
    def has_skipped(self) -> bool:
        """Whether the precision or the strategy skipped the last step of at least one optimizer."""
        return len(self._skipped) > 0

    def take_over(self, thing: torch.optim.Optimizer | LRScheduler) -> None:
        """Replace an optimizer's ``step`` and ``zero_grad``, or a scheduler's ``step``, in place.

        Does nothing if the replacements would do the same as the originals.
        """
        if self._accumulation.num_steps == 1 and self._precision is None and self._strategy is None and self._end is None:
            return
        is_first = thing not in _steppings
        _steppings[thing] = self
        if isinstance(thing, LRScheduler):
            swap_class(thing, governed_scheduler)
            return
        if is_first and "step" in vars(thing):  # an earlier scheduler wrapped step on the instance, which hides the class's step
            own = vars(thing)["step"]
            thing.step = functools.wraps(own)(functools.partial(_step, thing, own))  # type: ignore[method-assign]
        swap_class(thing, governed_optimizer)

    def step(self, optimizer: torch.optim.Optimizer, own: Any, closure: Any) -> Any:
        """Run a step of the optimizer. ``own`` is the optimizer's own ``step``, which takes the closure."""
        if self._inside is optimizer:
            return self._own_step(optimizer, own, closure)
        if not self._accumulation.is_complete:
            return None
        if self._accumulation.num_steps > 1 and not self._accumulation.has_begun:
            self._warn_of_small_gradients()
        if self._strategy is None and self._precision is None:
            result = _called(own, closure)
        else:
            before, self._inside = self._inside, optimizer
            try:
                result = self._wrapped_step(optimizer, own, closure)
            finally:
                self._inside = before
        if self._end is not None:
            self._end()
        return result

    def _warn_of_small_gradients(self) -> None:
        """Warn once that gradients are too small: ``backward`` divides by the number of passes, and this step had only one pass."""
        self._accumulation.has_begun = True
        num_steps = self._accumulation.num_steps
        warnings.warn(
            f"gradient_accumulation_steps={num_steps}, and an optimizer stepped outside of accumulate(): backward() divides each gradient "
            f"by {num_steps}, and this step has one of them. Write `with rt.accumulate(model):` around the forward and backward pass and "
            "the step, or leave gradient_accumulation_steps out",
            stacklevel=4,
        )

    def zero_grad(self, optimizer: torch.optim.Optimizer, own: Any, set_to_none: bool) -> None:
        """Reset the gradients of the optimizer. ``own`` is the optimizer's own ``zero_grad``."""
        if not self._accumulation.is_complete:
            return
        if self._strategy is None or self._inside is optimizer:
            own(set_to_none)
            return
        before, self._inside = self._inside, optimizer
        try:
            self._strategy.zero_grad(optimizer)
        except Exception as error:
            note_plugin(error, self._strategy, "zero_grad")
            raise
        finally:
            self._inside = before

    def has_to_wait(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether a scheduler of this optimizer must not step now."""
        return not self._accumulation.is_complete or optimizer in self._skipped

    def _wrapped_step(self, optimizer: torch.optim.Optimizer, own: Any, closure: Any) -> Any:
        if self._strategy is None:
            assert self._precision is not None
            has_stepped = False

            def own_step(closure: Any = None) -> Any:
                nonlocal has_stepped
                has_stepped = True
                return self._own_step(optimizer, own, closure)

            try:
                return self._precision.optimizer_step(optimizer, own_step, closure)
            except Exception as error:
                note_plugin(error, self._precision, "optimizer_step")
                raise
            finally:
                if not has_stepped:
                    self._skipped.add(optimizer)
        if closure is not None:
            raise UnsupportedError(
                f"{type(optimizer).__name__}.step was given a closure",
                plugin=self._strategy.plugin,
                why=f"strategy {self._strategy.name!r} steps by itself, after the backward passes",
                hint="call backward before step, without a closure",
            )
        try:
            is_applied = self._strategy.step(optimizer)
        except Exception as error:
            note_plugin(error, self._strategy, "step")
            raise
        if is_applied is False:
            self._skipped.add(optimizer)
        elif is_applied is True:
            self._skipped.discard(optimizer)
        else:
            raise wrong_result(self._strategy, "step", is_applied, "True or False")
        return None

    def _own_step(self, optimizer: torch.optim.Optimizer, own: Any, closure: Any = None) -> Any:
        self._skipped.discard(optimizer)
        return _called(own, closure)


def ending_a_step(backward: Callable[..., None], step_end: Callable[[], None]) -> Callable[..., None]:
    """Return a function that runs the backward pass and then calls ``step_end``.

    On a device that traces lazily, ``step_end`` makes the pass run, so that reading the loss afterwards does not run the pass again.
    """

    @functools.wraps(backward)
    def backward_to_the_end(loss: torch.Tensor, **kwargs: Any) -> None:
        backward(loss, **kwargs)
        step_end()

    return backward_to_the_end


def _step(optimizer: torch.optim.Optimizer, own: Any, closure: Any = None) -> Any:
    stepping = _steppings.get(optimizer)
    if stepping is not None:
        return stepping.step(optimizer, own, closure)
    return _called(own, closure)  # the optimizer is a copy of a prepared one


def _called(own: Any, closure: Any) -> Any:
    return own(closure) if closure is not None else own()  # the step of some optimizers takes no closure


def governed_optimizer(cls: type) -> dict[str, Any]:
    """Return the behaviour of an optimizer whose steps are run by a Stepping."""
    original: Any = cls

    def step(self: Any, closure: Any = None) -> Any:
        stepping, own = _steppings.get(self), functools.partial(original.step, self)
        return stepping.step(self, own, closure) if stepping is not None else _called(own, closure)  # a copy has no Stepping

    step.hooked = True  # type: ignore[attr-defined] # otherwise torch would wrap a copy's step and run the hooks twice

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        stepping, own = _steppings.get(self), functools.partial(original.zero_grad, self)
        if stepping is not None:
            stepping.zero_grad(self, own, set_to_none)
        else:
            own(set_to_none)

    return {"step": step, "zero_grad": zero_grad}


def governed_scheduler(cls: type) -> dict[str, Any]:
    """Return the behaviour of a learning-rate scheduler that steps only when its optimizer does."""
    original: Any = cls

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        stepping = _steppings.get(self)
        if stepping is None or not stepping.has_to_wait(self.optimizer):
            original.step(self, *args, **kwargs)

    return {"step": step}


def pairs(objects: Sequence[object], strategy: Strategy) -> dict[int, torch.nn.Module]:
    """Return the module that each optimizer trains, by the ``id`` of the optimizer.

    Args:
        objects: The objects given to one call of ``prepare``, not yet placed.
        strategy: The strategy, whose name appears in errors.

    Raises:
        PrepareError: Unless each optimizer trains one of the modules, and each trainable module has exactly one optimizer.
    """
    modules = [thing for thing in objects if isinstance(thing, torch.nn.Module)]
    found: dict[int, torch.nn.Module] = {}
    for optimizer in objects:
        if isinstance(optimizer, torch.optim.Optimizer):
            wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            holders = [module for module in modules if wanted <= {id(parameter) for parameter in module.parameters()}]
            if not holders:
                raise _apart(strategy, type(optimizer).__name__, "no module of this call has all of this optimizer's parameters")
            if any(holders[0] is other for other in found.values()):
                raise _apart(strategy, type(optimizer).__name__, f"{type(holders[0]).__name__} has another optimizer already")
            found[id(optimizer)] = holders[0]
    for module in modules:
        if not any(module is other for other in found.values()) and any(parameter.requires_grad for parameter in module.parameters()):
            raise _apart(strategy, type(module).__name__, "no optimizer of this call trains it, and it has parameters to train")
    return found


def _apart(strategy: Strategy, name: str, why: str) -> PrepareError:
    return PrepareError(
        f"{name} cannot be prepared for strategy {strategy.name!r}, which wraps a module together with its optimizer",
        plugin=strategy.plugin,
        why=why,
        hint="model, optimizer = rt.prepare(model, optimizer), in one call; a model that is not trained: model.requires_grad_(False)",
    )
