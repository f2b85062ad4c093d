"""Several processes that do one thing together or not at all: after each step every process knows whether all succeeded.

Messages go through rank 0, point to point: a process that died is then known by its rank, which a collective's error does not tell.
"""

from __future__ import annotations

import dataclasses
import datetime
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch.distributed as dist

from accelkit.errors import AccelkitError, CheckpointError
from accelkit.runtime.collectives import object_collectives

T = TypeVar("T")
R = TypeVar("R")
Blame = Callable[[Exception], CheckpointError]

SECONDS = 1800.0
_SHOWN = 4
_groups: weakref.WeakKeyDictionary[Any, dist.ProcessGroup] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, slots=True)
class _Failure:
    """Why a process did not succeed, as it travels to the others."""

    rank: int
    host: str
    what: str
    why: str
    hint: str


class Ranks:
    """The processes that do something together. ``Ranks()`` is this process alone.

    Args:
        group: A process group of all processes of the job, on gloo, that nobody else uses.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    @classmethod
    def of_job(cls, seconds: float = SECONDS) -> Ranks:
        """All processes of the default process group. The first call makes a group of its own: every process must come.

        A thread may use it while the program trains: its messages never meet the program's.

        Args:
            seconds: How long a process may keep the others waiting, as with a large file; at least half an hour.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return cls()
        world = dist.group.WORLD
        if world not in _groups:
            timeout = datetime.timedelta(seconds=max(seconds, SECONDS))
            _groups[world] = dist.new_group(backend="gloo", timeout=timeout)
        return cls(_groups[world])

    @staticmethod
    def has_group() -> bool:
        """Whether ``of_job`` has made its group."""
        return dist.is_initialized() and dist.group.WORLD in _groups

    def through_main(self, blame: Blame, work: Callable[[], T], combine: Callable[[list[T]], Sequence[R]]) -> R:
        """Run ``work`` on every process and rank 0's ``combine`` on all results; return to each process its item of what that returns.

        Args:
            blame: Makes of an exception the error that is raised.
            work: Runs here.
            combine: Runs on rank 0, if ``work`` succeeded everywhere. Takes the results in the order of ranks; returns one item a rank.

        Raises:
            CheckpointError: On every process that is alive, if one raised or died. Names the rank.
        """
        mine, error = self._attempt(blame, work)
        if self.rank:
            try:
                self._send(mine, 0)
                outcome = self._receive(0)
            except RuntimeError as lost:
                raise _joint_error([_lost(0, lost)]) from (error or lost)
            return cast(R, self._open(outcome, error))
        everyone = [mine, *(self._receive_or_lost(rank) for rank in range(1, self.size))]
        outcomes: list[Any] = [[failure for failure in everyone if isinstance(failure, _Failure)]] * self.size
        if not outcomes[0]:
            combined, error = self._attempt(blame, lambda: combine([result[0] for result in everyone]))
            outcomes = [[combined]] * self.size if isinstance(combined, _Failure) else [(item,) for item in combined[0]]
        for rank in range(1, self.size):
            try:
                self._send(outcomes[rank], rank)
            except RuntimeError:  # it died having done its part; whoever needs it next learns that
                continue
        return cast(R, self._open(outcomes[0], error))

    def each(self, blame: Blame, work: Callable[[], T]) -> T:
        """Run ``work`` on every process; return this process's result once all succeeded."""
        kept: list[T] = []
        self.through_main(blame, lambda: kept.append(work()), lambda results: results)
        return kept[0]

    def from_main(self, blame: Blame, work: Callable[[], T]) -> T:
        """Run ``work`` on rank 0; return its result on every process."""
        return self.through_main(blame, lambda: None, lambda results: [work()] * len(results))

    def _attempt(self, blame: Blame, work: Callable[[], T]) -> tuple[tuple[T] | _Failure, Exception | None]:
        try:
            return (work(),), None
        except Exception as error:  # raised again, on every process, by _open
            seen = error if isinstance(error, AccelkitError) else blame(error)
            return _Failure(self.rank, socket.gethostname(), seen.what, seen.why, seen.hint), error

    def _open(self, outcome: Any, error: Exception | None) -> Any:
        if isinstance(outcome, tuple):
            return outcome[0]
        if self.size > 1:
            raise _joint_error(outcome) from error
        if isinstance(error, AccelkitError):
            raise error
        (failure,) = outcome
        raise CheckpointError(failure.what, why=failure.why, hint=failure.hint) from error

    def _send(self, message: Any, rank: int) -> None:
        object_collectives.send(message, rank, self._group)

    def _receive(self, rank: int) -> Any:
        return object_collectives.receive(rank, self._group)

    def _receive_or_lost(self, rank: int) -> Any:
        try:
            return self._receive(rank)
        except RuntimeError as error:
            return _lost(rank, error)


def _lost(rank: int, error: RuntimeError) -> _Failure:
    said = str(error).partition("] ")[2] or str(error)
    why = f"it died or does not answer ({said.partition('. ')[0]})"
    return _Failure(rank, "", f"rank {rank} was lost", why, "see the log of that process; earlier checkpoints are untouched")


def _joint_error(failures: Sequence[_Failure]) -> CheckpointError:
    """One error of all failures, the same on every process."""
    first = failures[0]
    reasons = [f"rank {one.rank}{f' ({one.host})' if one.host else ''}: {one.why or one.what}" for one in failures[:_SHOWN]]
    more = len(failures) - _SHOWN
    return CheckpointError(first.what, why="; ".join(reasons) + (f"; and {more} more ranks" if more > 0 else ""), hint=first.hint)
