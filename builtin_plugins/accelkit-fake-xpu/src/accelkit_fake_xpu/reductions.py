"""Sending tensors to other processes: device memory belongs to one process, and whoever tries is told so."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor


def register() -> None:
    """Put a clear error before torch's own way of sending tensors, which would speak of file descriptors."""
    for cls in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(cls, _reduce)


def _reduce(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if tensor.device.type == "fake_xpu":
        raise RuntimeError("fake_xpu tensors cannot be sent to another process: their memory is this one's alone. Send tensor.cpu()")
    reduced: tuple[Callable[..., Any], tuple[Any, ...]] = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    return reduced
