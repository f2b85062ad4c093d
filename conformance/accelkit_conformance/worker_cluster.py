"""The cluster environment of worker processes that run a check together."""

from __future__ import annotations

from accelkit import ClusterEnvironment


class WorkerCluster(ClusterEnvironment):
    """The cluster environment of worker processes that run a check together on one machine.

    When the check is called, the worker processes already have a process group, so this class does not define a rendezvous address.
    """

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
