"""Fingerprints of collectives. Before data are sent, the processes compare digests of their calls and of descriptions of their data.

torch.distributed assumes that all processes call the same collective with the same shapes. If they do not, they wait for each other,
abort, or compute wrong numbers. The exchange of digests has the same size for every call, so it is safe even if the calls differ:

- In a small group (of at most ``communicator.SMALL_GROUP`` processes), or without gloo, each process sends every other process a packet
  with its own digests. Small data can be sent in the packet, which saves a second exchange.
- In a large group, the processes determine the minimum and the maximum of each digest, in log2(size) rounds. If the minimum
  equals the maximum, the digest is the same on all processes. Small data are then sent in packets, as in a small group.

A digest has 64 bits. Two different descriptions have equal digests with probability 2**-64; the difference is then not noticed. The
descriptions themselves are exchanged only if digests differ. ``benchmarks/collective_verification.py`` measures the cost. The module
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
_TAG = 0xF1


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """Result of ``verify``. If the call was not verified, the result says nothing about the other processes.

    Attributes:
        call: The call.
        parts: The payload of each process, ordered by rank in the group. Empty if the payload was None.
        is_alike: Whether all processes gave the same ``outline``, the description of their data. True if the call was not verified.
    """

    call: call_log.Call
    parts: list[bytes]
    is_alike: bool


def verify(
    communicator: Communicator,
    name: str,
    outline: str = "",
    payload: bytes | None = None,
    *,
    differing: str | None = None,
    is_optional: bool = False,
) -> Verified:
    """Record a call, and verify that every process of the group makes the same call. Verification waits for every process.

    Args:
        communicator: The communicator of the group.
        name: Name of the call, with those of its arguments that must be the same on all processes.
        outline: Description of this process's data.
        payload: The bytes to send to the other processes, at most INLINE_BYTES. None if no process needs them. Processes that make the same
            call with the same outline must either all give a payload or all give None.
        differing: Hint for the error that is raised if the outlines differ. None if they may differ.
        is_optional: If True, a call without a payload is verified only if the communicator's mode requires it. All other calls are always
            verified. An unverified call does not wait for the other processes.

    Raises:
        CollectiveError: If processes make different calls, made different unverified calls before, or give different outlines although
            ``differing`` is given. The error is also raised if a process makes no call before the timeout of the group. In that case,
            the error names the missing processes and their last calls.
    """
    what = f"{name} of {outline}" if outline else name
    history = communicator.history
    if is_optional and payload is None and not history.is_due(communicator.verification, what):
        history.add_unverified(what)
        return Verified(call_log.record_call(what, communicator.group, communicator.ranks, is_verified=False), [], is_alike=True)
    call = call_log.record_call(what, communicator.group, communicator.ranks)
    with watching(call):
        digests = _digest(name), _digest(outline), history.digest
        (is_same_call, is_alike, is_same_history), parts = _compare(communicator, digests, payload, may_differ=differing is None)
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
    return Verified(call, parts, is_alike)


@contextlib.contextmanager
def watching(call: call_log.Call) -> Iterator[None]:
    """Inside the ``with`` block, turn each error of torch.distributed, except torch.OutOfMemoryError, into a CollectiveError.

    The CollectiveError names the ranks that did not make ``call`` or made a different call, if there are any and the call log can be read.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # torch's error classes are subclasses of RuntimeError; gloo raises a plain RuntimeError
        raise desync_report.explain(call, error) from error


def exchange(communicator: Communicator, call: call_log.Call, mine: bytes) -> list[bytes]:
    """Send ``mine`` to all processes of the group, and return the bytes that each process sent, in the order of the group.

    The processes may send different numbers of bytes. Call this only after ``verify`` has compared the digests of ``call``, and only if
    every process is certain to make this exchange.

    Raises:
        CollectiveError: If torch.distributed raises an error, for example because a process does not take part before the timeout.
    """
    with watching(call):
        return communicator.exchange(mine)


def outline_of(data: Any) -> str:
    """Return the structure of nested data with the dtype and shape of each tensor, and its device type if it is not on the host.

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


def _compare(
    communicator: Communicator, digests: tuple[bytes, bytes, bytes], payload: bytes | None, *, may_differ: bool
) -> tuple[tuple[bool, ...], list[bytes]]:
    """Compare the digests of all processes, and exchange the payloads.

    ``digests`` are those of the call's name, of its outline (the description of this process's data) and of the unverified calls before it.
    ``may_differ`` says whether the outlines may differ; every other difference is an error.

    Returns:
        For each digest, whether it is the same on all processes; and a list of the payloads of all processes. The list is empty if
        ``payload`` is None. In a large group, it is also empty if the digests differ in a way that is an error.
    """
    if not communicator.is_large:
        heads, parts = _exchange_packets(communicator, digests, payload or b"")
        return tuple(len({head[place] for head in heads}) == 1 for place in range(3)), parts if payload is not None else []
    numbers = [int.from_bytes(digest, "little", signed=True) for digest in digests]
    smallest = communicator.minimum([*numbers, *(~number for number in numbers)], _TAG)  # ~ turns the largest number into the smallest
    are_same = tuple(low == ~inverted for low, inverted in zip(smallest[:3], smallest[3:], strict=True))
    is_same_call, is_alike, is_same_history = are_same
    if payload is None or not (is_same_call and is_same_history and (is_alike or may_differ)):
        return are_same, []  # a process whose outline is different may have no payload, and would not send a packet
    return are_same, _exchange_packets(communicator, digests, payload)[1]


def _exchange_packets(
    communicator: Communicator, digests: tuple[bytes, bytes, bytes], payload: bytes
) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    """Send ``digests`` and ``payload`` to all processes, and return what each process sent.

    Returns:
        Two lists with one item per process. An item of the first list is a tuple of the three digests and the length of the payload. An
        item of the second list is the payload.
    """
    packet = bytearray(PACKET_BYTES)
    _HEAD.pack_into(packet, 0, *digests, len(payload))
    packet[_HEAD.size : _HEAD.size + len(payload)] = payload
    packets = communicator.exchange_packets(packet)
    heads = [_HEAD.unpack_from(other) for other in packets]
    return heads, [other[_HEAD.size : _HEAD.size + head[3]] for other, head in zip(packets, heads, strict=True)]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _tell_each_other(communicator: Communicator, call: call_log.Call, mine: str) -> dict[int, str]:
    """Send the description ``mine`` to all processes of the group, and return the description of each process, by its rank in the job.

    Descriptions are cut off after 500 characters. All processes have compared the same digests. So if one process finds a difference and
    calls this function, every process does.
    """
    told = exchange(communicator, call, json.dumps(mine[:500]).encode())
    return {rank: json.loads(text) for rank, text in zip(communicator.ranks, told, strict=True)}
