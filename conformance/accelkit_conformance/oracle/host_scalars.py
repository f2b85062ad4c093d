"""Calls with a tensor on the device and a 0-d tensor on the CPU. torch's pointwise operators accept the 0-d tensor as if it were a
number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, scalar: x + scalar,
    "sub": lambda x, scalar: scalar - x,
    "mul": lambda x, scalar: x * scalar,
    "div": lambda x, scalar: x / scalar,
    "pow": lambda x, scalar: x**scalar,
    "maximum": torch.maximum,
    "lt": lambda x, scalar: x < scalar,
    "where": lambda x, scalar: torch.where(x > 2, x, scalar),
    "add_": lambda x, scalar: x.clone().add_(scalar),
    "mul_": lambda x, scalar: x.clone().mul_(scalar),
    "fill_": lambda x, scalar: x.clone().fill_(scalar),
    "copy_": lambda x, scalar: x.clone().copy_(scalar),
    "masked_fill": lambda x, scalar: x.masked_fill(x > 2, scalar),
}
"""The calls, by name. Each takes a tensor and a 0-d tensor."""


def check_host_scalars(subject: Subject, name: str) -> None:
    """Call a function with a tensor on the device and a 0-d tensor on the CPU, and compare the results with those for two CPU tensors.

    The 0-d tensor is float32 or int64. It has its own storage, or is an element of a matrix. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``CALLS``.

    Raises:
        NotSupported: If the device lacks a dtype that the call needs.
    """
    here, call = torch.linspace(0.5, 4, 15).view(3, 5), CALLS[name]
    require_dtypes(subject, lambda: call(here, torch.tensor(3.0)))
    for dtype in (torch.float32, torch.int64):
        table = torch.arange(1, 9, dtype=dtype).view(2, 4)
        scalars = {
            "its own storage": torch.tensor(3, dtype=dtype),
            "an element of a row": table[0][2],
            "an element of a matrix": table[1, 1],
            "an element of a transposed matrix": table.t()[3, 1],
        }
        for place, scalar in scalars.items():
            with subject.sample(f"{name}, {dtype}, {place}", {"dtype": str(dtype)}):
                check_result(call(here.to(subject.device), scalar), call(here, scalar), None, subject.device)
