"""Rendezvous of a job's machines. It wraps torch's rendezvous, and gives each machine the rank that the user specified, if any.

Each rendezvous begins a new round of the job. Every round has a store of its own."""

from __future__ import annotations

import collections
import contextlib
import datetime
import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from accelkit.errors import ContradictionError
from accelkit.launching.job import HERE

_KEY = "accelkit/"
_UNSHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_FAREWELL_SECONDS = 5.0
_POLL_SECONDS = 0.02
_WATCHED = 8
_SHOWN = 8


class OrderedRendezvous(RendezvousHandler):
    """A rendezvous that wraps another one, applies the node ranks that the user specified, and uses a new store in every round.

    The machine with rank 0 opens a new TCPStore for every round, on a port that the system picks, and keeps it open during the round. No
    other job can take the port, and no process reads addresses that a killed process left in a store. By contrast, torch shares one
    store among all rounds, and gloo then fails in the second round: https://github.com/pytorch/pytorch/issues/135712,
    https://github.com/pytorch/pytorch/issues/167288.

    Args:
        inner: The rendezvous that finds the machines.
        node_rank: The rank of this machine if the user specified it, else None. It must be given on all machines or on none.
        address: The address at which the other machines reach this machine.
    """

    read_timeout: datetime.timedelta | None = None
    """The time for which this machine waits for a value that another machine of the round writes. None means the timeout of the store."""

    def __init__(self, inner: RendezvousHandler, node_rank: int | None, address: str) -> None:
        self._inner, self._node_rank, self._address = inner, node_rank, address
        self._own_store: Any = None
        self.store: Any = None
        """The store through which the machines of the current round exchange messages. None before the first rendezvous."""
        self.remaining_restarts = 0
        """The number of restarts that this machine allows. After a rendezvous, the minimum of these numbers over all machines."""
        self.number = 0
        """The number by which ``membership.Members`` knows this machine, if the number of machines may change."""
        self.watched: list[int] = []
        """The numbers of the machines whose heartbeats this machine watches: up to eight that joined the current round directly after it.
        The first machine follows the last. If machines are lost, a remaining machine therefore watches at least one of the lost ones."""

    @property
    def use_agent_store(self) -> bool:
        """Always True: the agent hosts the store, so rank 0 connects to it like every other process."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other machines, and return this machine's rank and the number of machines.

        The returned value also contains the store of torch's rendezvous, and the address of a second store: the TCPStore that the machine
        with rank 0 has just opened.

        Raises:
            ContradictionError: If the user specified ranks, but the ranks of the n machines are not the numbers 0 to n - 1, each used once.
        """
        with _stores_unshared():
            info = self._inner.next_rendezvous()
        store = self.store = info.store
        if self.read_timeout is not None:
            store.set_timeout(self.read_timeout)
        rank = self._place(store, info.rank, info.world_size)
        if rank == 0:
            own, self._own_store = (HERE, local_store()) if info.world_size == 1 else (self._address, _store_for_all(self._address))
            store.set(f"{_KEY}main", json.dumps([own, self._own_store.port]))
        address, port = json.loads(store.get(f"{_KEY}main"))
        return RendezvousInfo(store, rank, info.world_size, RendezvousStoreInfo(address, port))

    def _place(self, store: Any, joined: int, size: int) -> int:
        """Return the rank of this machine: the rank that the user specified, or else the rank that torch assigned.

        Each machine writes a record to the store. The machine that joined first reads all records, and writes one answer for each machine.
        If every machine read all records, the number of bytes that the host of the store sends would grow with the square of the number
        of machines.
        """
        store.set(f"{_KEY}node/{joined}", json.dumps([self._node_rank, socket.gethostname(), self.remaining_restarts, self.number]))
        if joined == 0:
            machines = [_Machine(*json.loads(store.get(f"{_KEY}node/{index}"))) for index in range(size)]
            for index, answer in enumerate(_answers(machines)):
                store.set(f"{_KEY}answer/{index}", json.dumps(answer))
        contradiction, rank, self.remaining_restarts, self.watched = json.loads(store.get(f"{_KEY}answer/{joined}"))
        if contradiction:
            linger(store, size)
            raise ContradictionError(
                f"the machines must have the node ranks 0 to {size - 1}, each exactly once",
                why=contradiction,
                hint="give every machine its own --node-rank, or omit it on all machines",
            )
        return int(rank)

    def get_backend(self) -> str:
        return self._inner.get_backend()

    def is_closed(self) -> bool:
        return self._inner.is_closed()

    def set_closed(self) -> None:
        self._inner.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        return self._inner.shutdown()


class _Machine(NamedTuple):
    """The record that a machine writes, as a JSON list, to the store of a round of the rendezvous.

    ``host`` is the host name of the machine. ``OrderedRendezvous`` describes the other fields.
    """

    node_rank: int | None
    host: str
    remaining_restarts: int
    number: int


def _answers(machines: Sequence[_Machine]) -> Iterator[tuple[str, int, int, list[int]]]:
    """Yield the answer for each machine, in the order in which the machines joined the round.

    An answer has four values:

    - A description of the ranks that the user specified if these ranks are invalid, otherwise "".
    - The rank of the machine that receives the answer.
    - The smallest ``remaining_restarts`` of all machines.
    - The numbers of the machines whose heartbeats the receiving machine must watch.
    """
    size = len(machines)
    ranks = [machine.node_rank for machine in machines]
    places = list(range(size)) if all(rank is None for rank in ranks) else [-1 if rank is None else rank for rank in ranks]
    contradiction = "" if sorted(places) == list(range(size)) else _described(machines)
    remaining = min(machine.remaining_restarts for machine in machines)
    for index, rank in enumerate(places):
        yield contradiction, rank, remaining, [machines[(index + after) % size].number for after in range(1, min(_WATCHED + 1, size))]


def _described(machines: Sequence[_Machine]) -> str:
    """Describe the ranks that the user specified, for at most _SHOWN machines.

    Machines that have no rank, or the same rank as another machine, come first.
    """
    times = collections.Counter(machine.node_rank for machine in machines)
    ordered = sorted(machines, key=lambda machine: machine.node_rank is not None and times[machine.node_rank] == 1)
    told = [
        f"{machine.host} has {'no --node-rank' if machine.node_rank is None else f'--node-rank {machine.node_rank}'}"
        for machine in ordered[:_SHOWN]
    ]
    return ", ".join(told + [f"and {len(machines) - _SHOWN} more"] * (len(machines) > _SHOWN))


def local_store() -> Any:
    """Return a new TCPStore on the loopback interface, which only processes of this machine can reach."""
    return _store_on(HERE)


def _store_for_all(address: str) -> Any:
    """Return a new TCPStore that listens on the interface with ``address``.

    If no interface has this address, or if the address cannot be resolved, the store listens on all interfaces, because other machines may
    reach this machine through address translation.
    """
    try:
        return _store_on(address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
            raise
        return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)


def _store_on(address: str) -> Any:
    """Return a new TCPStore that listens only on the interface with ``address``, on a port that the system picks."""
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((address, 0), family=family)
    port = listening.getsockname()[1]
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def in_this_process(run_id: str) -> RendezvousHandler:
    """Return the rendezvous for a single machine.

    torch keeps the state of a rendezvous in a store, as pickled data. Here, the store is in the memory of this process and does not listen
    on a port, so no other process can replace the data with a malicious pickle.
    """
    store = dist.HashStore()
    parameters = RendezvousParameters(backend="c10d", endpoint="", run_id=run_id, min_nodes=1, max_nodes=1)
    return create_handler(store, C10dRendezvousBackend(store, run_id), parameters)


@contextlib.contextmanager
def _stores_unshared() -> Iterator[None]:
    """Inside the context, stop torch from sharing one store among all rounds.

    The context manager sets the environment variable that turns the sharing off. At the end of the context, it restores the previous
    value, so that the processes of the job do not inherit the setting.
    """
    before = os.environ.get(_UNSHARED)
    os.environ[_UNSHARED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_UNSHARED]
        else:
            os.environ[_UNSHARED] = before


def linger(store: Any, size: int, seconds: float = _FAREWELL_SECONDS) -> None:
    """Wait until all ``size`` machines of the round have called this function, but for at most ``seconds`` seconds.

    Without this wait, the process that hosts the store could exit while other machines still read from the store.
    """
    deadline = time.monotonic() + seconds
    with contextlib.suppress(RuntimeError):  # from torch.distributed: the store no longer exists
        store.add(f"{_KEY}leaving", 1)
        while int(store.add(f"{_KEY}leaving", 0)) < size and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def address_towards(endpoint: str) -> str:
    """Return the local IP address from which this machine reaches ``endpoint`` (``host:port``). Other machines connect to this address.

    The host name and the route are looked up, but nothing is sent to the endpoint. If either lookup fails, the host of the endpoint is
    returned instead.
    """
    host, port = parse_rendezvous_endpoint(endpoint, default_port=1)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return str(host)
