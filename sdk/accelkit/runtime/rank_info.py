"""The ranks of this process, and a wrapper that runs a function on some processes only. Nothing here waits for another process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from accelkit.plugin_calls import call, wrong_result
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.strategy import Strategy

T = TypeVar("T")
P = ParamSpec("P")


class RankInfo:
    """The ranks of this process, and the number of processes in the job.

    Values are kept after the first read, because training loops use them often. After ``read_again``, the local rank is read from the
    cluster environment again.

    Args:
        cluster: The cluster environment, which provides the ranks.
        strategy: The strategy, which determines how many processes compute on the same samples. None means that every process has its own
            samples.
    """

    def __init__(self, cluster: ClusterEnvironment, strategy: Strategy | None = None) -> None:
        self._cluster = cluster
        self._strategy = strategy

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

    @functools.cached_property
    def data_parallel_size(self) -> int:
        """Number of shares into which the samples of a step are divided.

        Raises:
            BrokenPluginError: If the strategy returns a number that does not divide the number of processes.
        """
        if self._strategy is None:
            return self.num_processes
        size: int = call(self._strategy, "data_parallel_size", self.num_processes)
        if self.num_processes % size:
            raise wrong_result(self._strategy, "data_parallel_size", size, f"a divisor of {self.num_processes}")
        return size

    @property
    def data_parallel_index(self) -> int:
        """Index of this process's share of the samples. It is the rank, unless several processes compute on the same samples."""
        return self.process_index // (self.num_processes // self.data_parallel_size)

    def read_again(self) -> None:
        """Discard the stored local rank, so that the next use of ``local_process_index`` reads it from the cluster environment again.

        A session calls this method after the processes have told each other which machines they run on. This exchange may change the local
        rank.
        """
        self.__dict__.pop("local_process_index", None)

    @property
    def is_main_process(self) -> bool:
        """Whether this process has rank 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this process has local rank 0."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this process has the highest rank in the job."""
        return self.process_index == self.num_processes - 1


def run_only_if(condition: Callable[[], bool], function: Callable[P, T]) -> Callable[P, T | None]:
    """Return a wrapper that calls ``function`` if ``condition()`` is true at the time of the call, and otherwise returns None."""

    @functools.wraps(function)
    def run_here_only(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return function(*args, **kwargs) if condition() else None

    return run_here_only
