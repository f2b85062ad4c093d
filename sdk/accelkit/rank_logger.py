"""Loggers that emit messages on the main process of a job only, unless a call says otherwise. This module does not import torch."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from accelkit.errors import UsageError


class _Ranks(Protocol):
    @property
    def process_index(self) -> int: ...
    @property
    def num_processes(self) -> int: ...


class _Barrier(Protocol):
    def wait_for_everyone(self) -> None: ...


_ranks: _Ranks | None = None
_barrier: Callable[[], _Barrier | None] = lambda: None  # noqa: E731 # replaced by a weak reference


def set_job(ranks: _Ranks, barrier: _Barrier) -> None:
    """Set the ranks and the barrier that all loggers of this process use.

    Each new Runtime calls this, so the ranks and the barrier are those of the newest Runtime. Only a weak reference to ``barrier`` is kept.
    """
    global _ranks, _barrier
    _ranks, _barrier = ranks, weakref.ref(barrier)


class RankLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that emits messages on the main process only, unless a call says otherwise.

    Create it with ``accelkit.get_logger``. If the job has several processes, each message begins with the rank of its process. All logging
    methods take these two arguments in addition to those of ``logging.Logger``:

    - ``main_process_only``: Whether only the main process emits the message. The default is True.
    - ``in_order``: Whether all processes emit the message, one after another in rank order. If ``in_order`` is True, all processes must
      make the call, the level must be enabled on all of them or on none, and ``main_process_only`` is ignored.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self._logged_once: set[Any] = set()

    def log(  # type: ignore[override] # the further arguments of the base class are in kwargs
        self, level: int, msg: object, *args: Any, main_process_only: bool = True, in_order: bool = False, **kwargs: Any
    ) -> None:
        """Log a message at ``level``. The other logging methods call this one. For ``main_process_only`` and ``in_order``, see the class.

        Raises:
            UsageError: If ``in_order`` is True in a job of several processes, but this process has no Runtime. The processes use their
                Runtimes to wait for each other.
        """
        if not self.isEnabledFor(level):
            return
        ranks = _ranks or _detected_ranks()
        rank, size = ranks.process_index, ranks.num_processes
        msg, passed = self.process(msg, kwargs)
        arguments: dict[str, Any] = {**passed, "stacklevel": passed.get("stacklevel", 1) + 1}  # the caller's line, not this one
        text = f"[rank {rank}] {msg}" if size > 1 else msg
        if size == 1 or not in_order:
            if rank == 0 or in_order or not main_process_only:
                self.logger.log(level, text, *args, **arguments)
            return
        barrier = _barrier()
        if barrier is None:
            raise UsageError(
                "in_order=True needs a Runtime",
                why="the processes of the job wait for each other through it",
                hint="create accelkit.Runtime() first, or pass main_process_only=False",
            )
        for turn in range(size):
            if turn == rank:
                self.logger.log(level, text, *args, **arguments)
            barrier.wait_for_everyone()

    def warning_once(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a warning the first time that this method is called with this message and these arguments. Later calls do nothing.

        A call does not count if warnings are disabled at that time. Each logger that ``get_logger`` returns remembers only its own calls,
        even if several loggers have the same name.
        """
        key = (str(msg), tuple(map(str, args)))
        if key not in self._logged_once and self.isEnabledFor(logging.WARNING):
            self._logged_once.add(key)
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.log(logging.WARNING, msg, *args, **kwargs)


def get_logger(name: str, log_level: str | int | None = None) -> RankLogger:
    """Return a logger that emits messages on the main process of the job only, unless a call says otherwise.

    The logger passes messages to ``logging.getLogger(name)``, so handlers and levels are set in the usual way. It can be created before a
    Runtime. Until a Runtime exists, the rank is detected from the launcher's variables. Neither this function nor the logger imports torch.

    Args:
        name: The name of the logger, such as ``__name__``.
        log_level: The level to set, such as ``"INFO"``. None leaves the level as it is.

    Raises:
        ValueError: If ``log_level`` is not a level.
    """
    logger = logging.getLogger(name)
    if log_level is not None:
        logger.setLevel(log_level.upper() if isinstance(log_level, str) else log_level)
    return RankLogger(logger)


@functools.cache
def _detected_ranks() -> _Ranks:
    from accelkit.cluster.detection import check_environment, select_cluster  # imported late: slow, and most programs have a Runtime

    environment = select_cluster().environment
    check_environment(environment)
    return _DetectedRanks(environment.global_rank, environment.world_size)


class _DetectedRanks:
    def __init__(self, process_index: int, num_processes: int) -> None:
        self.process_index, self.num_processes = process_index, num_processes
