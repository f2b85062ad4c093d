"""Reductions over processes, including reductions of dtypes that a backend does not support.

float16, bfloat16 and float8 are reduced in float32 and then rounded once. bool, int16, uint16 and uint32 are reduced in a wider integer
type, and uint64 in int64. Complex numbers are reduced as pairs of real numbers, except in products: for a product, the complex numbers are
gathered and then multiplied. The sum of bools is True if any is True; their product is True if all are True.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from accelkit.runtime.addresses import address_of
from accelkit.runtime.collectives import transport
from accelkit.runtime.collectives.communicator import Communicator

Operation = str | dist.ReduceOp | dist.ReduceOp.RedOpType

_NAMED: dict[str, tuple[dist.ReduceOp.RedOpType, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "sum": (dist.ReduceOp.SUM, torch.add),
    "mean": (dist.ReduceOp.SUM, torch.add),
    "max": (dist.ReduceOp.MAX, torch.maximum),
    "min": (dist.ReduceOp.MIN, torch.minimum),
    "product": (dist.ReduceOp.PRODUCT, torch.mul),
}
_WIDER = {
    torch.bool: torch.int32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.complex32: torch.complex64,
}
_SIGN = -(2**63)


def name_of(op: Operation) -> str:
    """Return the name of the operation for log entries and errors, such as ``sum`` or ``BAND``."""
    return (
        op if isinstance(op, str) else next((name for name, kind in dist.ReduceOp.RedOpType.__members__.items() if op == kind), "ReduceOp")
    )


def reduce_tensor(communicator: Communicator, tensor: torch.Tensor, op: Operation) -> torch.Tensor:
    """Reduce the tensor over the group with one ``all_reduce``, or with one ``all_gather`` for the product of complex numbers.

    Returns:
        A new tensor with the same dtype and on the same device. The result is the same on all processes.
    """
    values = _widened(transport.materialised(transport.on_communicator_device(communicator, tensor)), op)
    if op == "product" and values.is_complex():
        return _narrowed(_folded(transport.gather_rows(communicator, values), op), tensor, op)
    if values.is_complex():
        values = torch.view_as_real(values)
    if op in ("max", "min") and values.is_floating_point():
        values = _extremum(communicator, values, op)
    elif values.numel():
        values = values.clone() if address_of(values) == address_of(tensor) else values  # always copied if the device has no addresses
        dist.all_reduce(values, _NAMED[op][0] if isinstance(op, str) else op, group=communicator.group)
    if op == "mean":
        values /= communicator.size
    return _narrowed(values, tensor, op)


def reduce_rows(rows: torch.Tensor, like: torch.Tensor, op: str) -> torch.Tensor:
    """Reduce values that were gathered from all processes.

    The values are reduced one after another in the order of ranks, so the result is the same on all processes.

    Args:
        rows: The gathered values, stacked in the order of ranks: a tensor of shape ``[world_size, *shape]``.
        like: A tensor with the dtype, the device and the shape of the result. Its values are not used.
        op: ``sum``, ``mean``, ``max``, ``min`` or ``product``.
    """
    values = _folded(_widened(rows, op), op)
    return _narrowed(values / len(rows) if op == "mean" else values, like, op)


def named(op: Any) -> Operation:
    """Return the name that ``Runtime.reduce`` uses for a torch operation, such as ``mean`` for ``ReduceOp.AVG``.

    If ``Runtime.reduce`` has no name for the operation, return the operation itself.

    Raises:
        TypeError: If ``op`` is not a ``torch.distributed.ReduceOp``.
    """
    if not isinstance(op, dist.ReduceOp | dist.ReduceOp.RedOpType):
        raise TypeError(f"reduction is {op!r}; a name or a torch.distributed.ReduceOp is expected")
    if op == dist.ReduceOp.AVG:
        return "mean"
    return next((name for name, (theirs, _) in _NAMED.items() if op == theirs), op)


def _extremum(communicator: Communicator, values: torch.Tensor, op: Operation) -> torch.Tensor:
    """Return the maximum or minimum over the group. An element is NaN if it is NaN on any process, as in ``torch.maximum``.

    gloo's maximum of NaN and a number may be the number, so this function also reduces a mask of the NaNs.
    """
    is_nan, sign = values.isnan(), 1 if op == "max" else -1
    both = torch.stack([values.masked_fill(is_nan, -sign * math.inf), sign * is_nan.to(values.dtype)])
    if both.numel():
        dist.all_reduce(both, _NAMED[str(op)][0], group=communicator.group)
    return both[0].masked_fill(both[1] != 0, math.nan)


def _folded(rows: torch.Tensor, op: str) -> torch.Tensor:
    total = rows[0]
    for row in rows[1:]:
        total = _NAMED[op][1](total, row)
    return total


def _widened(values: torch.Tensor, op: Operation) -> torch.Tensor:
    if values.dtype == torch.uint64:
        signed = values.view(torch.int64)  # sums and products agree modulo 2**64; for max and min, flip the sign bit
        return signed ^ _SIGN if op in ("max", "min") else signed
    if values.is_floating_point() and values.dtype not in (torch.float32, torch.float64):
        return values.float()
    return values.to(_WIDER.get(values.dtype, values.dtype))


def _narrowed(values: torch.Tensor, like: torch.Tensor, op: Operation) -> torch.Tensor:
    if like.is_complex() and not values.is_complex():
        values = torch.view_as_complex(values)
    if like.dtype == torch.uint64:
        values = (values ^ _SIGN if op in ("max", "min") else values).view(torch.uint64)
    if like.dtype == torch.bool:
        values = values != 0
    return values.to(device=like.device, dtype=like.dtype).reshape(like.shape)
