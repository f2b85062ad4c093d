"""Report of the ranks that are missing from a collective, or that make a different call. torch calls this a desync.

When a collective fails, one rank of its group reads the call log and writes a summary of it to the store. The other ranks read only the
summary. If each of them read the whole log, the host of the store would have to send a number of bytes that grows with the square of the
number of ranks. The first rank that asks the store for the summary becomes the reporter. If it dies before it has written the summary,
another rank takes its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from accelkit.errors import CollectiveError
from accelkit.runtime.collectives import call_log
from accelkit.runtime.collectives.call_log import Call

T = TypeVar("T")

READING_SECONDS = 10.0
_REPORTERS = 2
_BATCH = 256
_SHOWN = 8
_MOST_ROWS = 16
_SAME_CALLS = (
    "every process must make the same calls in the same order: look for a call that some processes skip because of an `if` or an exception"
)
_DIED = "look at the output of the other processes: the first error of the job is the cause"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Ranks that have made the same number of calls in a group, and whose last calls have the same description.

    Attributes:
        count: The number of calls that each of these ranks has made in the group.
        last: The description of their last calls, in any group. Empty if they have made no call yet.
        is_last_of_group: Whether these last calls were made in this group.
        size: The number of these ranks.
        at: The host and the process ID of each of these ranks, by rank. Contains only the first _SHOWN ranks if there are more.
    """

    count: int
    last: str
    is_last_of_group: bool
    size: int
    at: Mapping[int, str]

    def without(self, rank: int) -> Row:
        """Return this row without ``rank``. If ``self.at`` does not contain ``rank``, the row is returned unchanged."""
        others = {other: where for other, where in self.at.items() if other != rank}
        return dataclasses.replace(self, size=self.size - len(self.at) + len(others), at=others)


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What the call log says about the ranks of a group.

    Attributes:
        rows: At most _MOST_ROWS rows. The rows of the ranks that made the fewest calls come first.
        num_unread: The number of ranks whose entries could not be read.
    """

    rows: Sequence[Row]
    num_unread: int

    @classmethod
    def of(cls, entries: Mapping[int, Mapping[str, Any]], call: Call) -> Summary:
        """Return a summary of ``entries``, the log entries by rank, for the process group of ``call``.

        Ranks of the group that are not in ``entries`` count as unread.
        """
        group = call.group.group_name
        alike: dict[tuple[int, str, bool], dict[int, str]] = {}
        for rank, entry in sorted(entries.items()):
            key = entry.get("groups", {}).get(group, 0), entry.get("last", ""), entry.get("group") == group
            alike.setdefault(key, {})[rank] = entry.get("at", "")
        rows = [Row(*key, len(at), dict(_first(at.items()))) for key, at in alike.items()]
        return cls(sorted(rows, key=lambda row: row.count)[:_MOST_ROWS], len(call.ranks) - len(entries))

    def as_json(self) -> str:
        """Return the summary as a JSON text. It has at most about 20 kilobytes, regardless of the number of ranks."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> Summary:
        """Return the summary that a JSON text from ``as_json`` describes."""
        found = json.loads(text)
        rows = [Row(**row | {"at": {int(rank): where for rank, where in row["at"].items()}}) for row in found["rows"]]
        return cls(rows, found["num_unread"])


def explain(call: Call, error: BaseException) -> CollectiveError:
    """Return an error that explains why this call failed.

    The error names the ranks that did not make the call or made a different call, if there are any and the call log can be read. This
    function waits at most READING_SECONDS plus twice ``seconds_between_entries`` for the summary of the call log.

    Args:
        call: The call of this process.
        error: The exception that torch.distributed raised.
    """
    reason, has_timed_out, mine = _plain(error), is_timeout(error), dist.get_rank()
    summary = _summary(call)
    rows = summary.rows if summary is not None else ()
    this = f"{call.what} (call {call.number}) on rank {mine}"
    if absent := [row for row in (row.without(mine) for row in rows) if row.size and row.count < call.number]:
        shown = _first(sorted((rank, where, row.last) for row in absent for rank, where in row.at.items()))
        named = _ranks([rank for rank, _, _ in shown], sum(row.size for row in absent))
        waited = "timed out waiting for" if has_timed_out else "lost the connection while it waited for"
        hint = (
            _SAME_CALLS + "; ACCELKIT_TIMEOUT or Runtime(process_group=ProcessGroupOptions(timeout=seconds)) sets the time limit"
            if has_timed_out
            else _DIED
        )
        seen = [f"rank {rank} ({where}) last called {last}" if last else f"rank {rank} has made no call yet" for rank, where, last in shown]
        return CollectiveError(f"{this} {waited} {named}", why="; ".join([*seen, reason]), hint=hint)
    if any(_has_diverged(row, call, has_timed_out) for row in rows):
        told = [
            f"{_ranks(list(row.at), row.size)}: call {row.count}, {row.last}" for row in _first(sorted(rows, key=lambda row: min(row.at)))
        ]
        what = f"{this} failed: the processes called different collectives"
        return CollectiveError(what, why="; ".join([*told, reason]), hint=_SAME_CALLS)
    if summary is None or summary.num_unread:
        return CollectiveError(f"{this} failed", why=f"{reason}; the store that holds the call log does not answer", hint=_DIED)
    return CollectiveError(f"{this} failed, although every process made the call", why=reason, hint=_DIED)


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
    told = [f"{_ranks(ranks, len(ranks))}: {text}" for text, ranks in _first(alike.items())]
    return CollectiveError(what, why="; ".join(told), hint=hint)


def _summary(call: Call) -> Summary | None:
    """Return the summary of the call log for a call that failed.

    Return None if the default process group has no store (MPI), or if the summary cannot be read in time, for example because the store's
    host hangs.
    """
    found: list[Summary | None] = []
    store, rank, seconds = call_log.log_store(), dist.get_rank(), call_log.seconds_between_entries()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # from torch.distributed: the store no longer exists
            call_log.flush()
            found.append(_read_or_report(store, call, rank, seconds))

    if store is not None:
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(READING_SECONDS + _REPORTERS * seconds)
    return found[0] if found else None


def _read_or_report(store: Any, call: Call, rank: int, seconds: float) -> Summary | None:
    """Return the summary of the call log, or None if no rank writes a summary in time.

    The first rank that asks for the summary becomes the reporter, which reads the log and writes the summary. If the summary is not written
    in time, the first rank that asks again becomes the second reporter. Each reporter waits for ``seconds`` before it reads the log. By
    then, every process that is alive has written its last call to the log.
    """
    key = f"accelkit/desync/{call.group.group_name}/{call.number}"
    for attempt in range(_REPORTERS):
        if int(store.compare_set(f"{key}/reporter/{attempt}", "", str(rank))) == rank:
            time.sleep(seconds)
            summary = Summary.of(_read_entries(store, call.ranks), call)
            store.set(key, summary.as_json())
            return summary
        with contextlib.suppress(dist.DistStoreError):  # not written in time: the reporter may have died
            store.wait([key], datetime.timedelta(seconds=seconds + READING_SECONDS / _REPORTERS))
            return Summary.from_json(store.get(key))
    return None


def _read_entries(store: Any, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the log entries by rank. If the store ceases to exist during the call, only the entries read until then are returned."""
    entries: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(RuntimeError):
        for first in range(0, len(ranks), _BATCH):
            entries.update(_read_batch(store, ranks[first : first + _BATCH]))
    return entries


def _read_batch(store: Any, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the log entries by rank. The entry of a rank that has not made a call yet is empty.

    Sends two requests if every rank has made a call. Otherwise, the list of ranks is split in half again and again, until the ranks that
    have made no call are isolated. Each rank that has made no call costs up to ``3 * log2(len(ranks))`` more requests. A store without
    ``multi_get`` gets a request for each rank.
    """
    keys = [call_log.key_of(rank) for rank in ranks]
    if store.check(keys):
        texts = store.multi_get(keys) if store.has_extended_api() else map(store.get, keys)
        return dict(zip(ranks, map(json.loads, texts), strict=True))
    if len(ranks) == 1:
        return {ranks[0]: {}}
    half = len(ranks) // 2
    return _read_batch(store, ranks[:half]) | _read_batch(store, ranks[half:])


def _has_diverged(row: Row, call: Call, has_timed_out: bool) -> bool:
    """Return whether the ranks in ``row`` are known to have made a different call in place of ``call``.

    The log has only the last call of each rank, in any group. The result depends on how many calls the ranks have made in the group of
    ``call``:

    - Fewer calls than this process: The result is False, because the ranks have not reached ``call``.
    - The same number of calls: The ranks' last call in the group takes the place of ``call``. The result is True if the log shows this call
      and its description differs from that of ``call``. The description says whether the call is verified. If the ranks have since made a
      call in another group, the log does not show this call, and the result is False.
    - More calls: The result is True if ``call`` is verified and timed out on this process, and False otherwise. The ranks have already
      finished the call that takes the place of ``call``. If that call had been ``call`` itself, which is verified, this process would have
      finished ``call`` too, instead of timing out.
    """
    if row.count == call.number:
        return row.is_last_of_group and row.last != call.described
    return row.count > call.number and call.is_verified and has_timed_out


def is_timeout(error: BaseException) -> bool:
    """Return whether an error of torch.distributed reports a timeout, rather than, for example, that another process has exited."""
    return "timed out" in str(error).lower() or "timeout" in str(error).lower()


def _plain(error: BaseException) -> str:
    """Return the first line of an error of torch.distributed, or the name of its class if that line is empty.

    If the line begins with a location in torch's source code, the location is left out. The explanation that begins with "This is
    typically" is left out too.
    """
    first = (str(error).splitlines() or [""])[0]
    return re.sub(r"^\[(?:enforce fail at )?[^\]\s]*:\d+\]\s*", "", first).partition(". This is typically")[0] or type(error).__name__


def _ranks(first: Sequence[int], size: int) -> str:
    """Return a phrase that names ``size`` ranks. ``first`` contains at least the first _SHOWN of them, or all if there are fewer."""
    shown = ", ".join(map(str, _first(first))) + (f" and {size - _SHOWN} more" if size > _SHOWN else "")
    return f"rank {shown}" if size == 1 else f"ranks {shown}"


def _first(items: Iterable[T]) -> list[T]:
    return list(itertools.islice(items, _SHOWN))
