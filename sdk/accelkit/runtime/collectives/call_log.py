"""Log of collective calls, which each rank writes to the store of the process group.

When a collective times out, the module ``desync_report`` reads the log and reports which ranks are missing.

The entry of rank 3 is the JSON text under the key ``accelkit/calls/3``. It has these fields:

- ``at``: The host and the process ID.
- ``last``: The last call, with a mark if ``fingerprint`` did not verify it.
- ``group``: The process group in which the last call was made, by torch's name for the group.
- ``groups``: The number of calls so far in each process group, by torch's name for the group.

All ranks together write at most ENTRIES_PER_SECOND entries per second, because one process hosts the store. If a rank makes calls faster
than it may write entries, it skips entries, and a thread writes the newest one as soon as the limit allows. A rank's last call therefore
appears in the log within ``seconds_between_entries``, even while the rank waits or computes. It appears later, or never, only if the
process is killed or does not release the GIL.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

ENTRIES_PER_SECOND = 1000
_LONGEST_CALL = 300
_STOP_SECONDS = 1.0

_numbers: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One call to a collective by this process.

    Attributes:
        what: The name of the collective and a description of its data, such as ``gather of float32[2, 3]``.
        group: The process group; ``group_name`` is torch's name for it.
        number: The index of this call among all calls that this process has made in the group, counted from 1 over all Runtimes.
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
        what: The name of the collective and a description of its data, such as ``gather of float32[2, 3]``.
        group: The process group.
        ranks: The members' ranks in the job.
        is_verified: False if ``fingerprint.verify`` skips the comparison of the call with the calls of the other processes.
    """
    number = _numbers.get(group, 0) + 1
    _numbers[group] = number
    call = Call(what, group, number, ranks, is_verified)
    store = log_store()
    if store is not None:
        counts = {member.group_name: count for member, count in _numbers.items()}
        entry = {"last": call.described, "group": group.group_name, "groups": counts}
        _writer.put(store, key_of(dist.get_rank()), entry, seconds_between_entries())
    return call


def flush() -> None:
    """Write the newest entry of this process to the store, if it has not been written yet."""
    _writer.flush()


def seconds_between_entries() -> float:
    """Return the minimum time in seconds between two entries of one rank of this job."""
    return dist.get_world_size() / ENTRIES_PER_SECOND


def log_store() -> Any:
    """Return the store of the default process group, or None if the group has no store."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD.get_group_store()


def key_of(rank: int) -> str:
    """Return the key of a rank's entry in the store."""
    return f"accelkit/calls/{rank}"


class EntryWriter:
    """Writes entries to a store, with a minimum time between two entries. If entries come faster, only the newest is written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[Any, str, Mapping[str, Any]] | None = None  # None if it is written
        self._seconds, self._may_write_at = 0.0, 0.0
        self._is_late, self._is_stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, store: Any, key: str, entry: Mapping[str, Any], seconds: float) -> None:
        """Write an entry, with the host and the process ID added.

        If the minimum time since the previous entry has not passed, a thread writes the entry later, unless a newer entry replaces it.

        Args:
            store: The store. Setting a key is cheap: torch's TCPStore does not wait for a reply.
            key: The key of the entry.
            entry: The entry. It must not be changed after this call.
            seconds: The minimum time between this entry and the next.
        """
        with self._lock:
            self._newest, self._seconds = (store, key, entry), seconds
        if time.monotonic() >= self._may_write_at:
            self.flush()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="accelkit-call-log", daemon=True)
            self._thread.start()
            atexit.register(self.stop)
        self._is_late.set()

    def flush(self) -> None:
        """Write the newest entry now, if it is not written yet."""
        with self._lock, contextlib.suppress(RuntimeError):  # the host of the store has ended; the collective itself reports that
            if self._newest is not None:
                (store, key, entry), self._newest = self._newest, None
                self._may_write_at = time.monotonic() + self._seconds
                store.set(key, json.dumps({"at": f"{socket.gethostname()}, process {os.getpid()}", **entry}))

    def stop(self) -> None:
        """Write the newest entry and end the thread. At exit, Python could otherwise stop the thread in the middle of a call to torch."""
        if self._thread is not None and self._thread.is_alive():  # in a forked process, it is not
            self._is_stopping.set()
            self._is_late.set()
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self._is_late.wait()
            self._is_stopping.wait(self._may_write_at - time.monotonic())
            self._is_late.clear()
            self.flush()
        self.flush()  # an entry that came after the last flush in the loop, and before stop()


_writer = EntryWriter()
