"""Jobs of several sizes that worker processes run one after another. Each job has its own process group; all jobs share a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from accelkit import CheckpointError, Runtime
from accelkit_conformance.oracle.free_ports import free_ports
from accelkit_conformance.oracle.strategy_training import check_is_suitable, precision_of
from accelkit_conformance.results import DECLARED_NONE, NotSupported
from accelkit_conformance.subject import Subject
from accelkit_conformance.worker_cluster import WorkerCluster

_left: list[Any] = []
"""References to destroyed process groups. These references keep the groups' destructors from running: gloo's destructor may wait for a
thread that waits for the GIL."""


class WorkerClusterAtPort(WorkerCluster):
    """The cluster environment of worker processes whose rendezvous is at a given port of this machine."""

    def __init__(self, rank: int, size: int, port: int) -> None:
        super().__init__(rank, size)
        self._port = port

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        return self._port


@dataclasses.dataclass(slots=True)
class Jobs:
    """Callable that runs jobs one after another, one in each call. A job of n processes runs on the first n worker processes.

    Attributes:
        subject: The plugin under test. During a job, its ``world_size`` is that of the job.
        ports: Free ports. Each job takes one of them.
    """

    subject: Subject
    ports: list[int]

    @contextlib.contextmanager
    def __call__(self, size: int, **options: Any) -> Iterator[Runtime | None]:
        """Return a context manager that runs a job on the first ``size`` worker processes and tears down its Runtime on exit.

        It yields the job's Runtime, or None on the worker processes that do not belong to the job.

        Args:
            size: The number of processes in the job.
            options: Arguments of the Runtime. By default, ``precision`` is the result of ``precision_of``.

        Raises:
            AssertionError: On exit, if a process group still exists after the Runtime was torn down.
        """
        subject, port, before = self.subject, self.ports.pop(), self.subject.world_size
        if subject.rank >= size:
            yield None
            return
        options.setdefault("precision", precision_of(subject))
        subject.world_size = size
        try:
            cluster = WorkerClusterAtPort(subject.rank, size, port)
            rt = subject.runtime(cluster=cluster, devices=size, **options)
            yield rt
            rt.teardown()
        finally:
            subject.world_size = before
        assert not dist.is_initialized(), "after Runtime.teardown, there is still a process group: did the strategy create it?"


@contextlib.contextmanager
def jobs(subject: Subject) -> Iterator[tuple[Jobs, str]]:
    """Return a context manager that yields a ``Jobs`` object and the path of a folder that all its jobs share.

    On entry, the context manager destroys the process group that the workers formed for the check, so that the Runtime of each job can
    create a new process group.

    Raises:
        NotSupported: If the strategy does not run on this accelerator or on this number of processes.
    """
    check_is_suitable(subject)
    subject.needs_devices(subject.world_size)
    with shared_folder(subject) as folder:
        ports: list[Any] = [free_ports(4)]
        if subject.world_size > 1:
            dist.broadcast_object_list(ports, src=0)
        _leave()
        try:
            yield Jobs(subject, ports[0]), folder
        finally:
            _leave()


@contextlib.contextmanager
def shared_folder(subject: Subject) -> Iterator[str]:
    """Return a context manager that yields the path of a new folder, the same path on every process.

    On exit, rank 0 removes the folder, even if the block raises an error. If the block raises no error and the process group still exists,
    rank 0 first waits until all processes have left the block.
    """
    folder: list[Any] = [tempfile.mkdtemp(prefix="accelkit-conformance-") if subject.rank == 0 else None]
    if subject.world_size > 1:
        dist.broadcast_object_list(folder, src=0)
    try:
        yield folder[0]
        if dist.is_initialized() and subject.world_size > 1:
            dist.barrier()
    finally:
        if subject.rank == 0:
            shutil.rmtree(folder[0], ignore_errors=True)


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Return a context manager for a block that saves the strategy's state.

    Raises:
        NotSupported: If the block raises a CheckpointError, for example because the strategy refuses to save its state. The result of the
            check is then ``unsupported``.
    """
    try:
        yield
    except CheckpointError as error:
        raise NotSupported(f"save_state: {DECLARED_NONE} ({error})") from error


def _leave() -> None:
    if dist.is_initialized():
        _left.append(dist.group.WORLD)
        dist.destroy_process_group()
