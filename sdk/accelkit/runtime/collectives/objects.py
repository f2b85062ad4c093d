"""Objects between processes: pickled, their tensors on the host while they travel.

Only processes that one trusts belong in a process group.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

import torch

from accelkit.nested import map_leaves
from accelkit.runtime.collectives import attendance, moving
from accelkit.runtime.collectives.meeting import HOST, INLINE_BYTES, Channel, exchange, meet, watching

_LENGTH = struct.Struct("<Q")


class _FromDevice:
    """A tensor that was on the sender's device and goes to the receiver's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def gather(channel: Channel, data: Any) -> list[Any]:
    """The object of each process, in the order of the group."""
    mine = _pickled(data)
    fits = len(mine) < INLINE_BYTES
    met = meet(channel, "gather of objects", payload=b"\1" + mine if fits else b"\0")
    all_fit = all(part[:1] == b"\1" for part in met.parts)
    everyone = [part[1:] for part in met.parts] if all_fit else exchange(channel, met.call, mine)
    return [_unpickled(theirs, channel) for theirs in everyone]


def broadcast(channel: Channel, call: attendance.Call, data: Any, from_process: int) -> Any:
    """The object of process ``from_process``, after they have met; there itself."""
    is_source = channel.ranks[channel.rank] == from_process
    mine = _pickled(data) if is_source else b""
    with watching(call):
        length = torch.frombuffer(bytearray(_LENGTH.pack(len(mine))), dtype=torch.uint8)
        (size,) = _LENGTH.unpack(bytes(moving.broadcast(channel, length, from_process).tolist()))
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if is_source else torch.empty(size, dtype=torch.uint8)
        received = moving.broadcast(channel, sent, from_process)
    if is_source:
        return data
    buffer = bytearray(size)
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(received)
    return _unpickled(bytes(buffer), channel)


def _pickled(data: Any) -> bytes:
    def sent(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach() if leaf.device.type == HOST else _FromDevice(leaf.detach().cpu())

    return pickle.dumps(map_leaves(sent, data))


def _unpickled(text: bytes, channel: Channel) -> Any:
    data = pickle.loads(text)  # noqa: S301 # from a process of the job, which runs the same program
    return map_leaves(lambda leaf: leaf.tensor.to(channel.device) if isinstance(leaf, _FromDevice) else leaf, data)
