"""Join the process group of the job, and check that all processes run with the same settings."""

from __future__ import annotations

import atexit
import collections
import contextlib
import datetime
import json
import socket
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

import accelkit
from accelkit import job_secret, thread_shutdown
from accelkit.errors import ContradictionError, UnavailableError, UnsupportedError
from accelkit.runtime import placement_exchange
from accelkit.runtime.collectives import verification
from accelkit.runtime.collectives.communicator import Communicator
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.process_group import THROUGH_HOST
from accelkit.specs.process_placement import Placement

_users: weakref.WeakSet[Any] = weakref.WeakSet()  # the Runtimes that use the group created here and have not left it
_own_group: Any = None
_ends_at_exit = False


def join(user: object, cluster: ClusterEnvironment, device: torch.device, backend: str | None, seconds: float) -> None:
    """Make this process a member of the default process group. Returns when every process has joined.

    A new group uses ``backend`` for tensors on the device, and gloo for objects and for tensors on the CPU. If the device is the CPU, it
    uses ``backend`` for everything. All Runtimes of a process use the same group. If the program has already created a group, that group
    is used unchanged.

    Args:
        user: The Runtime that joins. It is passed to ``leave`` later.
        cluster: The cluster environment, which gives the rendezvous address, the rank of this process and the number of processes.
        device: The device of this process.
        backend: The backend for tensors on the device; None means torch's default.
        seconds: The timeout of the group in seconds.

    Raises:
        ContradictionError: If a group exists already, and the cluster environment gives a different number of processes or a different rank
            for this process.
        UnavailableError: If the processes cannot reach each other.
        UnsupportedError: If the group does not reduce tensors on the device.
    """
    global _own_group, _ends_at_exit
    size, rank = cluster.world_size, cluster.global_rank
    thread_shutdown.wait_for_threads_before_forks()
    if not _ends_at_exit:
        atexit.register(_leave_at_exit)
        _ends_at_exit = True
    _check_group(cluster)
    if dist.is_initialized():
        _check_reduces(device)
        if dist.group.WORLD is _own_group:
            _users.add(user)
        return
    timeout = datetime.timedelta(seconds=seconds)
    with _rendezvous_errors(cluster):
        store = HashStore() if size == 1 else _next_store("group", cluster, timeout)
        dist.init_process_group(backends_of(device, backend), store=store, rank=rank, world_size=size, timeout=timeout)
    _own_group = dist.group.WORLD
    _users.clear()
    _users.add(user)
    _check_reduces(device)


def _check_group(cluster: ClusterEnvironment) -> None:
    """Check that the process group, if it exists, has the size of the job, and that this process has the same rank in both.

    Raises:
        ContradictionError: If the size or the rank differs.
    """
    size, rank = cluster.world_size, cluster.global_rank
    if dist.is_initialized() and (dist.get_world_size(), dist.get_rank()) != (size, rank):
        raise ContradictionError(
            f"torch.distributed is initialised as rank {dist.get_rank()} of {dist.get_world_size()}",
            plugin=cluster.plugin,
            why=f"the cluster environment {cluster.name!r} says rank {rank} of {size}",
            hint="let the Runtime initialise it, or start the processes with accelkit launch",
        )


def _check_reduces(device: torch.device) -> None:
    """Check that the group reduces tensors on the device, by summing a 1 from each process.

    If gloo does not support the device of a tensor, it leaves the tensor unchanged and raises no error.

    Raises:
        UnsupportedError: If the sum is wrong, or the group has no backend for the device.
    """
    size = dist.get_world_size()
    one = torch.ones(1, device=device)
    if one.is_cpu or size == 1:
        return
    try:
        dist.all_reduce(one)
        total = int(one.item())
        why = "" if total == size else f"the sum of a 1 from each of {size} processes is {total}"
    except RuntimeError as error:
        why = str(error).splitlines()[0]
    if why:
        raise UnsupportedError(
            f"the process group does not reduce tensors on {device.type}",
            why=f"{why}; its backends are {dist.get_backend_config()}",
            hint="let the Runtime make the group, without a process_group_backend, or with process_group_backend='host'",
        )


def learn_placement(cluster: ClusterEnvironment, seconds: float) -> bool:
    """Let the processes tell each other where they run, unless the cluster environment already has this information.

    Creates no process group. Every process of the job must call this function before it uses a device. If an exchange is needed, the
    function returns after all processes have called it.

    Args:
        cluster: The cluster environment, which gives the rendezvous address. The exchange sets its ``placement``.
        seconds: The time to wait for the other processes, in seconds.

    Returns:
        Whether the processes exchanged anything.

    Raises:
        UnavailableError: If the processes cannot reach each other.
        ContradictionError: If the placements contradict each other, or if a process group exists already and the cluster environment gives
            a different number of processes or a different rank for this process.
    """
    if not cluster.needs_placement_exchange():
        return False
    _check_group(cluster)  # before waiting for processes that may not exist
    with _rendezvous_errors(cluster):
        store = _next_store("places", cluster, datetime.timedelta(seconds=seconds))
        found = placement_exchange.exchange(store, cluster)
    if isinstance(found, Placement):
        cluster.placement = found
    else:
        cluster.resolve_placement(found)
    return True


@contextlib.contextmanager
def _rendezvous_errors(cluster: ClusterEnvironment) -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError, ValueError, OSError) as error:
        size, address = cluster.world_size, cluster.main_address
        raise UnavailableError(
            f"rank {cluster.global_rank} of {size} could not join the others at {address}:{cluster.main_port}",
            plugin=cluster.plugin,
            why=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            hint=f"check that all {size} processes run and that this machine reaches {address}; accelkit why --cluster shows the settings",
        ) from error


_stores: dict[tuple[str, int], Store] = {}
_num_stores: collections.Counter[tuple[str, str, int]] = collections.Counter()


def _next_store(what: str, cluster: ClusterEnvironment, timeout: datetime.timedelta) -> Store:
    """Return a store through which the processes of the job exchange data. Each call returns a store with a new key prefix.

    The prefix hides the keys of earlier process groups. All processes must make the same calls in the same order. All stores at the same
    address share one connection until the process exits. A new connection could reach the server of an earlier group while that server is
    shutting down.

    Args:
        what: The purpose of the store, which is part of the prefix.
        cluster: The cluster environment, which gives the rendezvous address, the rank of this process and the number of processes.
        timeout: The timeout of the connection. Only the first call for an address uses it.
    """
    address, port = cluster.main_address, cluster.main_port
    if (address, port) not in _stores:
        host = f"[{address}]" if ":" in address else address
        store, _, _ = next(rendezvous(f"tcp://{host}:{port}", cluster.global_rank, cluster.world_size, timeout=timeout))
        _stores[address, port] = store
    use = (what, address, port)  # counted per address, because this process may have been in earlier jobs that the others were not in
    _num_stores[use] += 1
    return PrefixStore(f"accelkit/{what}/{_num_stores[use]}", _stores[address, port])


def backends_of(device: torch.device, backend: str | None) -> str:
    """Return the backends of a process group, in the notation of torch.distributed.

    The result is ``cpu:gloo,<device type>:<backend>``. If the device is the CPU, it is only the name of the backend.
    """
    chosen = backend_of(device, backend)
    return chosen if torch.empty(0, device=device).is_cpu else f"cpu:gloo,{device.type}:{chosen}"


def backend_of(device: torch.device, backend: str | None) -> str:
    """Return the backend for tensors on this device, and register it with torch.distributed if necessary.

    If ``backend`` is None, return torch's default for the device.
    """
    chosen = backend or dist.get_default_backend_for_device(device.type)
    if chosen == THROUGH_HOST:
        from accelkit.runtime.collectives import host_backend

        host_backend.register(chosen, device.type)
    return chosen


def agree(mine: dict[str, str], options: dict[str, str], device: torch.device) -> None:
    """Check that all processes have the same settings, strategy options, ACCELKIT_VERIFY_COLLECTIVES, and versions of accelkit and torch.

    Args:
        mine: The settings of this process by name, such as the accelerator and the strategy. They are compared with those of rank 0.
        options: The options of the strategy by name. They are compared only if everything else is the same on all processes.
        device: The device of this process.

    Raises:
        CollectiveError: If the settings of a process are not signed with the secret of this job (see ``job_secret``).
        ContradictionError: On every process, if anything differs. The error lists the first differences, with their ranks.
    """
    mine = mine | {"accelkit": accelkit.__version__, "torch": torch.__version__, verification.VARIABLE: verification.job_mode()}
    message = json.dumps([socket.gethostname(), mine, options]).encode()
    signed = Communicator(None, device).exchange(job_secret.signed(message, dist.get_rank()))
    everyone = [json.loads(job_secret.checked(theirs, rank)) for rank, theirs in enumerate(signed)]
    hosts, settings, chosen = zip(*everyone, strict=True)
    differences = _differences(hosts, settings) or _differences(hosts, chosen)
    if differences:
        raise ContradictionError(
            "the processes of this job have different settings",
            why="; ".join(differences[:8]) + ("; ..." if len(differences) > 8 else ""),
            hint="select the same accelerator, precision, strategy and strategy options on every rank, in the program or with accelkit "
            "launch; use the same versions and environment variables on every machine",
        )


def _differences(hosts: Sequence[str], values: Sequence[dict[str, str]]) -> list[str]:
    """Return a description of each value that differs between rank 0 and another rank."""
    unset = "not set"
    names = list(dict.fromkeys(name for theirs in values for name in theirs))
    return [
        f"{name} is {values[0].get(name, unset):.200} on rank 0 and {theirs.get(name, unset):.200} on rank {rank} ({host})"
        for rank, (host, theirs) in enumerate(zip(hosts, values, strict=True))
        for name in names
        if theirs.get(name) != values[0].get(name)
    ]


def data_parallel_group(num_shares: int, seconds: float) -> dist.ProcessGroup:
    """Create the data-parallel process groups and return the one to which this process belongs.

    Each group has one process for each share of the samples.

    All processes must call this. Processes that get the same share of the samples have consecutive ranks, as
    ``Strategy.data_parallel_size`` requires.

    Args:
        num_shares: The number of shares into which the samples of a step are divided (``Strategy.data_parallel_size``).
        seconds: The timeout of the group in seconds.
    """
    size, timeout = dist.get_world_size(), datetime.timedelta(seconds=seconds)
    processes_per_share = size // num_shares
    groups = [dist.new_group(list(range(first, size, processes_per_share)), timeout=timeout) for first in range(processes_per_share)]
    group: dist.ProcessGroup = groups[dist.get_rank() % processes_per_share]
    return group


_left: list[Any] = []


def _leave_at_exit() -> None:
    """Leave the process group when this process exits, unless an uncaught error ended the program.

    After an uncaught error, this process does not leave the group, because others may be waiting in a collective. In either case, this
    function waits until torch's threads are idle.
    """
    if not hasattr(sys, "last_type"):
        _destroy()
        _left.clear()
    thread_shutdown.wait_for_torch_threads()


def leave(user: object) -> None:
    """Record that the Runtime ``user`` no longer uses the process group.

    Destroys the group if ``join`` created it and no other Runtime uses it. Does not wait for the other processes.
    """
    global _own_group
    _users.discard(user)
    if not _users and _own_group is not None:
        if dist.is_initialized() and dist.group.WORLD is _own_group:
            _destroy()
        _own_group = None


def _destroy() -> None:
    """Destroy the default process group.

    A reference to the group is kept. Otherwise, freeing a DistributedDataParallel later could release the last reference in a thread that
    holds Python's global interpreter lock. gloo's destructor would then wait for threads that may be waiting for that lock.
    """
    if dist.is_initialized():
        _left.append(dist.group.WORLD)
        dist.destroy_process_group()
