"""Checks of the tensors that are passed to collectives."""

from __future__ import annotations

from collections.abc import Sequence
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


def check_dtypes(tensors: Sequence[torch.Tensor], op: object) -> None:
    """Check that the operation is defined for the dtypes. Processes with the same dtypes all pass the check, or all fail it.

    Raises:
        TypeError: For the mean of integers or booleans, and for the maximum or minimum of complex numbers.
    """
    for tensor in tensors:
        if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
            raise TypeError(f"reduce cannot compute the mean of {tensor.dtype}: convert the tensor with tensor.float() first")
        if op in ("max", "min") and tensor.is_complex():
            raise TypeError(f"reduce cannot compute the {op} of {tensor.dtype}: complex numbers have no order")
