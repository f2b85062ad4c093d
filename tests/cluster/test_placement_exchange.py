"""How the processes of a large job learn their placement: each is told its own, unless they have to find an error together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from accelkit import ClusterEnvironment
from accelkit.runtime.placement_exchange import exchange
from accelkit.specs.process_placement import Place, Placement

SIZE = 64


class Env(ClusterEnvironment):
    """Rank 0 to 63 of a job with four processes on each machine."""

    def __init__(self, rank, local_rank=None):
        super().__init__({})
        self._rank, self._local_rank = rank, local_rank

    world_size = property(lambda self: SIZE)
    global_rank = property(lambda self: self._rank)

    def place(self):
        return Place(f"host-{self._rank // 4}", f"host-{self._rank // 4}", local_rank=self._local_rank)


class OwnEnv(Env):
    def resolve_placement(self, places):
        self.placement = Placement(0, 1, self._rank, len(places))


def exchange_all(environments):
    """Exchange the places of all ranks, each in a thread. Return the results and the store."""
    store = HashStore()
    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(lambda environment: exchange(store, environment), environments)), store


def test_every_rank_is_sent_its_own_placement_only():
    found, store = exchange_all([Env(rank) for rank in range(SIZE)])
    assert found == [Placement(rank % 4, 4, rank // 4, SIZE // 4) for rank in range(SIZE)]
    assert not store.check(["all"])
    assert max(len(store.get(f"placement/{rank}")) for rank in range(SIZE)) < 120


@pytest.mark.parametrize(
    "environments",
    [[Env(rank, local_rank=rank) for rank in range(SIZE)], [OwnEnv(rank) for rank in range(SIZE)]],
    ids=["contradicting", "overriding"],
)
def test_every_rank_is_sent_all_places_to_raise_the_same_error_or_to_resolve_them_itself(environments):
    found, _ = exchange_all(environments)
    assert found == [[environment.place() for environment in environments]] * SIZE
