"""Gradient accumulation: a prepared optimizer and scheduler act only on the steps at which gradients are complete.

Nothing here is on the step path of a Runtime that does not accumulate.
"""

from __future__ import annotations

import functools
from typing import Any

from accelkit.runtime.swapping import swap_class

_ATTRIBUTE = "_accelkit_accumulation"


class Accumulation:
    """How many backward passes make a step, and whether the current one completes it.

    Attributes:
        num_steps: Backward passes a step.
        is_complete: Whether optimizers act now. Always, outside ``accumulate``.
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.is_complete = True
        self._step = 0

    def begin(self, is_last_batch: bool) -> None:
        """Enter one more micro-batch; the last one of a loader completes whatever there is."""
        self._step = 0 if is_last_batch else self._step + 1
        self.is_complete = is_last_batch or self._step % self.num_steps == 0

    def govern(self, thing: Any) -> None:
        """Make an optimizer or scheduler act only when gradients are complete, in place."""
        if "step" in vars(thing):  # a scheduler made before put its own wrapper on the instance, which hides the class's step
            thing.step = self._guarded(vars(thing)["step"])
        thing.__dict__[_ATTRIBUTE] = self
        swap_class(thing, governed_optimizer if hasattr(thing, "zero_grad") else governed_scheduler)

    def _guarded(self, step: Any) -> Any:
        @functools.wraps(step)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return step(*args, **kwargs) if self.is_complete else None

        return guarded


def governed_optimizer(cls: type) -> dict[str, Any]:
    """The behaviour of an optimizer that waits for complete gradients."""
    original: Any = cls

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original.step(self, *args, **kwargs) if self.__dict__[_ATTRIBUTE].is_complete else None

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.__dict__[_ATTRIBUTE].is_complete:
            original.zero_grad(self, *args, **kwargs)

    return {"step": step, "zero_grad": zero_grad}


def governed_scheduler(cls: type) -> dict[str, Any]:
    """The behaviour of a learning-rate scheduler that steps with its optimizer."""
    original: Any = cls

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.__dict__[_ATTRIBUTE].is_complete:
            original.step(self, *args, **kwargs)

    return {"step": step}
