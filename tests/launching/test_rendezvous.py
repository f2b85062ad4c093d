"""The order of the machines: the one that joined first determines it, and each of the others reads only its own answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

import accelkit
from accelkit.launching.rendezvous import OrderedRendezvous


class CountedStore(HashStore):
    """A store that counts the bytes that are read from it."""

    num_read = 0

    def get(self, key):
        value = super().get(key)
        self.num_read += len(value)
        return value


def place(store, node_ranks):
    """What the rendezvous of each machine found, and its rank or its error. The machines join in this order."""
    machines = [OrderedRendezvous(None, node_rank, "address") for node_rank in node_ranks]

    def join(joined):
        machines[joined].remaining_restarts, machines[joined].number = joined + 3, 100 + joined
        try:
            return machines[joined]._place(store, joined, len(machines))
        except accelkit.ContradictionError as error:
            return error

    with ThreadPoolExecutor(len(machines)) as pool:
        return machines, list(pool.map(join, reversed(range(len(machines)))))[::-1]


@pytest.mark.parametrize("node_ranks", [[None] * 12, [(7 * joined + 3) % 12 for joined in range(12)]])
def test_machines_get_the_ranks_that_the_user_specified_or_else_those_in_which_they_joined(node_ranks):
    machines, found = place(HashStore(), node_ranks)
    assert found == [joined if rank is None else rank for joined, rank in enumerate(node_ranks)]
    assert {machine.remaining_restarts for machine in machines} == {3}


@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_each_machine_is_watched_by_machines_that_joined_before_it(size):
    machines, _ = place(HashStore(), [None] * size)
    for joined, machine in enumerate(machines):
        assert machine.watched == [100 + (joined + after) % size for after in range(1, min(8, size - 1) + 1)]


def test_what_the_machines_read_in_all_grows_with_their_number_and_not_with_its_square():
    read = []
    for size in (8, 16, 32):
        store = CountedStore()
        place(store, [None] * size)
        read.append(store.num_read / size)
    assert max(read) < 1.5 * min(read)


def test_the_error_about_contradicting_ranks_names_the_machines_at_fault_first_and_only_some_of_the_others():
    node_ranks = [*range(12), 4, None]
    _, errors = place(HashStore(), node_ranks)
    assert len({error.why for error in errors}) == 1
    shown = [part.partition(" has ")[2] for part in errors[0].why.split(", ")]
    assert shown[:4] == ["--node-rank 4", "--node-rank 4", "no --node-rank", "--node-rank 0"]
    assert len(shown) == 9
    assert errors[0].why.endswith(", and 6 more")
    assert "ranks 0 to 13, each exactly once" in errors[0].what
