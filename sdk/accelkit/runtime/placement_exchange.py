"""Exchange of ``Place`` objects through a store, before there is a process group. A ``Place`` says where a process runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence

from torch.distributed import Store

from accelkit.errors import ContradictionError
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.overrides import overrides
from accelkit.specs.process_placement import Place, Placement, placements


def exchange(store: Store, cluster: ClusterEnvironment) -> Placement | list[Place]:
    """Send the ``Place`` of this process to rank 0, and return the ``Placement`` that rank 0 determines for this process.

    In a large job, the ``Place`` objects of all processes are too much data to send to every process, so only rank 0 gets all of them.
    In two cases, however, every process gets all of them: if ``Place`` objects contradict each other, and if the cluster environment
    overrides ``resolve_placement``. In these cases, the function returns the ``Place`` objects of all processes in the order of ranks, and
    the caller passes them to ``resolve_placement``.

    Args:
        store: The store. It must not contain any keys yet.
        cluster: The cluster environment.
    """
    rank = cluster.global_rank
    store.set(str(rank), json.dumps(dataclasses.asdict(cluster.place())))
    if rank == 0:
        _set_answers(store, cluster, [Place(**json.loads(store.get(str(other)))) for other in range(cluster.world_size)])
    placement = json.loads(store.get(f"placement/{rank}"))
    if placement is not None:
        return Placement(**placement)
    return [Place(**place) for place in json.loads(store.get("all"))]


def _set_answers(store: Store, cluster: ClusterEnvironment, places: Sequence[Place]) -> None:
    found: Sequence[Placement | None] = [None] * len(places)
    if not overrides(cluster, ClusterEnvironment, "resolve_placement"):
        with contextlib.suppress(ContradictionError):  # every process raises this error later
            found = placements(places, cluster.plugin, cluster.launcher)
    if None in found:
        store.set("all", json.dumps([dataclasses.asdict(place) for place in places]))
    for rank, placement in enumerate(found):
        store.set(f"placement/{rank}", json.dumps(placement and dataclasses.asdict(placement)))
