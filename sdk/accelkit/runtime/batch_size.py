"""Search for a batch size that fits into the memory of the devices, by halving the batch size again and again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from accelkit.errors import UnsupportedError, UsageError
from accelkit.plugin_calls import call
from accelkit.runtime.argument_checks import check_function
from accelkit.runtime.collectives.collectives import Collectives
from accelkit.runtime.gradients import Accumulation
from accelkit.runtime.preparation import Preparation
from accelkit.runtime.session import Session
from accelkit.whole_number import whole_number

R = TypeVar("R")


def find_executable_batch_size(
    function: Callable[[int], R],
    starting_batch_size: int,
    *,
    before_attempt: Callable[[], object],
    session: Session,
    collectives: Collectives,
    preparation: Preparation,
    accumulation: Accumulation,
) -> R:
    """Call ``function(batch_size)``, and halve the batch size until no process runs out of memory. Return what the last call returned.

    ``before_attempt`` is called before each call. See ``Runtime.find_executable_batch_size``.
    """
    check_function(function, "find_executable_batch_size", "function(batch_size)")
    size = whole_number(starting_batch_size)
    if size is None or size < 1:
        raise UsageError(
            f"starting_batch_size must be a positive whole number, got {starting_batch_size!r:.80}",
            why="it is a number of samples",
            hint="use the largest batch size that is worth trying, such as 128",
        )
    batch_size, num_steps = size, accumulation.num_steps
    accelerator = session.configuration.accelerator
    while True:
        result, failure = None, ""
        before_attempt()
        try:
            result = function(batch_size)
        except Exception as error:
            if not call(accelerator, "is_out_of_memory", error):
                raise
            failure = (
                str(error).partition("\n")[0] or type(error).__name__
            )  # the error itself would keep the tensors of the attempt in memory
        if not collectives.any_process(bool(failure)):
            return result  # type: ignore[return-value]  # of type R, because no error was raised
        del result
        preparation.free_memory()
        failure = failure or "another process ran out of memory"
        if batch_size == 1:
            raise UnsupportedError(
                f"no batch size fits into the memory of {session.device}",
                plugin=accelerator.plugin,
                why=f"a batch of one sample does not fit: {failure}",
                hint='use a smaller model, a precision of half the size such as "bf16-true", or strategy="fsdp" on several devices',
            )
        batch_size //= 2
        accumulation.restart(num_steps * -(-size // batch_size))
        warnings.warn(
            f"trying a batch size of {batch_size}, with {accumulation.num_steps} accumulation steps, because more does not fit: {failure}",
            stacklevel=3,
        )
