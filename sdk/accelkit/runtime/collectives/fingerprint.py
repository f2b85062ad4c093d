"""Fingerprints of collectives. Before data are sent, each process sends the others a packet that describes its call and its data.

torch.distributed assumes that all processes call the same collective with the same shapes. If they do not, they wait for each other,
abort, or compute wrong numbers. A packet has the same size for every call, so exchanging packets is always safe. Small data can be
sent in the packet, which saves a second exchange. ``benchmarks/collective_verification.py`` measures the cost. The module
``verification`` says which calls are verified.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from accelkit.pytree import tree_leaves
from accelkit.runtime.collectives import call_log, desync_report
from accelkit.runtime.collectives.communicator import HOST, Communicator
from accelkit.runtime.collectives.verification import VARIABLE

_HEAD = struct.Struct("<8s8s8sB")  # digests of the call, of the outline of the data and of unverified calls; length of the payload
PACKET_BYTES = 128
_UNVERIFIED = (
    f"results since the last verified call may be wrong: run again with {VARIABLE}=always, which stops at the first call that differs"
)
INLINE_BYTES = PACKET_BYTES - _HEAD.size


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """Result of ``verify``. If the call was not verified, the result says nothing about the other processes.

    Attributes:
        call: The call.
        parts: The payload of each process, in the order of the group. Empty if the call was not verified.
        is_alike: Whether all processes gave the same ``outline``, the description of their data. True if the call was not verified.
    """

    call: call_log.Call
    parts: list[bytes]
    is_alike: bool


def verify(
    communicator: Communicator, name: str, outline: str = "", payload: bytes | None = b"", *, differing: str | None = None
) -> Verified:
    """Record a call. Unless the communicator's mode says otherwise, verify that every process of the group makes the same call.

    Args:
        communicator: The communicator of the group.
        name: Name of the call, with the arguments that must agree.
        outline: Description of this process's data.
        payload: The bytes to send to the other processes, at most INLINE_BYTES. None if the call needs nothing from the exchange. A call
            can be left unverified only if its payload is None; with ``b''``, the call is always verified.
        differing: Hint for the error that is raised if the outlines differ. None if they may differ.

    Raises:
        CollectiveError: If processes make different calls, made different unverified calls before, or give different outlines although
            ``differing`` is given. Also if a process makes no call before the timeout of the group; the error then names the missing
            processes and their last calls.
    """
    what = f"{name} of {outline}" if outline else name
    history = communicator.history
    if payload is None and not history.is_due(communicator.verification, what):
        history.add_unverified(what)
        return Verified(call_log.record_call(what, communicator.group, communicator.ranks, is_verified=False), [], is_alike=True)
    call = call_log.record_call(what, communicator.group, communicator.ranks)
    sent = payload or b""
    packet = bytearray(PACKET_BYTES)
    _HEAD.pack_into(packet, 0, _digest(name), _digest(outline), history.digest, len(sent))
    packet[_HEAD.size : _HEAD.size + len(sent)] = sent
    with watching(call):
        packets = communicator.exchange_packets(packet)
    heads = [_HEAD.unpack_from(other) for other in packets]
    is_same_call, is_alike, is_same_history = (len({head[place] for head in heads}) == 1 for place in range(3))
    unverified = f"{history.num_unverified} unverified calls, the last {history.last_unverified or 'none'}; now {what}"
    history.forget_unverified()
    if not is_same_history:
        descriptions = _tell_each_other(communicator, call, unverified)
        raise desync_report.different("the processes made different calls that were not verified", descriptions, _UNVERIFIED)
    if not is_same_call or (differing is not None and not is_alike):
        descriptions = _tell_each_other(communicator, call, f"call {call.number}, {what}" if not is_same_call else outline)
        if not is_same_call:
            raise desync_report.different("the processes called different collectives", descriptions)
        raise desync_report.different(f"{name} cannot combine the data of the processes", descriptions, differing or "")
    if is_alike:
        history.add_verified(what)
    return Verified(call, [other[_HEAD.size : _HEAD.size + head[3]] for other, head in zip(packets, heads, strict=True)], is_alike)


@contextlib.contextmanager
def watching(call: call_log.Call) -> Iterator[None]:
    """Turn an error of torch.distributed into a CollectiveError that names the processes that did not make the call."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # torch's error classes are subclasses of RuntimeError; gloo raises a plain RuntimeError
        raise desync_report.explain(call, error) from error


def exchange(communicator: Communicator, call: call_log.Call, mine: bytes) -> list[bytes]:
    """Send ``mine``, of any length, to all processes, and return the bytes of each process.

    Call this only after the processes have exchanged the packets of ``call``.
    """
    with watching(call):
        return communicator.exchange(mine)


def outline_of(data: Any) -> str:
    """Return the structure of nested data with the dtype, shape and device type of each tensor.

    For example, ``{a: float32[2, 3], b: [int64[] on xpu]}``.
    """
    if isinstance(data, torch.Tensor):
        place = "" if data.device.type == HOST else f" on {data.device.type}"
        return f"{str(data.dtype).removeprefix('torch.')}{list(data.shape)}{place}"
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{key}: {outline_of(value)}" for key, value in data.items()) + "}"
    if isinstance(data, list | tuple):
        return "[" + ", ".join(map(outline_of, data)) + "]"
    inside = tree_leaves(data)
    if len(inside) == 1 and inside[0] is data:
        return type(data).__name__
    return f"{type(data).__name__}({', '.join(map(outline_of, inside))})"


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _tell_each_other(communicator: Communicator, call: call_log.Call, mine: str) -> dict[int, str]:
    """Send the description ``mine`` to all processes, and return the description of each process, by rank.

    All processes have compared the same packets. So if one process finds a difference and calls this function, every process does.
    """
    told = exchange(communicator, call, json.dumps(mine[:500]).encode())
    return {rank: json.loads(text) for rank, text in zip(communicator.ranks, told, strict=True)}
