"""Log of collective calls, which each rank writes to the store of the process group.

When a collective times out, the waiting ranks read the log and report which ranks are missing.

The entry of rank 3 is the JSON text under the key ``accelkit/calls/3``: ``at`` (host and process ID), ``last`` (the last call, with a mark
if ``fingerprint`` did not verify it), ``groups`` (the number of calls so far, by the name of the process group). Setting a key is cheap:
torch's TCPStore does not wait for a reply.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from accelkit.errors import CollectiveError

READING_SECONDS = 10.0
_LONGEST_CALL = 300
_BATCH = 256
_SAME_CALLS = (
    "every process must make the same calls in the same order: look for a call that some processes skip because of an `if` or an exception"
)

_numbers: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One call of a collective by this process.

    Attributes:
        what: The name of the collective and its data, such as ``gather of float32[2, 3]``.
        group: The process group; ``group_name`` is torch's name for it.
        number: The number of this call among the calls of all Runtimes in this group, starting at 1.
        ranks: The members' ranks in the job.
        is_verified: False if ``fingerprint.verify`` skips the comparison of the call with the calls of the other processes.
    """

    what: str
    group: dist.ProcessGroup
    number: int
    ranks: Sequence[int]
    is_verified: bool

    @property
    def described(self) -> str:
        """The call as the log shows it."""
        return self.what[:_LONGEST_CALL] + ("" if self.is_verified else " (not verified)")


def record_call(what: str, group: dist.ProcessGroup, ranks: Sequence[int], *, is_verified: bool = True) -> Call:
    """Record this process's next collective call in the group, and return the ``Call``.

    Args:
        what: The name of the collective and its data.
        group: The process group.
        ranks: The members' ranks in the job.
        is_verified: False if ``fingerprint.verify`` skips the comparison of the call with the calls of the other processes.
    """
    number = _numbers.get(group, 0) + 1
    _numbers[group] = number
    call = Call(what, group, number, ranks, is_verified)
    store = _store()
    if store is not None:
        counts = {member.group_name: count for member, count in _numbers.items()}
        note = {"at": f"{socket.gethostname()}, process {os.getpid()}", "last": call.described, "groups": counts}
        store.set(_key(dist.get_rank()), json.dumps(note))
    return call


def explain(call: Call, error: BaseException) -> CollectiveError:
    """Return an error that explains why this call failed. The error names the ranks that did not make the call or made a different call.

    Reads the log, for at most READING_SECONDS.

    Args:
        call: The call of this process.
        error: The exception that torch.distributed raised.
    """
    reason = _plain(error)
    mine = dist.get_rank()
    notes = _read_notes([rank for rank in call.ranks if rank != mine])
    absent = {rank: note for rank, note in notes.items() if _count(note, call) < call.number}
    this = f"{call.what} (call {call.number}) on rank {mine}"
    if absent:
        seen = "; ".join(_last_seen(rank, note) for rank, note in _first(absent.items()))
        waited = "timed out waiting for" if is_timeout(error) else "lost the connection while it waited for"
        hint = (
            _SAME_CALLS + "; ACCELKIT_TIMEOUT or Runtime(process_group=ProcessGroupOptions(timeout=seconds)) sets the time limit"
            if is_timeout(error)
            else _DIED
        )
        return CollectiveError(f"{this} {waited} {_ranks(list(absent))}", why=f"{seen}; {reason}", hint=hint)
    if any(_has_diverged(note, call, is_timeout(error)) for note in notes.values()):
        descriptions = {rank: f"call {_count(note, call)}, {note['last']}" for rank, note in notes.items()}
        descriptions[mine] = f"call {call.number}, {call.described}"
        failure = different(f"{this} failed: the processes called different collectives", dict(sorted(descriptions.items())))
        return CollectiveError(failure.what, why=f"{failure.why}; {reason}", hint=failure.hint)
    if len(notes) < len(call.ranks) - 1:
        return CollectiveError(f"{this} failed", why=f"{reason}; the store that holds the call log does not answer", hint=_DIED)
    return CollectiveError(f"{this} failed, although every process made the call", why=reason, hint=_DIED)


_DIED = "look at the output of the other processes: the first error of the job is the cause"


def different(what: str, descriptions: Mapping[int, str], hint: str = _SAME_CALLS) -> CollectiveError:
    """Return the error for processes that made different calls or gave different data.

    Args:
        what: The message of the error, which says what differs.
        descriptions: The call or the data of each rank. Ranks with the same description are listed together.
        hint: The hint of the error, which says what the user can do.
    """
    alike: dict[str, list[int]] = {}
    for rank, description in descriptions.items():
        alike.setdefault(description, []).append(rank)
    return CollectiveError(what, why="; ".join(f"{_ranks(ranks)}: {text}" for text, ranks in _first(alike.items())), hint=hint)


def _store() -> Any:
    """Return the store of the default process group, or None if its backend has no store (MPI)."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD.get_group_store()


def _key(rank: int) -> str:
    return f"accelkit/calls/{rank}"


def _read_notes(ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the log entries by rank. The entry of a rank that has not made a call yet is empty.

    Ranks are left out if the store does not respond in time: the process that hosts the store may have ended or may be hanging.
    """
    notes: dict[int, dict[str, Any]] = {}

    def read() -> None:
        store, wanted = _store(), list(ranks)
        for first in range(0, len(wanted) if store is not None else 0, _BATCH):
            try:
                notes.update(_read_batch(store, wanted[first : first + _BATCH]))
            except RuntimeError:
                return  # the store is gone; the caller sees this from the missing entries

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(READING_SECONDS)
    return dict(notes)


def _read_batch(store: Any, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the log entries of these ranks. Sends two requests, and a few more for each rank that has not made a call yet.

    After a timeout, every rank of a job reads the entries of all other ranks. With one request for each rank, this would take minutes.
    """
    keys = [_key(rank) for rank in ranks]
    if store.check(keys):
        texts = store.multi_get(keys) if store.has_extended_api() else map(store.get, keys)
        return dict(zip(ranks, map(json.loads, texts), strict=True))
    if len(ranks) == 1:
        return {ranks[0]: {}}
    half = len(ranks) // 2
    return _read_batch(store, ranks[:half]) | _read_batch(store, ranks[half:])


def _count(note: Mapping[str, Any], call: Call) -> int:
    count: int = note.get("groups", {}).get(call.group.group_name, 0)
    return count


def _has_diverged(note: Mapping[str, Any], call: Call, has_timed_out: bool) -> bool:
    """Return whether a rank made a different call than ``call`` under the same number, or only one of these two calls was verified.

    ``note`` is the log entry of the rank. If it shows later calls although this process timed out while it verified ``call``, the rank did
    not verify its own call.
    """
    count = _count(note, call)
    return (count == call.number and note["last"] != call.described) or (count > call.number and call.is_verified and has_timed_out)


def _last_seen(rank: int, note: Mapping[str, Any]) -> str:
    return f"rank {rank} ({note['at']}) last called {note['last']}" if note else f"rank {rank} has made no call yet"


def is_timeout(error: BaseException) -> bool:
    """Return whether an error of torch.distributed is a timeout. If a process has ended, torch.distributed raises another error."""
    return "timed out" in str(error).lower() or "timeout" in str(error).lower()


def _plain(error: BaseException) -> str:
    """Return the first sentence of an error of torch.distributed, without the location in its source code."""
    first = (str(error).splitlines() or [""])[0]
    return re.sub(r"^\[(?:enforce fail at )?[^\]\s]*:\d+\]\s*", "", first).partition(". This is typically")[0] or type(error).__name__


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _first(items: Iterable[Any]) -> list[Any]:
    return list(items)[:8]
