"""Nested data of which every leaf is a tensor."""

from __future__ import annotations

from typing import Any

import torch

from accelkit.pytree import leaves


def tensors_of(data: Any, name: str) -> list[torch.Tensor]:
    """The leaves of nested tensors.

    Args:
        data: Any nesting.
        name: Of the call, for the error.

    Raises:
        TypeError: If one is no tensor.
    """
    found = leaves(data)
    for leaf in found:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(
                f"{name} takes nested tensors, and was given {type(leaf).__name__}; gather_for_metrics and broadcast take objects"
            )
    return found
