"""Heartbeats and rendezvous of the machines in a job whose number of machines may change."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import socket
import threading
import time
from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import DEFAULT_PORT, C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from accelkit.launching.job import Job
from accelkit.launching.rendezvous import OrderedRendezvous, address_towards

HEARTBEAT_SECONDS = 2
HEARTBEATS_MISSED = 5
LOST_SECONDS = HEARTBEAT_SECONDS * HEARTBEATS_MISSED
"""The time without a heartbeat after which a machine is considered lost."""

_BEAT_SECONDS = 1.0
_READ_TIMEOUT = datetime.timedelta(seconds=15)
_WAITED = "waited in vain"
_STOP = "accelkit/stop"


class ElasticRendezvous(OrderedRendezvous):
    """A rendezvous of the machines that are present.

    ``next_rendezvous`` may find a different number of machines on each call. It raises DistStoreError if a machine is lost during the
    rendezvous. In that case, call it again.

    Args:
        inner: The rendezvous that finds the machines.
        address: The address at which the other machines reach this machine.
        number: The number of this machine, as in ``Members``.
    """

    read_timeout = _READ_TIMEOUT

    def __init__(self, inner: RendezvousHandler, address: str, number: int) -> None:
        super().__init__(inner, None, address)
        self.number = number
        self.has_changed = False
        """Whether a new rendezvous is necessary, because a machine has left, is lost or wants to join."""

    def num_nodes_waiting(self) -> int:
        """Return 1 if a new rendezvous is necessary, else 0.

        If this method returns 1, torch's agent restarts the processes. This restart does not count towards ``max_restarts``.
        """
        return int(self.has_changed)

    def has_newcomers(self) -> bool:
        """Return whether machines are waiting to join the job."""
        return self._inner.num_nodes_waiting() > 0


class Members:
    """All machines that have ever joined a job. Each machine writes a heartbeat to the store.

    Creating an instance adds this machine and starts its heartbeat.

    torch's rendezvous has heartbeats too, but it does not say which machine is lost, and it compares the clocks of different machines.

    Args:
        host, port: The address of the store.
        run_id: The ID of the job.

    Attributes:
        number: The number of this machine, counted from 0 in the order in which the machines joined.
    """

    def __init__(self, host: str, port: int, run_id: str) -> None:
        # a connection of its own, because the rendezvous blocks its connection while it waits for a value
        connection = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_READ_TIMEOUT)
        self._store = dist.PrefixStore(f"accelkit/{run_id}", connection)
        self.number = int(self._store.add("machines", 1)) - 1
        self._store.set(f"host/{self.number}", socket.gethostname())
        self._store.set(f"beat/{self.number}", "0")
        self._watched: dict[int, tuple[bytes, float]] = {}
        self._expected: set[int] = set()
        self._read_at = 0.0
        self._has_left = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="accelkit-heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        with contextlib.suppress(RuntimeError):  # from torch.distributed: the store no longer exists, which the rendezvous notices as well
            while not self._has_left.wait(_BEAT_SECONDS):
                count += 1
                self._store.set(f"beat/{self.number}", str(count))

    def watch(self, numbers: Sequence[int]) -> None:
        """From now on, watch only the heartbeats of the machines with these numbers. This machine itself is not watched."""
        now = time.monotonic()
        self._watched = {number: (b"", now) for number in numbers if number != self.number}
        self._expected = set()
        self._read_at = now

    def lost(self) -> str:
        """Return the comma-separated names of the watched machines whose heartbeats have stopped, or "" if there are none.

        Reads the heartbeats at most once a second. A call less than a second after the last reading returns "", even if machines are lost.
        """
        now = time.monotonic()
        if not self._watched or now - self._read_at < _BEAT_SECONDS:
            return ""
        gap, self._read_at = now - self._read_at, now
        silent = []
        for number, beat in self._beats(list(self._watched)).items():
            before, since = self._watched[number]
            if beat != before:
                self._expected.discard(number)
            if beat != before or gap > LOST_SECONDS / 2:  # a long gap: this process was stopped, so nothing is known about the others
                self._watched[number] = beat, now
            elif now - since > LOST_SECONDS:
                silent.append(number)
        return self._names(silent)

    def expect_heartbeats(self) -> None:
        """Expect a new heartbeat from every watched machine, as proof that the machine is still running. ``lost`` reads the heartbeats."""
        for number, beat in self._beats(list(self._watched)).items():
            before, since = self._watched[number]
            self._watched[number] = beat, since if beat == before else time.monotonic()
        self._expected = set(self._watched)

    @property
    def lacks_heartbeats(self) -> bool:
        """Whether at least one watched machine has not yet been seen to write a heartbeat since the last call of ``expect_heartbeats``."""
        return bool(self._expected)

    def present(self) -> list[str]:
        """Return the names of the machines that are present. Takes a few seconds, and stops this machine's heartbeat.

        A machine counts as present if its heartbeat continues or if it has called this method.
        """
        self._has_left.set()
        self._thread.join(_READ_TIMEOUT.total_seconds())
        self._store.set(f"beat/{self.number}", _WAITED)
        everybody = list(range(int(self._store.add("machines", 0))))
        before = self._beats(everybody)
        time.sleep(2.5 * _BEAT_SECONDS)
        after = self._beats(everybody)
        return [self._names([number]) for number in everybody if after[number] != before[number] or after[number] == _WAITED.encode()]

    def leave(self) -> None:
        """Stop this machine's heartbeat."""
        self._has_left.set()
        self._thread.join(_READ_TIMEOUT.total_seconds())

    def _beats(self, numbers: Sequence[int]) -> dict[int, bytes]:
        return dict(zip(numbers, self._store.multi_get([f"beat/{number}" for number in numbers]), strict=True))

    def _names(self, numbers: Sequence[int]) -> str:
        return ", ".join(self._store.get(f"host/{number}").decode() for number in numbers)


def ask_to_stop(store: dist.Store, reason: str) -> str:
    """Ask all machines of the current round to stop their processes for a new rendezvous.

    Returns:
        The reason that the first machine gave. This is ``reason``, unless another machine asked earlier in this round.
    """
    return str(json.loads(store.compare_set(_STOP, "", json.dumps(reason))))


def reason_to_stop(store: dist.Store) -> str:
    """Return why the machines of the current round have to stop their processes for a new rendezvous, or "" if they may continue."""
    return str(json.loads(store.get(_STOP))) if store.check([_STOP]) else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Membership:
    """What this machine needs to take part in a job whose number of machines may change.

    Attributes:
        rendezvous: The rendezvous of the machines that are present.
        members: All machines that have ever joined the job.
        is_host: Whether this process hosts the store that all machines use. If it does, the job cannot continue without this process.
    """

    rendezvous: ElasticRendezvous
    members: Members
    is_host: bool


def join_job(job: Job) -> Membership:
    """Connect this machine to the store of a job whose number of machines may change, and start to write heartbeats.

    If ``job.rdzv_endpoint`` is an address of this machine and its port is free, this process hosts the store. Otherwise, this function
    waits up to ``job.join_timeout`` seconds for the machine that hosts the store. It does not wait for any other machine.

    Raises:
        RendezvousConnectionError, DistError: If the store cannot be reached.
    """
    host, port = parse_rendezvous_endpoint(job.rdzv_endpoint, default_port=DEFAULT_PORT)
    store, is_host = _store(host, port, datetime.timedelta(seconds=job.join_timeout))
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=job.rdzv_endpoint,
        run_id=job.rdzv_id,
        min_nodes=job.min_nodes or 1,
        max_nodes=job.num_nodes,
        join_timeout=job.join_timeout,
        last_call_timeout=job.last_call_timeout,
        keep_alive_interval=HEARTBEAT_SECONDS,
        keep_alive_max_attempt=HEARTBEATS_MISSED,
    )
    inner = create_handler(store, C10dRendezvousBackend(store, job.rdzv_id), parameters)
    members = Members(host, port, job.rdzv_id)
    address = host if is_host else address_towards(job.rdzv_endpoint)
    return Membership(ElasticRendezvous(inner, address, members.number), members, is_host)


def _store(host: str, port: int, timeout: datetime.timedelta) -> tuple[dist.TCPStore, bool]:
    """Return the store at this address, and whether this process hosts the store.

    This process hosts the store if ``host`` is this machine and the port is free.
    """
    if _is_here(host):
        with contextlib.suppress(RuntimeError):  # from torch.distributed: the port is in use, by a process of this job or another program
            return dist.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout), True
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout), False


def _is_here(host: str) -> bool:
    """Return whether ``host`` is a name or an address of this machine."""
    if host in (socket.gethostname(), socket.getfqdn()):
        return True
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.bind(address)
                return True
    return False
