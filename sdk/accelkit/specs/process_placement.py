"""Placement of a job's processes on machines, worked out from what each process reports. Does not import torch."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import socket
from collections.abc import Sequence
from pathlib import Path

from accelkit.errors import ContradictionError


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Information about where a process runs. Rank 0 collects the ``Place`` of every process.

    Attributes:
        host: The host name of the machine, for messages.
        machine: An identifier that is unique even if two machines share a host name.
        local_rank, local_world_size, node_rank, num_nodes: The values that the process determined from environment variables. A value
            is None if the process could not determine it.
    """

    host: str
    machine: str
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The placement of one process, computed from the ``Place`` of every process.

    Attributes:
        local_rank, local_world_size, node_rank, num_nodes: See the properties of ``ClusterEnvironment`` that have the same names.
    """

    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int


def this_machine() -> tuple[str, str]:
    """Return the host name and an identifier of this machine.

    The identifier consists of the host name and, on Linux, the boot ID, because cloned machines may have the same host name.
    """
    host, boot = socket.gethostname(), ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return host, f"{host} {boot}"


def placements(places: Sequence[Place], plugin: str, launcher: str) -> list[Placement]:
    """Return the placement of each process, ordered by rank. The result depends only on the arguments.

    If all processes report a node rank, processes with the same node rank are taken to be on the same machine.

    If a node rank is missing, processes with the same machine identifier are taken to be on the same machine, except for processes in
    different containers. Machines are numbered in the order of the lowest rank on each machine.

    Each container counts as a machine, although containers on one host may have the same machine identifier. Such containers are told apart
    by the local ranks: if several processes have the same identifier and the same local rank, each of these processes is taken to be in a
    different container. Among these processes, the one with the lowest rank is assigned to the first container, the one with the second
    lowest rank to the second container, and so on.

    Args:
        places: The ``Place`` of every process, ordered by rank.
        plugin: The ``dist==version`` of the cluster environment, for errors.
        launcher: The command that starts the processes, for errors.

    Raises:
        ContradictionError: If the reported node ranks, or the reported local ranks on a machine, are not 0, 1, 2 and so on, or if the
            reported values contradict each other.
    """

    def contradiction(what: str, name: str, ranks: Sequence[int], why: str) -> ContradictionError:
        said = (f"{getattr(places[rank], name)} on rank {rank} ({places[rank].host})" for rank in ranks)
        hint = f"number the machines from 0 (NODE_RANK) and the processes on each from 0 (LOCAL_RANK), or start them with {launcher}"
        return ContradictionError(f"{what}: {', '.join(itertools.islice(said, 8))}", plugin=plugin, why=why, hint=hint)

    everyone = range(len(places))
    nodes = _nodes(places)
    if nodes is None:
        said = [rank for rank in everyone if places[rank].node_rank is not None]
        why = "node ranks must be 0, 1, 2 and so on; if only some are set, they must follow the order of the machines' lowest ranks"
        raise contradiction("the node ranks are inconsistent", "node_rank", said, why)
    members: list[list[int]] = [[] for _ in range(max(nodes) + 1)]
    for rank, node in enumerate(nodes):
        members[node].append(rank)
    found: dict[int, Placement] = {}
    for node, ranks in enumerate(members):
        numbers = [local for rank in ranks if (local := places[rank].local_rank) is not None]
        if numbers and sorted(numbers) != list(range(len(ranks))):
            every = f"its {len(ranks)} processes must have the local ranks 0 to {len(ranks) - 1}, each once"
            why = every if len(ranks) > 1 else "its only process must have the local rank 0"
            raise contradiction(f"the local ranks on machine {node} are inconsistent", "local_rank", ranks, why)
        for rank, local in zip(ranks, numbers or range(len(ranks)), strict=True):
            found[rank] = Placement(local, len(ranks), node, len(members))
    for name in ("local_world_size", "num_nodes"):
        wrong = [rank for rank in everyone if getattr(places[rank], name) not in (None, getattr(found[rank], name))]
        if wrong:
            counts = ", ".join(str(len(ranks)) for ranks in members[:8])
            why = f"this contradicts the host names and local ranks (machines: {len(members)}; processes on each: {counts})"
            raise contradiction(f"{name} is set to a wrong value", name, wrong, why)
    return [found[rank] for rank in everyone]


def _nodes(places: Sequence[Place]) -> list[int] | None:
    """Return the node rank of each process, or None if the reported node ranks are inconsistent.

    If all processes report a node rank, these ranks must be 0, 1, 2 and so on. Otherwise, machines are numbered in the order of the lowest
    rank on each machine, and every node rank that a process does report must agree with this numbering.
    """
    given = [place.node_rank for place in places if place.node_rank is not None]
    if len(given) == len(places):
        return given if set(given) == set(range(len(set(given)))) else None
    numbers: dict[tuple[str, int], int] = {}
    earlier: collections.Counter[tuple[str, int | None]] = collections.Counter()
    found = []
    for place in places:
        process = place.machine, place.local_rank
        repeated = earlier[process] if place.local_rank is not None else 0
        earlier[process] += 1
        found.append(numbers.setdefault((place.machine, repeated), len(numbers)))
    fits = all(place.node_rank in (None, node) for place, node in zip(places, found, strict=True))
    return found if fits else None
