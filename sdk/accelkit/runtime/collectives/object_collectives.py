"""Collectives and point-to-point messages with Python objects. Objects are pickled and signed with the secret of the job. ``gather`` and
``broadcast`` first copy the tensors in an object to the host.

Received data are unpickled only if the signature is valid. A job without a secret trusts anyone who can reach its ports, as
torch.distributed does.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

import torch
import torch.distributed as dist

from accelkit import job_secret
from accelkit.pytree import tree_map
from accelkit.runtime.collectives import transport
from accelkit.runtime.collectives.communicator import HOST, Communicator, device_types
from accelkit.runtime.collectives.fingerprint import INLINE_BYTES, exchange, verify

_LENGTH = struct.Struct("<Q")


class _FromDevice:
    """Marks a host copy of a tensor that was on the sender's device. The receiver moves the copy to its own device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def gather(communicator: Communicator, data: Any) -> list[Any]:
    """Return the object of each process, in the order of the group. Tensors on the sender's device are moved to this process's device.

    Raises:
        CollectiveError: If a process does not make the call, or the signature of a received object is not valid.
    """
    mine = _pickled(data, communicator.ranks[communicator.rank])
    fits = len(mine) < INLINE_BYTES
    verified = verify(communicator, "gather of objects", payload=b"\1" + mine if fits else b"\0")
    all_fit = all(part[:1] == b"\1" for part in verified.parts)
    everyone = [part[1:] for part in verified.parts] if all_fit else exchange(communicator, verified.call, mine)
    return [_placed(theirs, rank, communicator) for theirs, rank in zip(everyone, communicator.ranks, strict=True)]


def broadcast(communicator: Communicator, data: Any, from_process: int = 0) -> Any:
    """Return the object of process ``from_process`` (a rank in the job). That process gets ``data`` itself, and the others get a copy.

    The data of the other processes are ignored. accelkit does not verify that every process makes this call: use it only where this is
    certain.

    Raises:
        CollectiveError: If the received object is not signed by process ``from_process`` with this job's secret.
    """
    is_source = communicator.ranks[communicator.rank] == from_process
    mine = _pickled(data, from_process) if is_source else b""
    length = torch.frombuffer(bytearray(_LENGTH.pack(len(mine))), dtype=torch.uint8)
    (size,) = _LENGTH.unpack(bytes(transport.broadcast(communicator, length, from_process).tolist()))
    sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if is_source else torch.empty(size, dtype=torch.uint8)
    received = transport.broadcast(communicator, sent, from_process)
    return data if is_source else _placed(received.numpy().tobytes(), from_process, communicator)


def send(data: Any, rank: int, group: dist.ProcessGroup | None = None) -> None:
    """Send an object to the process whose rank in the job is ``rank``. That process must call ``receive``.

    Unlike ``gather`` and ``broadcast``, this function does not copy tensors to the host before it pickles them.
    """
    text = job_secret.signed(pickle.dumps(data), dist.get_rank())
    device = _travelling_on(group)
    for part in (_LENGTH.pack(len(text)), text):
        dist.send(torch.frombuffer(bytearray(part), dtype=torch.uint8).to(device), dst=rank, group=group)


def receive(rank: int, group: dist.ProcessGroup | None = None) -> Any:
    """Receive an object from the process whose rank in the job is ``rank``. That process must call ``send``.

    Raises:
        CollectiveError: If the received object is not signed by that process with this job's secret.
    """
    device = _travelling_on(group)
    length = torch.empty(_LENGTH.size, dtype=torch.uint8, device=device)
    dist.recv(length, src=rank, group=group)
    (size,) = _LENGTH.unpack(bytes(length.tolist()))
    text = torch.empty(size, dtype=torch.uint8, device=device)
    dist.recv(text, src=rank, group=group)
    return _unpickled(text.cpu().numpy().tobytes(), rank)


def _travelling_on(group: dist.ProcessGroup | None) -> torch.device:
    """Return the device from which a group sends objects: the host, or another device if the group has no backend for the host."""
    types = device_types(group)
    return torch.device(HOST if HOST in types else types[0])


def _pickled(data: Any, rank: int) -> bytes:
    def sent(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach() if leaf.device.type == HOST else _FromDevice(leaf.detach().cpu())

    return job_secret.signed(pickle.dumps(tree_map(sent, data)), rank)


def _placed(text: bytes, rank: int, communicator: Communicator) -> Any:
    data = _unpickled(text, rank)
    return tree_map(lambda leaf: leaf.tensor.to(communicator.device) if isinstance(leaf, _FromDevice) else leaf, data)


def _unpickled(text: bytes, rank: int) -> Any:
    return pickle.loads(job_secret.checked(text, rank))  # noqa: S301 # from a process of the job, which runs the same program
