"""Optimizer and scheduler steps that gradient accumulation, the precision, the strategy or the accelerator modifies.

The Runtime does not wrap optimizers and schedulers, because schedulers refer to the optimizer, and hooks are registered with the optimizer.
Instead, it changes the classes of these objects. A step runs the code of this module only if the Runtime accumulates gradients, the
precision overrides ``optimizer_step``, the strategy is an EngineStrategy, or the accelerator overrides ``step_end``.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from accelkit.errors import PrepareError, UnsupportedError, UsageError
from accelkit.plugin_calls import note_plugin, wrong_result
from accelkit.runtime.dynamic_subclass import restore_class, swap_class
from accelkit.runtime.precision_forward import check_loss
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.engine_strategy import EngineStrategy
from accelkit.specs.overrides import overridden
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy

if TYPE_CHECKING:
    from accelkit.runtime.gradients import Accumulation

_steppings: dict[int, Stepping] = {}
"""The Stepping of each prepared optimizer and scheduler, by the object's ``id``, until the object is deleted. It is not stored in an
attribute, because a scheduler's state dict contains all of its attributes, and copies would have the attribute too. The keys are ids,
because each step looks up the Stepping, and a lookup in a WeakKeyDictionary would take more than twice as long."""


class Stepping:
    """Implementation of ``step`` and ``zero_grad`` for the optimizers and schedulers of a Runtime.

    Args:
        accumulation: The accumulation state. Until gradients are complete, optimizers and schedulers do nothing.
        precision: The precision. If it overrides ``optimizer_step``, that method runs each step, unless the strategy is an EngineStrategy.
        strategy: The strategy. An EngineStrategy runs all steps. If the EngineStrategy itself calls the optimizer's ``step`` or
            ``zero_grad``, the original method runs.
        accelerator: The accelerator. If it overrides ``step_end``, that method is called after each optimizer step.
    """

    def __init__(self, accumulation: Accumulation, precision: Precision, strategy: Strategy, accelerator: Accelerator) -> None:
        self.accumulation = accumulation
        self._precision = precision
        self._precision_step = overridden(precision, Precision, "optimizer_step")
        self._end = overridden(accelerator, Accelerator, "step_end")
        self._strategy = strategy if isinstance(strategy, EngineStrategy) else None
        self._run = self._step_in_engine if self._strategy else self._step_in_precision if self._precision_step else _called
        self._inside: torch.optim.Optimizer | None = None
        self._skipped: set[int] = set()
        self._num_backwards: dict[int, int] = {}  # the value of accumulation.num_backwards at the last step of each optimizer

    @property
    def has_skipped(self) -> bool:
        """Whether the precision or the strategy skipped the last step of at least one optimizer."""
        return len(self._skipped) > 0

    def take_over(self, thing: torch.optim.Optimizer | LRScheduler) -> None:
        """Replace the ``step`` of an optimizer or scheduler in place.

        An optimizer's ``zero_grad`` is replaced too if gradients are accumulated or the strategy is an EngineStrategy. Nothing is replaced
        if the replacements would do the same as the originals.
        """
        if self.accumulation.num_steps == 1 and self._precision_step is None and self._strategy is None and self._end is None:
            if id(thing) in _steppings:  # another Runtime changed the class
                _steppings[id(thing)] = self
            return
        key, before = id(thing), _steppings.get(id(thing))
        if before is not self:
            _steppings[key] = self
            weakref.finalize(thing, self._forget, key).atexit = False
        if isinstance(thing, LRScheduler):
            swap_class(thing, governed_scheduler)
            return
        if before is None and "step" in vars(thing):  # an earlier scheduler wrapped step on the instance, which hides the class's step
            own = vars(thing)["step"]
            thing.step = functools.wraps(own)(functools.partial(_step, lambda _, *closure: own(*closure), thing))  # type: ignore[method-assign]
        has_to_reset = self.accumulation.num_steps > 1 or self._strategy is not None
        restore_class(thing, governed_step if has_to_reset else governed_optimizer)  # another Runtime may have swapped the class
        swap_class(thing, governed_optimizer if has_to_reset else governed_step)

    def _forget(self, key: int) -> None:
        _steppings.pop(key, None)
        self._skipped.discard(key)
        self._num_backwards.pop(key, None)

    def step(self, optimizer: torch.optim.Optimizer, own: Any, closure: Any) -> Any:
        """Run a step of the optimizer and return its result. Called only if ``accumulation.is_complete`` is True.

        ``own`` is the optimizer's original ``step``. It is called with the optimizer and, unless ``closure`` is None, with ``closure``.
        """
        if self._inside is optimizer:
            return self._own_step(optimizer, own, closure)
        if self.accumulation.num_steps > 1:
            self._check_gradients(optimizer, closure)
        result = self._run(optimizer, own, closure)
        if self._end is not None:
            self._end()
        return result

    def _check_gradients(self, optimizer: torch.optim.Optimizer, closure: Any) -> None:
        """Raise an error if the gradients for this step were not divided by the number of micro-batches, and warn once if the step was
        taken outside ``accumulate``.

        If there is a closure, no error is raised, because the closure computes the gradients during the step.

        Raises:
            UsageError: If ``Runtime.backward``, which divides the loss, has not been called since the last step of this optimizer.
        """
        key, num_backwards = id(optimizer), self.accumulation.num_backwards
        if self._num_backwards.get(key, 0) == num_backwards and closure is None and _has_gradients(optimizer):
            raise UsageError(
                f"the gradients of {type(optimizer).__name__} were not computed by rt.backward",
                why=f"with gradient_accumulation_steps={self.accumulation.num_steps}, rt.backward(loss) divides the loss by this number; "
                "loss.backward() does not, so the gradients are too large",
                hint="call rt.backward(loss) instead of loss.backward()",
            )
        self._num_backwards[key] = num_backwards
        if not self.accumulation.has_begun:
            self._warn_of_small_gradients()

    def _warn_of_small_gradients(self) -> None:
        """Warn once that gradients are probably too small.

        ``backward`` divides the loss by the number of micro-batches per step, but this step probably had only one micro-batch.
        """
        self.accumulation.has_begun = True
        num_steps = self.accumulation.num_steps
        warnings.warn(
            f"gradient_accumulation_steps={num_steps}, and an optimizer stepped outside of accumulate(): backward() divides each gradient "
            f"by {num_steps}, which makes it too small if this step had only one micro-batch. Write `with rt.accumulate(model):` around "
            "the forward and backward pass and the step, or leave gradient_accumulation_steps out",
            stacklevel=5,
        )

    def zero_grad(self, optimizer: torch.optim.Optimizer, own: Any, set_to_none: bool) -> None:
        """Reset the gradients of the optimizer. Called only if ``accumulation.is_complete`` is True.

        If the strategy is an EngineStrategy and did not make this call itself, the strategy's ``zero_grad`` is called, and ``set_to_none``
        is ignored. In all other cases, ``own`` is called: the original, unbound ``zero_grad`` of the optimizer's class.
        """
        if self._strategy is None or self._inside is optimizer:
            own(optimizer, set_to_none)
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
        """Return whether a scheduler of this optimizer must not step now.

        This is the case while gradients are being accumulated, or if the optimizer's last step was skipped.
        """
        return not self.accumulation.is_complete or id(optimizer) in self._skipped

    def _step_in_precision(self, optimizer: torch.optim.Optimizer, own: Any, closure: Any) -> Any:
        self._skipped.add(id(optimizer))  # counts as skipped until the precision calls the optimizer's own step
        before, self._inside = self._inside, optimizer
        try:
            return self._precision_step(optimizer, functools.partial(self._own_step, optimizer, own), closure)  # type: ignore[misc]
        except Exception as error:
            note_plugin(error, self._precision, "optimizer_step")
            raise
        finally:
            self._inside = before

    def _step_in_engine(self, optimizer: torch.optim.Optimizer, own: Any, closure: Any) -> None:
        assert self._strategy is not None
        if closure is not None:
            raise UnsupportedError(
                f"{type(optimizer).__name__}.step was given a closure",
                plugin=self._strategy.plugin,
                why=f"strategy {self._strategy.name!r} steps by itself, after the backward passes",
                hint="call backward before step, without a closure",
            )
        before, self._inside = self._inside, optimizer
        try:
            is_applied = self._strategy.step(optimizer)
        except Exception as error:
            note_plugin(error, self._strategy, "step")
            raise
        finally:
            self._inside = before
        if is_applied is False:
            self._skipped.add(id(optimizer))
        elif is_applied is True:
            self._skipped.discard(id(optimizer))
        else:
            raise wrong_result(self._strategy, "step", is_applied, "True or False")

    def _own_step(self, optimizer: torch.optim.Optimizer, own: Any, closure: Any = None) -> Any:
        self._skipped.discard(id(optimizer))
        return own(optimizer) if closure is None else own(optimizer, closure)


def ending_a_step(backward: Callable[..., None], step_end: Callable[[], None]) -> Callable[..., None]:
    """Return a function that runs the backward pass and then calls ``step_end``.

    On a device that traces lazily, ``step_end`` makes the pass run immediately, so that a later read of the loss does not run the pass
    again.
    """

    @functools.wraps(backward)
    def backward_to_the_end(loss: torch.Tensor, **kwargs: Any) -> None:
        try:
            backward(loss, **kwargs)
        except Exception:
            check_loss(loss)
            raise
        step_end()

    return backward_to_the_end


def _step(own: Any, optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
    stepping = _steppings.get(id(optimizer))
    if stepping is None:  # a copy of a prepared optimizer
        return _called(optimizer, own, closure)
    return stepping.step(optimizer, own, closure) if stepping.accumulation.is_complete else None


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _called(optimizer: torch.optim.Optimizer, own: Any, closure: Any) -> Any:
    return own(optimizer) if closure is None else own(optimizer, closure)  # the step of some optimizers takes no closure


def governed_step(cls: type) -> dict[str, Any]:
    """Return a dict with the method ``step`` for a subclass of the optimizer class ``cls``.

    The method lets the optimizer's ``Stepping`` run the step, and does nothing while gradients are being accumulated. A copy of a prepared
    optimizer has no ``Stepping`` and steps as usual.
    """
    original: Any = cls

    def step(self: Any, closure: Any = None) -> Any:
        stepping = _steppings.get(id(self))
        if stepping is None:  # a copy of a prepared optimizer
            return _called(self, original.step, closure)
        return stepping.step(self, original.step, closure) if stepping.accumulation.is_complete else None

    step.hooked = True  # type: ignore[attr-defined] # otherwise torch would wrap a copy's step and run the hooks twice
    return {"step": step}


def governed_optimizer(cls: type) -> dict[str, Any]:
    """Return a dict with the methods ``step`` and ``zero_grad`` for a subclass of the optimizer class ``cls``.

    These methods let the optimizer's ``Stepping`` run the step and reset the gradients, and do nothing while gradients are being
    accumulated. A copy of a prepared optimizer has no ``Stepping`` and behaves as usual.
    """
    original: Any = cls

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        stepping = _steppings.get(id(self))
        if stepping is None:
            original.zero_grad(self, set_to_none)
        elif stepping.accumulation.is_complete:
            stepping.zero_grad(self, original.zero_grad, set_to_none)

    return governed_step(cls) | {"zero_grad": zero_grad}


def governed_scheduler(cls: type) -> dict[str, Any]:
    """Return a dict with the method ``step`` for a subclass of the scheduler class ``cls``.

    With this method, a scheduler takes a step only if its optimizer takes one.
    """
    original: Any = cls

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        stepping = _steppings.get(id(self))
        if stepping is None or not stepping.has_to_wait(self.optimizer):
            original.step(self, *args, **kwargs)

    return {"step": step}


def pairs(objects: Sequence[object], strategy: Strategy) -> dict[int, torch.nn.Module]:
    """Return a dict from the ``id`` of each optimizer to the module that the optimizer trains.

    Args:
        objects: The objects given to one call to ``prepare``, before the modules are moved to the device.
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
                raise _apart(strategy, type(optimizer).__name__, f"{type(holders[0]).__name__} already has another optimizer")
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
        hint="prepare both in one call: model, optimizer = rt.prepare(model, optimizer); for a model that is not trained, call "
        "model.requires_grad_(False) first",
    )
