"""Gradient accumulation: how many backward passes make a step."""

from __future__ import annotations


class Accumulation:
    """How many backward passes make a step, and whether the current one completes it.

    Attributes:
        num_steps: Backward passes a step.
        is_complete: Whether optimizers act now. Always, outside ``accumulate``.
        has_begun: Whether ``accumulate`` was ever entered.
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.is_complete = True
        self.has_begun = False
        self._step = 0

    def begin(self, is_last_batch: bool) -> None:
        """Enter one more micro-batch; the last one of a loader completes whatever there is."""
        self.has_begun = True
        self._step = 0 if is_last_batch else self._step + 1
        self.is_complete = self._step % self.num_steps == 0
