"""Where the machines of a job meet: torch's rendezvous, with the machines in the user's order and a store of its own for every round."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
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


class OrderedRendezvous(RendezvousHandler):
    """A rendezvous around another one.

    Args:
        inner: Finds the machines.
        node_rank: This machine's, if the user said; all must, or none.
        address: Under which the others reach this machine.

    The machine with rank 0 opens a new TCPStore for every round, on a port that the system picks, and keeps it open while the round
    lasts: no other job can take the port, and no process reads the addresses that a killed one left. torch shares one store among
    all rounds instead, and gloo fails in the second: https://github.com/pytorch/pytorch/issues/135712,
    https://github.com/pytorch/pytorch/issues/167288.
    """

    def __init__(self, inner: RendezvousHandler, node_rank: int | None, address: str) -> None:
        self._inner, self._node_rank, self._address = inner, node_rank, address
        self._store: Any = None
        self.remaining_restarts = 0
        """How many restarts this machine would allow; after a rendezvous, the least that any of them would: the job has one count."""

    @property
    def use_agent_store(self) -> bool:
        """Yes: rank 0 is a client of the store, too."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other machines.

        Raises:
            ContradictionError: If two machines have one rank, or some have none.
        """
        with _stores_unshared():
            info = self._inner.next_rendezvous()
        store: Any = info.store
        rank = self._place(store, info.rank, info.world_size)
        if rank == 0:
            self._store = local_store() if info.world_size == 1 else _store_for_all(self._address)
            store.set(f"{_KEY}main", json.dumps([self._address, self._store.port]))
        address, port = json.loads(store.get(f"{_KEY}main"))
        return RendezvousInfo(store, rank, info.world_size, RendezvousStoreInfo(address, port))

    def _place(self, store: Any, joined: int, size: int) -> int:
        """This machine's place: the user's, else that in which torch found it."""
        store.set(f"{_KEY}node/{joined}", json.dumps([self._node_rank, socket.gethostname(), self.remaining_restarts]))
        machines = [json.loads(store.get(f"{_KEY}node/{index}")) for index in range(size)]
        self.remaining_restarts = min(remaining for _, _, remaining in machines)
        said = [rank for rank, _, _ in machines]
        if all(rank is None for rank in said):
            return joined
        if None in said or sorted(said) != list(range(size)):
            linger(store, size)
            raise ContradictionError(
                f"--node-rank is not 0 to {size - 1}, each once",
                why=", ".join(f"{host} says {'nothing' if rank is None else rank}" for rank, host, _ in machines),
                hint="give every machine its own --node-rank, or none of them one",
            )
        return int(said[joined])

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


def local_store() -> Any:
    """A new TCPStore that this machine's processes reach, and nobody else: it listens on the loopback interface."""
    return _store_on(HERE)


def _store_for_all(address: str) -> Any:
    """A new TCPStore on the interface with ``address``; on all, if none has it: others may reach this machine through a translation."""
    try:
        return _store_on(address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
            raise
        return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def _store_on(address: str) -> Any:
    """A new TCPStore, on a port that the system picks, that listens on the interface with ``address`` only."""
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((address, 0), family=family)
    port = listening.getsockname()[1]
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())  # type: ignore[attr-defined]


def in_this_process(run_id: str) -> RendezvousHandler:
    """The rendezvous of a machine that is alone: its state, which torch pickles, is in this process's memory and behind no port."""
    store = HashStore()
    parameters = RendezvousParameters(backend="c10d", endpoint="", run_id=run_id, min_nodes=1, max_nodes=1)
    return create_handler(store, C10dRendezvousBackend(store, run_id), parameters)


@contextlib.contextmanager
def _stores_unshared() -> Iterator[None]:
    """Inside, torch does not share one store among all rounds. It reads this from the environment, which is put back for the ranks."""
    before = os.environ.get(_UNSHARED)
    os.environ[_UNSHARED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_UNSHARED]
        else:
            os.environ[_UNSHARED] = before


def linger(store: Any, size: int) -> None:
    """Stay until every machine of the round has come here, or a few seconds: the store may go with this process, and others read in it."""
    deadline = time.monotonic() + _FAREWELL_SECONDS
    with contextlib.suppress(RuntimeError):  # torch.distributed's errors: it has gone
        store.add(f"{_KEY}leaving", 1)
        while int(store.add(f"{_KEY}leaving", 0)) < size and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def address_towards(endpoint: str) -> str:
    """The address with which this machine reaches ``endpoint`` (``host:port``), which is one by which machines there reach it.

    A look at the routing table: nothing is sent. The endpoint's own host if it cannot be told.
    """
    host, port = parse_rendezvous_endpoint(endpoint, default_port=1)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return str(host)
