"""Fill memory with NaN before a call that may use this memory for its results.

If a kernel reads this memory before writing to it, the results are wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.layouts import canary

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def leave_nan(subject: Subject, device: torch.device, results: Iterable[Any]) -> None:
    """Allocate blocks of memory with the sizes of these results, fill the blocks with NaN and free them, so that the next call may use them
    for its results.

    Does nothing if the device lacks float32.

    Args:
        subject: The plugin under test.
        device: The device of the next call.
        results: The expected results of the next call, on any device. Only their sizes are used.
    """
    if subject.lacks("float32"):
        return
    sizes = {one.numel() * one.element_size() for one in results if isinstance(one, torch.Tensor) and one.layout is torch.strided}
    used = [torch.full((-(-size // 4),), float("nan"), device=device) for size in sorted(sizes) if size]
    used.clear()


def unwritten(dtype: torch.dtype) -> float:
    """Return the value that fills the tensor of an ``out=`` argument before the call: NaN, or ``canary(dtype)`` if the dtype has no NaN or
    has only eight bits."""
    return float("nan") if dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1) else canary(dtype)
