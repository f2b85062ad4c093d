"""Collectives on nested data over the processes of a group. The methods of a Runtime call them if the job has several processes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from accelkit.pytree import tree_leaves, tree_map
from accelkit.runtime.collectives import object_collectives, reduction, transport
from accelkit.runtime.collectives.autograd import with_gradients
from accelkit.runtime.collectives.communicator import Communicator
from accelkit.runtime.collectives.fingerprint import INLINE_BYTES, exchange, outline_of, verify, watching
from accelkit.runtime.collectives.tensors import check_dtypes, tensors_of

T = TypeVar("T")

_ALIKE = "give every process the same structure, dtypes and shapes, on the same kind of device"
_PADDABLE = "give every process the same structure, and tensors with the same numbers of dimensions"
_PAD = f"{_ALIKE}: pad_across_processes before gather, or gather_for_metrics(use_gather_object=True)"


def gather(communicator: Communicator, data: T, *, sync_grads: bool = False) -> T:
    """See ``Runtime.gather``."""
    tensors = tensors_of(data, "gather")
    differentiable = [sync_grads and torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
    name = f"gather with gradients of tensors {[i for i, has in enumerate(differentiable) if has]}" if any(differentiable) else "gather"
    payload = transport.inline(tensors) if communicator.sends_inline else None
    verified = verify(communicator, name, outline_of(data), payload, differing=_PAD, is_optional=True)
    with watching(verified.call):
        if payload is not None:
            rows = transport.rows_from_inline(tensors, verified.parts)
        else:
            rows = [transport.gather_rows(communicator, tensor) for tensor in tensors]
    gathered = [stacked.flatten(0, 1) if stacked.dim() > 1 else stacked for stacked in rows]
    if any(differentiable):
        gathered = with_gradients(communicator, gathered, tensors, differentiable)
    return _rebuilt(data, gathered)


def gather_objects(communicator: Communicator, data: Any) -> list[Any]:
    """Return one list of all processes' items, in the order of ranks. If ``data`` is a list or tuple, its elements are the items.

    Any other ``data`` is a single item.
    """
    everyone = object_collectives.gather(communicator, data)
    return [item for theirs in everyone for item in (theirs if isinstance(theirs, list | tuple) else [theirs])]


def reduce(communicator: Communicator, data: T, op: reduction.Operation) -> T:
    """See ``Runtime.reduce``. The result is not multiplied by the argument ``scale`` of ``Runtime.reduce``."""
    tensors = tensors_of(data, "reduce")
    check_dtypes(tensors, op)
    payload = transport.inline(tensors) if communicator.sends_inline and isinstance(op, str) else None
    verified = verify(communicator, f"reduce ({reduction.name_of(op)})", outline_of(data), payload, differing=_ALIKE, is_optional=True)
    with torch.no_grad(), watching(verified.call):
        if payload is not None and isinstance(op, str):
            rows = transport.rows_from_inline(tensors, verified.parts)
            reduced = [reduction.reduce_rows(stacked, tensor, op) for stacked, tensor in zip(rows, tensors, strict=True)]
        else:
            reduced = [reduction.reduce_tensor(communicator, tensor, op) for tensor in tensors]
    return _rebuilt(data, reduced)


def broadcast(communicator: Communicator, data: T, from_process: int) -> T:
    """See ``Runtime.broadcast``."""
    if from_process not in communicator.ranks:
        raise ValueError(f"from_process is {from_process}; the processes of the group are {list(communicator.ranks)}")
    found = tree_leaves(data)
    is_source, is_tensors = communicator.ranks[communicator.rank] == from_process, all(isinstance(leaf, torch.Tensor) for leaf in found)
    payload = (transport.inline(found) if is_source else b"") if is_tensors else None
    verified = verify(
        communicator, f"broadcast from {from_process}", outline_of(data), (b"" if payload is None else payload), differing=None
    )
    sent = verified.parts[communicator.ranks.index(from_process)]
    if not (verified.is_alike and is_tensors):  # outlines are alike only if the data of the other processes are tensors too
        with watching(verified.call):
            received: T = object_collectives.broadcast(communicator, data, from_process)
        return received
    if is_source and payload is not None:
        return data
    with watching(verified.call):
        if sent:
            return _rebuilt(data, [rows[0] for rows in transport.rows_from_inline(found, [sent])])
        values = [transport.broadcast(communicator, tensor, from_process) for tensor in found]
    return data if is_source else _rebuilt(data, values)


def pad(communicator: Communicator, data: T, dim: int, pad_index: float, pad_first: bool) -> T:
    """See ``Runtime.pad_across_processes``."""
    tensors = tensors_of(data, "pad_across_processes")
    sizes = [tensor.shape[dim] if -tensor.dim() <= dim < tensor.dim() else 0 for tensor in tensors]
    mine = struct.pack(f"<{len(sizes)}Q", *sizes)
    dims = ", ".join(str(tensor.dim()) for tensor in tensors)  # if these differ, a negative dim refers to different dimensions
    outline = f"{len(sizes)} tensors (numbers of dimensions: {dims})"
    verified = verify(
        communicator, f"pad_across_processes (dim {dim})", outline, mine if len(mine) <= INLINE_BYTES else b"", differing=_PADDABLE
    )
    everyone = verified.parts if len(mine) <= INLINE_BYTES else exchange(communicator, verified.call, mine)
    longest = [max(theirs) for theirs in zip(*(struct.unpack(f"<{len(sizes)}Q", part) for part in everyone), strict=True)]
    padded = []
    for tensor, size, wanted in zip(tensors, sizes, longest, strict=True):
        if size == wanted:
            padded.append(tensor)
            continue
        shape = list(tensor.shape)
        shape[dim] = wanted - size
        filling = tensor.new_full(shape, pad_index)
        padded.append(torch.cat([filling, tensor] if pad_first else [tensor, filling], dim))
    return _rebuilt(data, padded)


def _rebuilt(data: T, replacements: list[torch.Tensor]) -> T:
    ordered: Iterator[torch.Tensor] = iter(replacements)
    replace: Callable[[Any], Any] = lambda _: next(ordered)  # noqa: E731
    return tree_map(replace, data)
