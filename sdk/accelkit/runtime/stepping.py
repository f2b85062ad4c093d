"""Optimizers whose steps are a strategy's, because it wrapped them together with their module.

The user's optimizer stays the object in the loop: schedulers refer to it, and hooks were registered with it. Its ``step`` and ``zero_grad``
call the strategy; within the strategy's step, its ``step`` is its own. Nothing here is on the step path of other strategies.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from accelkit.errors import PrepareError, UnsupportedError
from accelkit.runtime.swapping import swap_class
from accelkit.specs.strategy import Strategy

_ATTRIBUTE = "_accelkit_stepping"


class Stepping:
    """Between one optimizer and the strategy that steps it."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._is_inside = False

    def take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the optimizer's ``step`` and ``zero_grad`` the strategy's, in place."""
        if "step" in vars(optimizer):  # a scheduler made before put its own wrapper on the instance, which hides the class's step
            own = vars(optimizer)["step"]
            optimizer.step = functools.wraps(own)(functools.partial(self.step, optimizer, own))  # type: ignore[method-assign]
        optimizer.__dict__[_ATTRIBUTE] = self
        swap_class(optimizer, stepped_optimizer)

    def step(self, optimizer: torch.optim.Optimizer, own: Any, closure: Any = None) -> Any:
        """``own`` is the optimizer's step; it is what the strategy itself calls."""
        if self._is_inside:
            return own(closure) if closure is not None else own()
        if closure is not None:
            raise UnsupportedError(
                f"{type(optimizer).__name__}.step was given a closure",
                plugin=self.strategy.plugin,
                why=f"strategy {self.strategy.name!r} steps by itself, after the backward passes",
                hint="call backward before step, without a closure",
            )
        self._is_inside = True
        try:
            return self.strategy.step(optimizer)
        finally:
            self._is_inside = False


def stepped_optimizer(cls: type) -> dict[str, Any]:
    """The behaviour of an optimizer that a strategy steps."""
    original: Any = cls

    def step(self: Any, closure: Any = None) -> Any:
        return self.__dict__[_ATTRIBUTE].step(self, functools.partial(original.step, self), closure)

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        self.__dict__[_ATTRIBUTE].strategy.zero_grad(self)

    return {"step": step, "zero_grad": zero_grad}


def pairs(objects: Sequence[object], strategy: Strategy) -> dict[int, torch.nn.Module]:
    """Which module each optimizer trains, by the optimizer's ``id``.

    Args:
        objects: Given to one call of ``prepare``, not yet placed.
        strategy: For the errors.

    Raises:
        PrepareError: Unless each optimizer trains one of the modules, and each module that can be trained has one optimizer.
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
