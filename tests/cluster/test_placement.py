"""What processes make of what each says of itself: which machine is which, and who is where on it."""

from __future__ import annotations

import pytest

import accelkit
from accelkit.specs.process_placement import Place, placements

PLUGIN, LAUNCHER = "acme==1", "acmerun"


def found(*places):
    return [(one.local_rank, one.local_world_size, one.node_rank, one.num_nodes) for one in placements(places, PLUGIN, LAUNCHER)]


def on(host, local_rank=None, **said):
    return Place(host, f"{host} 1", local_rank, **said)


def test_hosts_are_machines_and_processes_are_counted_where_no_number_is_given():
    assert found(on("a"), on("a"), on("b")) == [(0, 2, 0, 2), (1, 2, 0, 2), (0, 1, 1, 2)]
    assert found(on("a", 1), on("a", 0), on("b", 0)) == [(1, 2, 0, 2), (0, 2, 0, 2), (0, 1, 1, 2)]


def test_machines_of_one_name():
    one, other = Place("node", "node 1", 0), Place("node", "node 2", 0)
    assert found(one, other) == [(0, 1, 0, 2), (0, 1, 1, 2)]


def test_containers_of_one_host_are_told_apart_by_their_local_ranks():
    assert found(on("a", 0), on("a", 1), on("a", 0), on("a", 1)) == [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]
    assert found(on("a", 0), on("a", 0), on("a", 1), on("a", 1)) == [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]


def test_numbers_of_machines_that_all_give_come_before_hosts():
    assert found(*(on("a", 0, node_rank=node) for node in (1, 0))) == [(0, 1, 1, 2), (0, 1, 0, 2)]
    assert found(on("a", 0, node_rank=0), on("a-2", 1, node_rank=0)) == [(0, 2, 0, 1), (1, 2, 0, 1)]


@pytest.mark.parametrize(
    "places",
    [
        [on("a", 0, node_rank=0), on("b", 0, node_rank=0)],
        [on("a", 0, node_rank=0), on("b", 0, node_rank=2)],
        [on("a", 0, node_rank=0), on("b", 0, node_rank=10**9)],
        [on("a", 0, node_rank=1), on("b", 0)],
        [on("a", 0), on("b", 1)],
        [on("a", 0), on("a")],
        [on("a", 0), on("a", 2)],
        [on("a", 0, local_world_size=2), on("b", 0, local_world_size=2)],
        [on("a", 0, num_nodes=1), on("b", 0)],
    ],
)
def test_what_cannot_be(places, error_text):
    with pytest.raises(accelkit.ContradictionError) as caught:
        placements(places, PLUGIN, LAUNCHER)
    assert caught.value == error_text
