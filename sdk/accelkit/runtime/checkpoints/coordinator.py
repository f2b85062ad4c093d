"""Coordinate operations that succeed or fail on all processes together.

An operation consists of one or more stages. After each stage, every process knows whether any process failed. Messages are sent point to
point through rank 0, so that a process that died can be named by its rank. Collectives are not used for this, because the error that a
collective raises does not say which rank died.
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
    """The reason why a process failed, in the form in which it is sent to the other processes."""

    rank: int
    host: str
    what: str
    why: str
    hint: str


class Ranks:
    """The processes that take part in an operation.

    Args:
        group: A gloo process group of all processes of the job. It must not be used for anything else. None means this process alone.
        num_shares: The number of shares into which the job divides its samples. None means one share for each process.

    Attributes:
        rank: The rank of this process.
        size: The number of processes.
        num_shares: The number of shares into which the job divides its samples.
        copies: The number of processes that compute on each share of the samples. These processes have consecutive ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, num_shares: int | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.num_shares = num_shares or self.size
        self.copies = self.size // self.num_shares

    @classmethod
    def of_job(cls, seconds: float = SECONDS, num_shares: int | None = None) -> Ranks:
        """Return a ``Ranks`` of all processes of the default process group.

        The first call creates a separate process group for the messages, so every process must call this. A thread may use the separate
        group while the program trains, because its messages never mix with those of the program.

        Args:
            seconds: The time for which a process may keep the others waiting, for example with a large file. A time of less than half
                an hour is raised to half an hour. Ignored if the group already exists.
            num_shares: As for the constructor.
        """
        world = dist.group.WORLD
        if world not in _groups:
            timeout = datetime.timedelta(seconds=max(seconds, SECONDS))
            _groups[world] = dist.new_group(backend="gloo", timeout=timeout)
        return cls(_groups[world], num_shares)

    @staticmethod
    def has_group() -> bool:
        """Return whether ``of_job`` has already created its process group."""
        return dist.is_initialized() and dist.group.WORLD in _groups

    def source_of_own_state(self, size: int, num_shares: int | None) -> tuple[int, int]:
        """Choose the process whose own state, such as its random state, this process loads from a checkpoint.

        The chosen process belongs to the job that saved the checkpoint. In the saving job, the random number generators of processes with
        the same share of the samples were in the same state. In this job, processes with the same share need equal random states too.
        Therefore, they all choose processes that had the same share in the saving job.

        Args:
            size: The number of processes of the saving job.
            num_shares: The number of shares into which the saving job divided its samples. None means one share for each process.

        Returns:
            The index of the share that the chosen process had, and the rank of the chosen process.
        """
        copies = size // (num_shares or size)
        share, copy = divmod(self.rank, self.copies)
        share %= size // copies
        return share, share * copies + copy % copies

    def through_main(self, blame: Blame, work: Callable[[], T], combine: Callable[[list[T]], Sequence[R]]) -> R:
        """Run ``work`` on every process and ``combine`` on rank 0.

        Return this process's item of the list that ``combine`` returns.

        Args:
            blame: A function that converts an exception raised by ``work`` or ``combine`` to a CheckpointError. Not called for an
                AccelkitError.
            work: The function that runs on this process.
            combine: The function that runs on rank 0 if ``work`` succeeded everywhere. It takes the results in the order of ranks and
                returns one item per rank.

        Raises:
            CheckpointError: On every process that is alive, if a process raised an exception or died. In a job with several processes, the
                error names the ranks of the processes that failed (at most four).
            AccelkitError: In a job with one process, if ``work`` or ``combine`` raised this error.
        """
        own_outcome, error = self._attempt(blame, work)
        try:
            if self.rank:
                try:
                    self._send(own_outcome, 0)
                    outcome = self._receive(0)
                except RuntimeError as lost:
                    raise _joint_error([_lost(0, lost)]) from (error or lost)
                return cast(R, self._open(outcome, error))
            everyone = [own_outcome, *(self._receive_or_lost(rank) for rank in range(1, self.size))]
            outcomes: list[Any] = [[failure for failure in everyone if isinstance(failure, _Failure)]] * self.size
            if not outcomes[0]:
                combined, error = self._attempt(blame, lambda: combine([result[0] for result in everyone]))
                outcomes = [[combined]] * self.size if isinstance(combined, _Failure) else [(item,) for item in combined[0]]
            for rank in range(1, self.size):
                try:
                    self._send(outcomes[rank], rank)
                except RuntimeError:  # the process died after its work was done; the next communication with it will report that
                    continue
            return cast(R, self._open(outcomes[0], error))
        finally:
            del error  # the error that is raised refers to this frame; the reference cycle would keep the loaded tensors in memory

    def each(self, blame: Blame, work: Callable[[], T]) -> T:
        """Run ``work`` on every process and return this process's result once all processes have succeeded.

        ``blame`` and the errors are those of ``through_main``.
        """
        kept: list[T] = []
        self.through_main(blame, lambda: kept.append(work()), lambda results: results)
        return kept[0]

    def from_main(self, blame: Blame, work: Callable[[], T]) -> T:
        """Run ``work`` on rank 0 and return its result on every process. ``blame`` and the errors are those of ``through_main``."""
        return self.through_main(blame, lambda: None, lambda results: [work()] * len(results))

    def _attempt(self, blame: Blame, work: Callable[[], T]) -> tuple[tuple[T] | _Failure, Exception | None]:
        try:
            return (work(),), None
        except Exception as error:  # _open raises it again on every process
            return self._failure(error if isinstance(error, AccelkitError) else blame(error)), error

    def _failure(self, error: AccelkitError) -> _Failure:
        return _Failure(self.rank, socket.gethostname(), error.what, error.why, error.hint)

    def _open(self, outcome: Any, error: Exception | None) -> Any:
        if isinstance(outcome, tuple):
            return outcome[0]
        if self.size > 1:
            raise _joint_error(outcome) from error
        if isinstance(error, AccelkitError):
            try:
                raise error
            finally:
                del error  # no reference cycle, as in through_main
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
    message = str(error).partition("] ")[2] or str(error)
    why = f"the process died or does not respond ({message.partition('. ')[0]})"
    return _Failure(rank, "", f"lost the connection to rank {rank}", why, "see the log of that process; earlier checkpoints are unchanged")


def _joint_error(failures: Sequence[_Failure]) -> CheckpointError:
    """Return one error for all failures. The error is the same on every process."""
    first = failures[0]
    reasons = [
        f"rank {failure.rank}{f' ({failure.host})' if failure.host else ''}: {failure.why or failure.what}" for failure in failures[:_SHOWN]
    ]
    more = len(failures) - _SHOWN
    return CheckpointError(first.what, why="; ".join(reasons) + (f"; and {more} more ranks" if more > 0 else ""), hint=first.hint)
