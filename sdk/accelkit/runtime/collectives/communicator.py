"""A process group as one process sees it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
import torch.distributed as dist

from accelkit.errors import UsageError

HOST = torch.default_generator.device.type


def device_types(group: dist.ProcessGroup | None) -> list[str]:
    """Return the device types for which a group has a backend. None stands for the group of all processes of the job."""
    config = dist.get_backend_config(group)  # such as cpu:gloo,<device type>:<backend>
    return [part.partition(":")[0] for part in config.split(",")]


class Communicator:
    """A process group together with the device of this process. The collectives of this package take one as their first argument.

    Creating a communicator sends nothing, and several may exist for one group. All of them continue the same count of calls, because
    the count belongs to the group.

    Args:
        group: The process group of torch. None stands for the group of all processes of the job.
        device: The device of this process. Data for which the group has no backend are sent from this device or from the host.

    Attributes:
        ranks: The members' ranks in the job, in the order of the group.
        rank: The rank of this process in the group.
        device_types: The device types for which the group has a backend.

    Raises:
        UsageError: If this process is not in the group.
    """

    __slots__ = ("device", "device_types", "group", "rank", "ranks")

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        if dist.get_rank(group) < 0:
            raise UsageError(
                f"rank {dist.get_rank()} called a collective of a group that it is not in",
                why="dist.new_group gives processes outside the group no group",
                hint="let only the members of the group make the call",
            )
        chosen = group if group is not None else dist.group.WORLD
        assert chosen is not None  # get_rank has raised an error if torch.distributed is not initialised
        self.group = chosen
        self.device = device
        self.ranks: Sequence[int] = dist.get_process_group_ranks(self.group)
        self.rank = dist.get_rank(self.group)
        self.device_types = frozenset(device_types(self.group))

    @property
    def size(self) -> int:
        """Number of processes in the group."""
        return len(self.ranks)

    def can_move(self, tensor: torch.Tensor) -> bool:
        """Return whether the group has a backend for the device type of this tensor."""
        return tensor.device.type in self.device_types

    def exchange(self, mine: bytes) -> list[bytes]:
        """Return the bytes of each member. They may have any length; the lengths are exchanged first, then the bytes."""
        lengths = struct.unpack(f"<{self.size}Q", self.all_gather_bytes(bytearray(struct.pack("<Q", len(mine)))))
        longest = max(lengths)
        everyone = self.all_gather_bytes(bytearray(mine.ljust(longest, b"\0")))
        return [bytes(everyone[place * longest : place * longest + length]) for place, length in enumerate(lengths)]

    def all_gather_bytes(self, mine: bytearray) -> bytearray:
        """Return the bytes of all members, concatenated. All members must give the same number of bytes."""
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
