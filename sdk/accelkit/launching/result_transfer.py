"""What comes back from processes that were started from Python: trained weights, optimizers' state, a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelkit.pytree import leaves, map_leaves


def trained(arguments: Sequence[Any]) -> list[Any]:
    """The modules and optimizers in a function's arguments (nested ones too), in an order that every process finds."""
    import torch

    found: list[Any] = []
    for leaf in leaves(list(arguments)):
        if isinstance(leaf, torch.nn.Module | torch.optim.Optimizer) and not any(leaf is other for other in found):
            found.append(leaf)
    return found


def states(objects: Sequence[Any]) -> list[Any]:
    """Their ``state_dict()``, whole and on the CPU. Every process must call it: sharded tensors are gathered."""
    return [on_host(thing.state_dict()) for thing in objects]


def restore(objects: Sequence[Any], kept: Sequence[Any]) -> None:
    """Give these objects the states of their copies."""
    for thing, state in zip(objects, kept, strict=True):
        thing.load_state_dict(state)


def on_host(data: Any) -> Any:
    """``data`` with every tensor whole, on the CPU, in memory of its own and without its graph."""
    import torch

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        whole = leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf
        return whole.detach().cpu().clone()

    return map_leaves(move, data)
