"""Rank information, and a wrapper that runs a function on some processes only. Nothing here waits for another process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from accelkit.specs.cluster import ClusterEnvironment

T = TypeVar("T")
P = ParamSpec("P")


class RankInfo:
    """This process's place in the job.

    The environment is read only once, because training loops use these properties often.

    Args:
        cluster: The cluster environment that knows the ranks.
    """

    def __init__(self, cluster: ClusterEnvironment) -> None:
        self._cluster = cluster

    @functools.cached_property
    def num_processes(self) -> int:
        """Number of processes in the job."""
        return self._cluster.world_size

    @functools.cached_property
    def process_index(self) -> int:
        """This process's rank in the job."""
        return self._cluster.global_rank

    @functools.cached_property
    def local_process_index(self) -> int:
        """This process's rank on its machine."""
        return self._cluster.local_rank

    def read_again(self) -> None:
        """Read the local rank anew, after the processes have told each other which machine they are on."""
        self.__dict__.pop("local_process_index", None)

    @property
    def is_main_process(self) -> bool:
        """Whether this is the job's first process."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is its machine's first process."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the job's last process."""
        return self.process_index == self.num_processes - 1


def run_only_if(condition: Callable[[], bool], function: Callable[P, T]) -> Callable[P, T | None]:
    """Wrap ``function`` so that a call runs it only if ``condition()`` is true at that time, and returns None otherwise."""

    @functools.wraps(function)
    def run_here_only(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return function(*args, **kwargs) if condition() else None

    return run_here_only
