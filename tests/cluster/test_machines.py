"""Jobs on two machines whose variables do not say which process is on which: the processes ask each other when they join."""

from __future__ import annotations

import machines
import pytest

pytestmark = pytest.mark.skipif(bool(machines.missing()), reason=machines.missing())

TWO_AND_TWO = ("h1", "h1", "h2", "h2")


def five(rank: int, size: int, local_rank: int, **others: str) -> dict[str, str]:
    """torch's five variables; ``machines`` adds the address and the port."""
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank), **others}


def places(ranks, when="after"):
    return [(one[when]["local_rank"], one[when]["local_world_size"], one[when]["node_rank"], one[when]["num_nodes"]) for one in ranks]


@pytest.mark.parametrize("has_node_rank", [False, True], ids=["five", "with_node_rank"])
def test_torchs_five_variables_on_two_machines(has_node_rank):
    environs = [five(rank, 4, rank % 2, **({"NODE_RANK": str(rank // 2)} if has_node_rank else {})) for rank in range(4)]
    ranks = machines.told(TWO_AND_TWO, environs)
    assert places(ranks) == [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]
    assert {one["total"] for one in ranks} == {4}
    assert [one["is_local_main"] for one in ranks] == [True, False, True, False]
    assert [one["after"]["state"] for one in ranks] == [[[0, 1], local, 2, "cpu"] for local in (0, 1, 0, 1)]
    nodes = [0, 0, 1, 1] if has_node_rank else ["UnknownPlacementError"] * 4
    assert places(ranks, "before") == [(rank % 2, "UnknownPlacementError", nodes[rank], "UnknownPlacementError") for rank in range(4)]
    assert [one["before"]["state"] for one in ranks] == [[[], local, None, "cpu"] for local in (0, 1, 0, 1)]


def test_machines_differ_in_size_and_ranks_come_in_any_order():
    environs = [five(rank, 3, local) for rank, local in enumerate((0, 0, 1))]
    assert places(machines.told(("h1", "h2", "h1"), environs)) == [(0, 2, 0, 2), (0, 1, 1, 2), (1, 2, 0, 2)]


def test_what_the_user_said_is_held_against_what_the_processes_told(error_text):
    results = machines.start(("h1", "h1", "h2"), [five(rank, 3, rank % 2) for rank in range(3)], '{"num_nodes": 3}')
    assert [one.returncode for one in results] == [1, 1, 1]
    errors = {one.stderr[one.stderr.index("accelkit.errors.") :] for one in results}
    assert len(errors) == 1
    assert errors.pop() == error_text


def test_numbers_that_cannot_be_are_an_error_on_every_process(error_text):
    results = machines.start(("h1", "h2"), [five(rank, 2, rank) for rank in range(2)])
    assert [one.returncode for one in results] == [1, 1]
    errors = {one.stderr[one.stderr.index("accelkit.errors.") :] for one in results}
    assert len(errors) == 1
    assert errors.pop() == error_text


def test_lightning_and_fabric_are_told_before_they_join():
    environs = [five(rank, 4, rank % 2) for rank in range(4)]
    ranks = machines.told(TWO_AND_TWO, environs, "lightning", script="framework_placement_program.py")
    assert [one["place"] for one in ranks] == [[0, 2, 0, 2], [1, 2, 0, 2], [0, 2, 1, 2], [1, 2, 1, 2]]
    assert {one["total"] for one in ranks} == {4}


def test_accelerate_on_two_machines():
    ranks = machines.told(("h1", "h2"), [five(rank, 2, 0) for rank in range(2)], "accelerate", script="framework_placement_program.py")
    assert [one["place"] for one in ranks] == [[0, True]] * 2
    assert {one["total"] for one in ranks} == {2}
