"""Warning for a learning-rate scheduler whose length was computed from a loader before ``prepare``.

On each of ``n`` processes, a prepared loader yields only ``1/n`` of the batches. With gradient accumulation, a scheduler steps only once
for several batches. A scheduler that was created for more steps than the job takes never reaches the end of its schedule, and nothing
else would report this mistake.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from accelkit.runtime import tensor_referrers
from accelkit.runtime.data.loaders import PreparedLoader

LENGTHS = ("total_steps", "T_max", "T_0", "total_iters")
"""The attributes in which torch's schedulers keep their length, in steps."""


def check_length(scheduler: LRScheduler, loaders: Sequence[PreparedLoader], num_processes: int, accumulation_steps: int) -> None:
    """Warn if a scheduler's length was probably computed from a loader before ``prepare``, or was not divided by ``accumulation_steps``.

    There is no warning if the length is probably the number of optimizer steps in one or more whole epochs of a prepared loader.

    A OneCycleLR steps after every optimizer step, so the warning for a OneCycleLR is given immediately. The length of any other scheduler
    may be a number of epochs, because a program may step the scheduler only once per epoch. The warning for such a scheduler is therefore
    given at the second step of its optimizer, and only if the scheduler stepped between the first and the second step of the optimizer.
    If an epoch has only one step, there is no warning for such a scheduler.

    Args:
        scheduler: The scheduler to check.
        loaders: The prepared loaders. If the program has called ``len`` on one of them, the scheduler's length may come from that call.
        num_processes: The number of processes that get different batches (``data_parallel_size``).
        accumulation_steps: The number of micro-batches per optimizer step.
    """
    name = next((name for name in LENGTHS if isinstance(getattr(scheduler, name, None), int)), None)
    if name is None or (num_processes == 1 and accumulation_steps == 1):
        return
    length: int = getattr(scheduler, name)
    explanations = [_Steps(loader, num_processes, accumulation_steps) for loader in loaders if _has_length(loader)]
    if any(steps.explains(length) for steps in explanations):
        return
    mistakes = [(unit, steps) for steps in explanations for unit in steps.mistaken_units(length)]
    if not mistakes:
        return
    unit, steps = max(mistakes, key=lambda mistake: mistake[0])
    text = f"{type(scheduler).__name__} has {name}={length}, {steps.description(length, unit)}"
    if isinstance(scheduler, OneCycleLR):
        _warn(text)
    elif steps.per_epoch > 1:
        _warn_at_second_step(scheduler, text)


class _Steps:
    """The number of steps that a scheduler takes in one epoch of a loader, and the numbers that are easily mistaken for it.

    Attributes:
        per_epoch: The number of optimizer steps, and so of scheduler steps, in one epoch.
        unprepared: The number of batches of the loader before ``prepare``.
        prepared: The number of batches that this process gets in one epoch of the prepared loader.
    """

    def __init__(self, loader: PreparedLoader, num_processes: int, accumulation_steps: int) -> None:
        self._num_processes, self._accumulation_steps = num_processes, accumulation_steps
        self._was_length_read = loader.was_length_read
        self.unprepared = len(loader.epochs.division.loader)
        self.prepared = loader.num_batches()
        self.per_epoch = self._steps(self.prepared)

    def _steps(self, num_batches: int) -> int:
        return -(-num_batches // self._accumulation_steps)

    def explains(self, length: int) -> bool:
        """Return whether a scheduler's length is probably right, that is, a multiple of ``per_epoch`` for which ``mistaken_units`` yields
        nothing.

        The result is always False if ``per_epoch`` is 0 or 1. Every length is a multiple of 1, so being a multiple would prove nothing.
        """
        is_whole = self.per_epoch > 1 and length % self.per_epoch == 0
        return is_whole and not any(self.mistaken_units(length))

    def mistaken_units(self, length: int) -> Iterator[int]:
        """Yield numbers that the program may have mistaken for the steps per epoch when it computed the scheduler's length.

        Each yielded number is greater than ``per_epoch`` and divides the length. The length may still be right. For example, if an epoch
        has 20 steps, but the loader had 40 batches before ``prepare``, a length of 400 may be 20 epochs of 20 steps or, by mistake, 10
        epochs of 40 steps. Nothing is yielded if the length is a multiple of ``per_epoch`` and the program has called ``len`` on the
        prepared loader.

        Args:
            length: The length of the scheduler, in steps.
        """
        is_right = length % max(self.per_epoch, 1) == 0
        units = []
        if self.unprepared != self.prepared and not (is_right and self._was_length_read):
            units += [self.unprepared, self._steps(self.unprepared)]
        if not is_right:
            units.append(self.prepared)
        yield from (unit for unit in units if unit > max(self.per_epoch, 1) and length % unit == 0)

    def description(self, length: int, unit: int) -> str:
        """Return the part of the warning that says how the length was computed, why that is wrong, and what to do.

        Args:
            length: The length of the scheduler, in steps.
            unit: The wrong number of steps per epoch from which the length was probably computed.
        """
        epochs = length // unit
        per_epoch = "the number of batches in an epoch" if unit == self.prepared else "the number of batches before prepare"
        if unit not in (self.prepared, self.unprepared):
            per_epoch = f"the number of steps for the {self.unprepared} batches before prepare"
        reasons = []
        if self._num_processes > 1:
            reasons.append(f"the batches are divided among {self._num_processes} processes, and each gets {self.prepared} per epoch")
        if self._accumulation_steps > 1:
            reasons.append(f"a scheduler steps once every {self._accumulation_steps} batches")
        wanted = "len(loader)" if self._accumulation_steps == 1 else "math.ceil(len(loader) / rt.gradient_accumulation_steps)"
        return (
            f"which is {epochs} x {unit}, and {unit} is {per_epoch}. But {' and '.join(reasons)}: {_count(epochs, 'epoch')} "
            f"{'has' if epochs == 1 else 'have'} {_count(epochs * self.per_epoch, 'step')}, and the schedule would not reach its end. "
            f"Prepare the loader first, and create the scheduler from {wanted} of the prepared loader"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _has_length(loader: PreparedLoader) -> bool:
    try:
        return min(len(loader.epochs.division.loader), loader.num_batches()) > 0
    except (TypeError, NotImplementedError):  # an iterable dataset
        return False


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=tensor_referrers.stack_level_outside_of_torch())


def _warn_at_second_step(scheduler: LRScheduler, text: str) -> None:
    """Warn with ``text`` at the second step of the scheduler's optimizer if the scheduler stepped between the first step and the second."""
    positions: list[int] = []

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        positions.append(scheduler.last_epoch)
        if len(positions) == 2:
            handles.append(optimizer.register_step_post_hook(remove))
            if positions[0] != positions[1]:
                _warn(text)

    def remove(*_: Any) -> None:
        """Remove two hooks of the optimizer's ``step``: the pre-hook ``before_step``, and this function, which is a post-hook.

        While torch iterates over the post-hooks, only the last post-hook can remove itself. This function is the last post-hook, because
        it was registered last.
        """
        for handle in handles:
            handle.remove()

    handles = [scheduler.optimizer.register_step_pre_hook(before_step)]
