"""Pickling of tensors that are sent to other processes.

Sending a ``fake_xpu`` tensor raises an error, because device memory belongs to one process.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor


def register() -> None:
    """Register a function that raises a clear error when a ``fake_xpu`` tensor is pickled for another process.

    Without this function, torch raises an error about file descriptors.
    """
    for cls in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(cls, _reduce)


def _reduce(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if tensor.device.type == "fake_xpu":
        raise RuntimeError(
            "fake_xpu tensors cannot be sent to another process, because their memory belongs to this process. Send tensor.cpu() instead"
        )
    reduced: tuple[Callable[..., Any], tuple[Any, ...]] = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    return reduced
