"""Send tensors between processes: choose a device and a dtype for sending, and convert tensors to bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from accelkit.runtime.collectives import fingerprint
from accelkit.runtime.collectives.communicator import HOST, Communicator

_EVERY_BACKEND = frozenset({torch.float64, torch.float32, torch.int64, torch.int32, torch.int8, torch.uint8})


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat uint8 tensor that shares the memory of ``tensor``, which must be contiguous."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def inline(tensors: Sequence[torch.Tensor]) -> bytes | None:
    """Return the concatenated bytes of the tensors, or None if they cannot be sent in the packet that verifies a call.

    They can be sent in the packet if all tensors are on the host and have at most ``fingerprint.INLINE_BYTES`` bytes in all. Processes
    whose tensors have the same dtypes, shapes and device types either all get bytes or all get None.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size > fingerprint.INLINE_BYTES or not all(tensor.device.type == HOST for tensor in tensors):
        return None
    packed = bytearray(size)
    start = 0
    for tensor in tensors:
        if count := tensor.numel() * tensor.element_size():
            torch.frombuffer(packed, dtype=torch.uint8, count=count, offset=start).copy_(as_bytes(materialised(tensor)))
        start += count
    return bytes(packed)


def materialised(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor detached and contiguous, with lazy conjugation and negation resolved, so that its memory holds its values."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def rows_from_inline(tensors: Sequence[torch.Tensor], parts: Sequence[bytes]) -> list[torch.Tensor]:
    """Unpack the bytes that ``inline`` packed on each process.

    Args:
        tensors: Tensors with the shapes and dtypes of the packed tensors. Their values are not used.
        parts: The packed bytes, one item per process.

    Returns:
        For each tensor, the stacked values of all processes, of shape ``[processes, *shape]``, on the host.
    """
    stacked = [torch.empty((len(parts), *tensor.shape), dtype=tensor.dtype) for tensor in tensors]
    for place, part in enumerate(parts):
        start = 0
        for rows in stacked:
            row = as_bytes(rows[place])
            if row.numel():
                row.copy_(torch.frombuffer(bytearray(part[start : start + row.numel()]), dtype=torch.uint8))
            start += row.numel()
    return stacked


def gather_rows(communicator: Communicator, tensor: torch.Tensor) -> torch.Tensor:
    """Gather tensors that have the same shape, dtype and device type on all processes.

    Returns:
        The stacked tensors, of shape ``[processes, *shape]``, on the device of ``tensor``.
    """
    mine = carried(communicator, tensor)
    rows = torch.empty((communicator.size, *tensor.shape), dtype=tensor.dtype, device=mine.device)
    if tensor.numel():
        received = rows if mine.dtype == tensor.dtype else rows.view(communicator.size, -1).view(torch.uint8)
        sent = mine if mine.dtype == tensor.dtype else mine.reshape(-1)
        dist.all_gather(list(received.unbind(0)), sent, group=communicator.group)
    return rows.to(tensor.device)


def broadcast(communicator: Communicator, tensor: torch.Tensor, from_process: int) -> torch.Tensor:
    """Return the tensor of process ``from_process`` (a rank in the job), on the device of ``tensor``.

    ``tensor`` must have the same shape, dtype and device type on all processes. It is not changed.
    """
    mine = carried(communicator, tensor)
    if dist.get_rank() != from_process:
        mine = torch.empty_like(mine)
    if mine.numel():
        dist.broadcast(mine, from_process, group=communicator.group)
    return (
        mine.reshape(-1).view(tensor.dtype).reshape(tensor.shape).to(tensor.device)
        if mine.dtype != tensor.dtype
        else mine.to(tensor.device)
    )


def carried(communicator: Communicator, tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor as a contiguous tensor on a device for which the group has a backend.

    The values are returned as flat bytes unless their dtype is in ``_EVERY_BACKEND``, the dtypes that every backend supports.
    """
    values = materialised(on_communicator_device(communicator, tensor))
    return values if values.dtype in _EVERY_BACKEND else as_bytes(values)


def on_communicator_device(communicator: Communicator, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on a device for which the group has a backend.

    If the group has a backend for the tensor's own device, the result is the tensor itself. Otherwise, it is a copy on the device of this
    process or, if the group has no backend for that device either, on the host.
    """
    if communicator.can_move(tensor):
        return tensor
    return tensor.to(communicator.device) if communicator.device.type in communicator.device_types else tensor.cpu()
