"""The ATen calls that implement an operator, and the variants of their overloads.

The forward and backward pass of an operator are recorded on the CPU. Each recorded functional ATen call is then repeated on the
device with the same arguments: in the same way, with ``out=``, and in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from accelkit_conformance.oracle.sample_transfer import tensors

_EACH = 2


class Calls(TorchDispatchMode):
    """Dispatch mode that records the first functional ATen calls of each overload, with copies of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[tuple[Any, Any, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = self.calls.setdefault(func.name(), [])
        if (
            len(kept) < _EACH
            and func.namespace == "aten"
            and not func._schema.is_mutable
            and not _is_view(func)
            and tensors((args, kwargs))
        ):
            kept.append((func, _copied(args), _copied(kwargs or {})))
        return func(*args, **(kwargs or {}))


def variants(func: Any) -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Yield the variants of an overload, the functional one first.

    Yields:
        The name of the variant, a function that calls it with the arguments of the functional overload, and whether it writes
        into its first argument.
    """
    yield func.name(), func, False
    packet = func.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [argument.name for argument in other._schema.arguments if argument.is_out]
        if outs and _types(other, without=outs) == _types(func):
            yield other.name(), _with_out(func, other, outs), False
    in_place = getattr(torch.ops.aten, packet.__name__ + "_", None)
    for name in in_place.overloads() if in_place is not None else ():
        other = getattr(in_place, name)
        if _types(other) == _types(func):
            yield other.name(), other, True


def _with_out(func: Any, other: Any, outs: list[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        like = [one for one in tree_flatten(func(*args, **kwargs))[0] if isinstance(one, torch.Tensor)]
        if len(like) != len(outs):
            raise NotImplementedError(f"{other.name()} has {len(outs)} outputs, and {func.name()} gives {len(like)} tensors")
        return other(
            *args, **kwargs, **{name: torch.empty(0, dtype=one.dtype, device=one.device) for name, one in zip(outs, like, strict=True)}
        )

    return call


def _types(func: Any, without: list[str] | tuple[()] = ()) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments if argument.name not in without]


def _is_view(func: Any) -> bool:
    return any(value.alias_info is not None for value in func._schema.returns)


def _copied(nested: Any) -> Any:
    """Return a copy of nested data with cloned tensors, because later calls may write into the originals."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, nested)


def calls_of(programs: Iterable[Callable[[], Any]]) -> list[tuple[Any, Any, Any]]:
    """Return the functional ATen calls that these programs make on the CPU, as ``(func, args, kwargs)``."""
    mode = Calls()
    for program in programs:
        with contextlib.suppress(Exception), mode:  # calls before an error still count
            program()
    return [call for kept in mode.calls.values() for call in kept]
