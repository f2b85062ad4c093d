"""Nested data in which every leaf is a tensor."""

from __future__ import annotations

from typing import Any

import torch

from accelkit.pytree import tree_leaves


def tensors_of(data: Any, name: str) -> list[torch.Tensor]:
    """Return the leaves of nested data, all of which must be tensors.

    Args:
        data: A tensor, or tensors in nested containers.
        name: The name of the call, which the error message contains.

    Raises:
        TypeError: If a leaf is not a tensor.
    """
    found = tree_leaves(data)
    for leaf in found:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(
                f"{name} expects nested tensors, got {type(leaf).__name__}; gather_for_metrics and broadcast accept other objects"
            )
    return found
