"""Rank 0 of a large job, without the other ranks: a process group and a store that make the others' messages and count them.

The code that runs is accelkit's own. What the other ranks send is encoded with the same functions that they would use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from accelkit.runtime.collectives import object_collectives
from accelkit.runtime.collectives.communicator import Communicator

BACKEND = "simulated"


@dataclasses.dataclass(slots=True)
class Count:
    """Messages and bytes at rank 0, or at the host of the store, and its CPU time."""

    received: float = 0
    sent: float = 0
    messages: float = 0
    seconds: float = 0.0


class Clock:
    """CPU time of this process, without the time that it spends on behalf of the other ranks."""

    def __init__(self) -> None:
        self._outside = 0.0

    def seconds(self) -> float:
        return time.process_time() - self._outside

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self._outside += time.process_time() - began


class SimulatedGroup(dist.ProcessGroup):
    """The process group as rank 0 sees it. Messages are counted as gloo sends them, without its headers.

    Attributes:
        count, clock: What rank 0 received and sent, and the CPU time that it used.
        acting: The rank whose messages are being made; 0 while rank 0's own code runs.
        next_object: Returns the next object that a rank sends to rank 0.
        packet: Returns a rank's part of a collective, given rank 0's own.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)
        self._store = store
        self._queues: dict[int, list[bytes]] = {}
        self._tagged: dict[int, bytes] = {}
        self.count, self.clock, self.acting = Count(), Clock(), 0
        self.next_object: Callable[[int], Any] = lambda rank: None
        self.packet: Callable[[int, bytes], bytes] = lambda rank, mine: mine

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def get_group_store(self) -> dist.Store:
        return self._store

    def getBackendName(self) -> str:
        return BACKEND

    def rank(self) -> int:
        return self.acting

    @contextlib.contextmanager
    def measured(self) -> Iterator[Count]:
        """Count what happens inside the block."""
        self.count, began = Count(), self.clock.seconds()
        yield self.count
        self.count.seconds = self.clock.seconds() - began

    @contextlib.contextmanager
    def as_rank(self, rank: int) -> Iterator[None]:
        before, self.acting = self.acting, rank
        try:
            yield
        finally:
            self.acting = before

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> dist.Work:
        if self.acting:
            self._queues.setdefault(self.acting, []).append(tensors[0].numpy().tobytes())
        else:
            self._tagged[tag] = tensors[0].numpy().tobytes()
            self.count.sent += len(self._tagged[tag])
            self.count.messages += 1
        return Done()

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> dist.Work:
        if tag:
            return Alike(self, tensors[0], tag)
        if not self._queues.get(src):
            with self.clock.outside(), self.as_rank(src):
                object_collectives.send(self.next_object(src), 0)
        text = self._queues[src].pop(0)
        self._receive(len(text), 1)
        tensors[0].copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        return Done()

    def receive_alike(self, tensor: torch.Tensor, tag: int) -> None:
        """Receive what rank 0 has sent under this tag: ranks that compare digests, or vote, send the same as rank 0 if all agree."""
        self._receive(len(self._tagged[tag]), 1)
        tensor.copy_(torch.frombuffer(bytearray(self._tagged[tag]), dtype=tensor.dtype))

    def all_to_all_single(self, output: torch.Tensor, given: torch.Tensor, *_: Any) -> dist.Work:
        with self.clock.outside():
            mine = given[0].numpy().tobytes()
            for rank, row in enumerate(output):
                row.copy_(torch.frombuffer(bytearray(self.packet(rank, mine) if rank else mine), dtype=torch.uint8))
        self._exchange(len(mine))
        return Done()

    alltoall_base = all_to_all_single  # its name before torch 2.13

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *_: Any) -> dist.Work:
        with self.clock.outside():
            mine = inputs[0].numpy().tobytes()
            for rank, part in enumerate(outputs[0]):
                part.copy_(torch.frombuffer(bytearray(self.packet(rank, mine) if rank else mine), dtype=torch.uint8))
        self._exchange(len(mine))
        return Done()

    def _exchange(self, length: int) -> None:
        others = self.size() - 1
        self._receive(others * length, others)
        self.count.sent += others * length
        self.count.messages += others

    def _receive(self, num_bytes: int, messages: int) -> None:
        self.count.received += num_bytes
        self.count.messages += messages


class Done(dist.Work):
    """A message that has arrived."""

    def wait(self, timeout: datetime.timedelta = datetime.timedelta()) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Alike(Done):
    """A message that arrives when it is waited for (see ``SimulatedGroup.receive_alike``)."""

    def __init__(self, group: SimulatedGroup, tensor: torch.Tensor, tag: int) -> None:
        super().__init__()
        self._receive = functools.partial(group.receive_alike, tensor, tag)

    def wait(self, timeout: datetime.timedelta = datetime.timedelta()) -> bool:
        self._receive()
        return True


class CountingStore(dist.Store):
    """A store that counts what its host would receive and send when this process sets and gets values.

    ``others`` returns the value that another rank has set.

    A request of torch's TCPStore has one byte for its kind and eight for each length.
    """

    def __init__(self, others: Callable[[str], bytes]) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._others = others
        self.count = Count()
        self.clock = Clock()

    def set(self, key: str, value: bytes | str) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
        self.count.received += 17 + len(key) + len(self._values[key])
        self.count.messages += 1

    def get(self, key: str) -> bytes:
        if key not in self._values:
            with self.clock.outside():
                self._values[key] = self._others(key.rpartition("/")[2])
        self.count.received += 9 + len(key)
        self.count.sent += 8 + len(self._values[key])
        self.count.messages += 2
        return self._values[key]

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        value = self._values.setdefault(key, desired.encode() if isinstance(desired, str) else bytes(desired))
        self.count.received += 25 + len(key) + len(expected) + len(desired)
        self.count.sent += 8 + len(value)
        self.count.messages += 2
        return value

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:
        self.check(keys)

    def has_extended_api(self) -> bool:
        return True

    def multi_get(self, keys: list[str]) -> list[bytes]:
        before = self.count.messages
        values = [self.get(key) for key in keys]
        self.count.messages = before + 2
        return values

    def check(self, keys: list[str]) -> bool:
        self.count.received += 9 + sum(8 + len(key) for key in keys)
        self.count.sent += 1
        self.count.messages += 2
        return True


def make_group(size: int, store: dist.Store | None = None) -> SimulatedGroup:
    """Make the default process group of a job of ``size`` ranks, of which this process is rank 0."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, SimulatedGroup, devices=["cpu"])
    dist.init_process_group(BACKEND, store=store or dist.HashStore(), rank=0, world_size=size)
    group: Any = dist.group.WORLD
    return group


def over_gloo(mode: str = "always") -> Communicator:
    """Return a communicator that sends over the simulated group what it would send over gloo."""
    communicator = Communicator(None, torch.device("cpu"), mode)
    communicator.has_gloo, communicator.verification = True, mode
    return communicator
