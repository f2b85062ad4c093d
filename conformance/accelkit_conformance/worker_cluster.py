"""The cluster environment of worker processes that run a check together."""

from __future__ import annotations

from accelkit import ClusterEnvironment


class WorkerCluster(ClusterEnvironment):
    """The cluster environment of worker processes on one machine with given ranks. Workers of a check have a process group already."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self._rank, self._size = rank, size

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def world_size(self) -> int:
        return self._size

    @property
    def global_rank(self) -> int:
        return self._rank

    @property
    def local_rank(self) -> int:
        return self._rank

    @property
    def local_world_size(self) -> int:
        return self._size
