"""Gradient accumulation over several backward passes per optimizer step."""

from __future__ import annotations


class Accumulation:
    """Counter of backward passes that knows whether the current one completes an optimizer step.

    Attributes:
        num_steps: Number of backward passes per optimizer step.
        is_complete: Whether optimizers step now. Always True outside ``accumulate``.
        has_begun: Whether ``accumulate`` was ever entered.
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.is_complete = True
        self.has_begun = False
        self._step = 0

    def begin(self, is_last_batch: bool) -> None:
        """Begin the next micro-batch. The last batch of a loader always completes the step."""
        self.has_begun = True
        self._step = 0 if is_last_batch else self._step + 1
        self.is_complete = self._step % self.num_steps == 0
