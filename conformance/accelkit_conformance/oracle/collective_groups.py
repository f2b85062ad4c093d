"""Process groups that are initialised with a device, groups that are created and destroyed one after another, and barriers."""

from __future__ import annotations

import contextlib
import datetime
import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import psutil
import torch.distributed as dist

from accelkit.runtime.process_group import backend_of
from accelkit_conformance.oracle.rank_values import check_equal, tensor_of
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SECONDS = 60
_NUM_GROUPS = 30


@contextlib.contextmanager
def _group_of_device(subject: Subject) -> Iterator[None]:
    """Context manager that replaces the default process group with a new one, to which the subject's device is passed.

    After the block there is no process group. The worker initialises another one before the next check.
    """
    path: list[Any] = [tempfile.mktemp() if subject.rank == 0 else None]  # noqa: S306 # the store creates the file
    dist.broadcast_object_list(path, src=0, device=subject.device)
    dist.destroy_process_group()
    dist.init_process_group(
        backend_of(subject.device, subject.accelerator.process_group_backend),
        init_method=f"file://{path[0]}",
        rank=subject.rank,
        world_size=subject.world_size,
        timeout=datetime.timedelta(seconds=_SECONDS + subject.first_call_timeout),
        device_id=subject.device,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _check_sum(subject: Subject) -> None:
    n = subject.world_size
    x = tensor_of(subject, subject.rank + 1)
    dist.all_reduce(x)
    check_equal(subject, x, n * (n + 1) / 2)
    every: list[Any] = [None] * n
    dist.all_gather_object(every, subject.rank)
    assert every == list(range(n)), f"gathered the objects {every}"


def _barrier(subject: Subject) -> None:
    """Check that a barrier can be the first call."""
    dist.barrier()


def _pair(subject: Subject) -> None:
    """Check that ``send`` and ``recv`` can be the first calls in a group of the first and the last rank."""
    last = subject.world_size - 1
    group = dist.new_group([0, last])
    x = tensor_of(subject, 3.0 if subject.rank == 0 else 0.0)
    if subject.rank == 0:
        dist.send(x, last, group=group)
    elif subject.rank == last:
        dist.recv(x, 0, group=group)
        check_equal(subject, x, 3.0)


def _reversed_devices(subject: Subject) -> None:
    """Check collectives on ranks whose devices are in the opposite order, after a barrier."""
    dist.barrier()
    x = tensor_of(subject, subject.rank)
    dist.broadcast(x, 1)
    check_equal(subject, x, 1)


CASES: Mapping[str, Callable[[Subject], None]] = {
    "barrier": _barrier,
    "pair": _pair,
    "reversed_devices": _reversed_devices,
}
"""The first calls in a group that was initialised with a device, by name.

``new_group(backend="gloo")`` is left out: if the default group was initialised with a device, torch 2.13 looks for the backend of this
device in the new group (pytorch#162237).
"""


def check_group_of_device(subject: Subject, name: str) -> None:
    """Check the calls ``CASES[name]`` and then other collectives, in a process group to which the device was passed.

    Raises:
        NotSupported: If the device is the CPU, or if ``name`` is ``reversed_devices`` and there are fewer devices than ranks.
    """
    n, index = subject.world_size, subject.devices.index(subject.device)
    if subject.device_type == "cpu":
        raise NotSupported("a process group cannot be initialised with the CPU as ``device_id``")
    if name == "reversed_devices":
        if n > len(subject.devices):
            raise NotSupported(f"this needs {n} devices, and there are {len(subject.devices)}")
        subject.switch_to(n - 1 - subject.rank)
    try:
        with _group_of_device(subject):
            CASES[name](subject)
            _check_sum(subject)
    finally:
        subject.switch_to(index)


def check_groups_are_freed(subject: Subject) -> None:
    """Check that groups that are created, used and destroyed one after another do not use more and more resources.

    Raises:
        AssertionError: If, after 30 groups, at least 20 more files are open than before, at least 20 more threads are running, at least 32
        MiB more memory is in use, or at least 1 MiB more device memory is allocated.
    """
    process = psutil.Process()
    is_counted = subject.capabilities.can("memory_statistics")

    def use(count: int) -> None:
        for _ in range(count):
            group = dist.new_group()
            x = tensor_of(subject, 1.0)
            dist.all_reduce(x, group=group)
            check_equal(subject, x, subject.world_size)
            dist.destroy_process_group(group)
        gc.collect()
        subject.synchronize()

    def counts() -> list[float]:
        files = process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
        return [files, process.num_threads(), process.memory_info().rss / 2**20, subject.allocated() / 2**20 if is_counted else 0.0]

    use(5)  # pools may grow at first
    before = counts()
    use(_NUM_GROUPS)
    limits = {"open files": 20, "threads": 20, "MiB of memory": 32, "MiB of device memory": 1}
    for (what, limit), was, now in zip(limits.items(), before, counts(), strict=True):
        assert now - was < limit, f"{_NUM_GROUPS} groups that were destroyed leave {now - was:g} more {what}"
    _check_sum(subject)


def check_barrier(subject: Subject) -> None:
    """Check that no rank leaves a barrier before the last rank has entered it."""
    dist.barrier()
    came = time.time()
    if subject.rank == subject.world_size - 1:
        time.sleep(0.2)
        came = time.time()
    dist.barrier()
    left = time.time()
    times: list[Any] = [None] * subject.world_size
    dist.all_gather_object(times, (came, left))
    assert min(one[1] for one in times) >= max(one[0] for one in times) - 0.02, "a rank left the barrier before the last one entered it"
