"""Transfer results from processes that were started from Python: trained weights, optimizer states and return values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelkit.pytree import leaves, map_leaves


def trained(arguments: Sequence[Any]) -> list[Any]:
    """Return the modules and optimizers in a function's arguments, including nested ones, in the same order on every process."""
    import torch

    found: list[Any] = []
    for leaf in leaves(list(arguments)):
        if isinstance(leaf, torch.nn.Module | torch.optim.Optimizer) and not any(leaf is other for other in found):
            found.append(leaf)
    return found


def states(objects: Sequence[Any]) -> list[Any]:
    """Return the ``state_dict()`` of each object, whole and on the CPU. Every process must call this: sharded tensors are gathered."""
    return [on_host(thing.state_dict()) for thing in objects]


def restore(objects: Sequence[Any], kept: Sequence[Any]) -> None:
    """Load the states of their copies into these objects."""
    for thing, state in zip(objects, kept, strict=True):
        thing.load_state_dict(state)


def on_host(data: Any) -> Any:
    """Return ``data`` with every tensor whole, on the CPU, in its own memory and detached from its graph."""
    import torch

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        whole = leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf
        return whole.detach().cpu().clone()

    return map_leaves(move, data)
