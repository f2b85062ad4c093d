"""A process group together with the device of this process, for use by collectives."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

from accelkit.errors import UsageError
from accelkit.runtime.collectives.verification import History, Mode

HOST = torch.default_generator.device.type
SMALL_GROUP = 16
_LENGTH = struct.Struct("<q")
_EXCHANGE_TAG = 0xF3
_histories: weakref.WeakKeyDictionary[dist.ProcessGroup, History] = weakref.WeakKeyDictionary()


def device_types(group: dist.ProcessGroup | None) -> list[str]:
    """Return the device types for which the group has a backend. ``group=None`` means the group of all processes of the job."""
    config = dist.get_backend_config(group)  # such as cpu:gloo,<device type>:<backend>
    return [part.partition(":")[0] for part in config.split(",")]


class Communicator:
    """A process group together with the device of this process. A communicator is the first argument of the collectives of this package.

    Creating a communicator sends nothing. Several communicators may exist for one group. They share one count of calls, because the
    count belongs to the group.

    Args:
        group: The torch process group. None means the group of all processes of the job.
        device: The device of this process. Data on a device for which the group has no backend are first copied to the device of this
            process or, if the group has no backend for that device either, to the host.
        verification: Which calls are verified (see the module ``verification``). Must be the same on all members. In a group that does
            not use gloo on the host, every call is verified, because in such a group, an unexpected packet could be mistaken for data.

    Attributes:
        verification: The mode that is in effect.
        history: The calls in this group, shared by all communicators of the group in this process.
        ranks: The members' ranks in the job, in the order of the group.
        rank: The rank of this process in the group.
        device_types: The device types for which the group has a backend.
        has_gloo: Whether the group uses gloo on the host.

    Raises:
        UsageError: If this process is not in the group.
    """

    __slots__ = ("device", "device_types", "group", "has_gloo", "history", "rank", "ranks", "verification")

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device, verification: Mode = "always") -> None:
        if dist.get_rank(group) < 0:
            raise UsageError(
                f"rank {dist.get_rank()} called a collective of a group that it does not belong to",
                why="dist.new_group returns a usable group only on its members",
                hint="make the call on the members of the group only",
            )
        chosen = group if group is not None else dist.group.WORLD
        assert chosen is not None  # get_rank would have raised an error if torch.distributed were not initialised
        self.group = chosen
        self.device = device
        self.ranks: Sequence[int] = dist.get_process_group_ranks(self.group)
        self.rank = dist.get_rank(self.group)
        self.device_types = frozenset(device_types(self.group))
        self.has_gloo = f"{HOST}:gloo" in dist.get_backend_config(self.group).split(",")
        self.verification: Mode = verification if self.has_gloo else "always"
        self.history = _histories.setdefault(self.group, History())

    @property
    def size(self) -> int:
        """Number of processes in the group."""
        return len(self.ranks)

    @property
    def is_large(self) -> bool:
        """Whether the group has more than SMALL_GROUP members and uses gloo on the host.

        In a large group, each member exchanges messages with only log2(size) other members where possible.
        """
        return self.has_gloo and self.size > SMALL_GROUP

    @property
    def sends_inline(self) -> bool:
        """Whether ``gather`` and ``reduce`` send small data in the packet that verifies the call.

        True only in ``always`` mode. In the other modes, some calls are not verified, and these calls have no packet. If the verified
        calls of these modes sent their data in the packet, the sums of verified and unverified calls could be rounded differently.
        """
        return self.verification == "always"

    def can_move(self, tensor: torch.Tensor) -> bool:
        """Return whether the group has a backend for the device type of this tensor."""
        return tensor.device.type in self.device_types

    def exchange(self, mine: bytes) -> list[bytes]:
        """Send ``mine`` to all members, and return the bytes that each member sent, in the order of the group.

        Members may send different numbers of bytes. During the exchange, each message is padded to the length of the longest message.
        """
        text = _LENGTH.pack(len(mine)) + mine
        if self.has_gloo:
            longest = -self.minimum([-len(text)], _EXCHANGE_TAG)[0]
        else:
            lengths = self._all_gather(bytearray(_LENGTH.pack(len(text))))
            longest = max(length for (length,) in _LENGTH.iter_unpack(lengths))
        everyone = bytes(self._all_gather(bytearray(text.ljust(longest, b"\0"))))
        parts = [everyone[start : start + longest] for start in range(0, len(everyone), longest)]
        return [part[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(part)[0]] for part in parts]

    def exchange_packets(self, mine: bytes | bytearray) -> list[bytes]:
        """Send ``mine`` to all members, and return the bytes that each member sent. All members must send the same small number of bytes.

        Over gloo, packets are sent with ``all_to_all``, which sends each message straight to its receiver. gloo's ``all_gather`` would pass
        messages on from rank to rank. Only packets are sent with ``all_to_all``, so that no packet can be mistaken for data.
        """
        if self.has_gloo:
            received = torch.empty(self.size, len(mine), dtype=torch.uint8)
            sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8).repeat(self.size, 1)
            dist.all_to_all_single(received, sent, group=self.group)
            everyone = received.numpy().tobytes()
        else:
            everyone = bytes(self._all_gather(bytearray(mine)))
        return [everyone[start : start + len(mine)] for start in range(0, len(everyone), len(mine))]

    def minimum(self, numbers: Sequence[int], tag: int) -> list[int]:
        """Return the element-wise minimum of the ``numbers`` of all members. Use this only if ``has_gloo`` is True.

        In a large group, each member sends log2(size) messages, rounded up. Each message contains the smallest numbers that the member
        knows. The first message goes to the next member, and each later message goes twice as far as the message before it (the
        dissemination algorithm of Hensgen, Finkel and Manber, 1988). In gloo's ``all_reduce``, which uses a ring, the members wait for
        2 (size - 1) messages that are sent one after another.

        Args:
            numbers: Signed 64-bit integers. Every member must pass the same number of integers.
            tag: A number that distinguishes these messages from messages for other purposes.
        """
        smallest = torch.tensor(numbers, dtype=torch.int64, device=HOST)
        if not self.is_large:
            dist.all_reduce(smallest, dist.ReduceOp.MIN, group=self.group)
            return [int(number) for number in smallest.tolist()]
        distances = [2**number for number in range((self.size - 1).bit_length())]
        senders, receivers = ([self.ranks[(self.rank + sign * distance) % self.size] for distance in distances] for sign in (-1, 1))
        received = [torch.empty_like(smallest) for _ in distances]
        receiving = [dist.irecv(part, src=rank, group=self.group, tag=tag) for part, rank in zip(received, senders, strict=True)]
        sending = []
        for part, rank, work in zip(received, receivers, receiving, strict=True):
            sending.append((dist.isend(smallest, dst=rank, group=self.group, tag=tag), smallest))
            assert work is not None  # None only on processes that are not members
            work.wait()
            smallest = torch.minimum(smallest, part)
        for sent, _ in sending:
            assert sent is not None
            sent.wait()
        return [int(number) for number in smallest.tolist()]

    def _all_gather(self, mine: bytearray) -> bytearray:
        everyone = bytearray(len(mine) * self.size)
        if mine:
            ours, theirs = torch.frombuffer(mine, dtype=torch.uint8), torch.frombuffer(everyone, dtype=torch.uint8)
            if HOST in self.device_types:
                dist.all_gather(list(theirs.chunk(self.size)), ours, group=self.group)
            else:
                received = torch.empty(len(everyone), dtype=torch.uint8, device=self.device)
                dist.all_gather(list(received.chunk(self.size)), ours.to(self.device), group=self.group)
                theirs.copy_(received)
        return everyone
