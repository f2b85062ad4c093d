"""What variables do not say is not known before the processes join: it is no guess, and no reason to stop."""

from __future__ import annotations

import pytest

import accelkit
from accelkit.cluster.detection import check_environment, select_cluster
from accelkit.specs.process_placement import Place


def test_what_no_variable_says_is_not_guessed(error_text):
    said = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    environment = select_cluster(environ=said | {"CROSS_SIZE": "2"}).environment
    check_environment(environment)
    assert (environment.num_nodes, environment.known("local_world_size"), environment.known("node_rank")) == (2, None, None)
    assert (
        environment.needs_placement_exchange(),
        select_cluster(environ=said | {"TORCHELASTIC_RUN_ID": "7", "NNODES": "4", "NODE_RANK": "2"}).environment.needs_placement_exchange(),
    ) == (True, False)
    with pytest.raises(accelkit.UnknownPlacementError) as caught:
        _ = environment.local_world_size
    assert caught.value == error_text
    certain = [
        ({"CROSS_SIZE": "4"}, (1, None, 4)),
        ({"LOCAL_WORLD_SIZE": "4"}, (4, 0, 1)),
        ({"NNODES": "1"}, (4, 0, 1)),
        ({"WORLD_SIZE": "1", "RANK": "0"}, (1, 0, 1)),
        ({"NODE_RANK": "1"}, (None, 1, None)),
    ]
    for more, expected in certain:
        environment = select_cluster(environ=said | more).environment
        assert tuple(environment.known(name) for name in ("local_world_size", "node_rank", "num_nodes")) == expected


def test_an_environment_that_knows_rank_and_size_only_needs_an_exchange():
    class Bare(accelkit.ClusterEnvironment):
        """What little some schedulers say."""

        creates_processes_externally = True
        world_size = 4
        global_rank = 2

    environment = Bare()
    check_environment(environment)
    assert [environment.known(name) for name in ("local_rank", "local_world_size", "node_rank", "num_nodes")] == [None] * 4
    assert environment.needs_placement_exchange()
    environment.validate_settings(2, 2)
    with pytest.raises(accelkit.ContradictionError, match="4 .* 3 "):
        environment.validate_settings(2, 3)


def jsrun_on(tmp_path, hosts, rank, local_rank, **others):
    """As Lightning's own fixture: no JSM_NAMESPACE_LOCAL_SIZE."""
    (tmp_path / "ranks").write_text("\n".join(["batch", *hosts]))
    said = {"LSB_JOBID": "1234", "LSB_DJOB_RANKFILE": str(tmp_path / "ranks"), "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": str(rank)}
    return select_cluster(environ=said | {"JSM_NAMESPACE_LOCAL_RANK": str(local_rank), **others}).environment


FOUR_HOSTS = [f"10.10.10.{index}" for index in range(4)]


def test_jsrun_uses_fewer_hosts_than_were_allocated(tmp_path):
    environment = jsrun_on(tmp_path, FOUR_HOSTS, 3, 1, JSM_NAMESPACE_LOCAL_SIZE="2")
    check_environment(environment)
    environment.validate_settings(2, 2)
    assert [environment.known(name) for name in ("local_world_size", "node_rank", "num_nodes")] == [2, None, None]
    environment.resolve_placement([Place(host := FOUR_HOSTS[2 * (rank // 2)], host, rank % 2, 2) for rank in range(4)])
    assert (environment.local_rank, environment.local_world_size, environment.node_rank, environment.num_nodes) == (1, 2, 1, 2)
    environment.validate_settings(2, 2)
    alone = jsrun_on(tmp_path, FOUR_HOSTS, 3, 3, JSM_NAMESPACE_LOCAL_SIZE="4")
    assert (alone.node_rank, alone.num_nodes, alone.needs_placement_exchange()) == (0, 1, False)


def test_jsrun_without_the_number_of_processes_on_the_host(tmp_path):
    environment = jsrun_on(tmp_path, FOUR_HOSTS, 3, 1)
    check_environment(environment)
    assert (environment.world_size, environment.global_rank, environment.local_rank, environment.main_address) == (4, 3, 1, "10.10.10.0")
    assert environment.needs_placement_exchange()
    environment.resolve_placement([Place(host, host, local) for host, local in (("a", 0), ("b", 0), ("c", 0), ("b", 1))])
    assert (environment.local_world_size, environment.node_rank, environment.num_nodes) == (2, 1, 3)


def test_plain_pmi_is_not_taken_for_one_machine():
    environment = select_cluster(environ={"PMI_RANK": "1", "PMI_SIZE": "2"}).environment
    check_environment(environment)
    assert [environment.known(name) for name in ("local_rank", "local_world_size", "node_rank", "num_nodes")] == [None] * 4
    environment.resolve_placement([Place("a", "a"), Place("b", "b")])
    assert (environment.local_rank, environment.local_world_size, environment.node_rank, environment.num_nodes) == (0, 1, 1, 2)


def test_mpi_with_other_numbers_of_processes_on_each_machine():
    """The last one is alone on its machine: by its own variables alone it would be on machine 3 of 4."""
    names = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    environment = select_cluster(environ={f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()}).environment
    assert (environment.known("node_rank"), environment.known("num_nodes")) == (None, None)
    environment.resolve_placement([Place(host, host, local) for host, local in (("a", 0), ("a", 1), ("a", 2), ("b", 0))])
    assert (environment.local_world_size, environment.node_rank, environment.num_nodes) == (1, 1, 2)


def test_why_says_what_is_not_known_yet(run_why):
    result = run_why(RANK="2", LOCAL_RANK="0", WORLD_SIZE="4", MASTER_ADDR="a", MASTER_PORT="1")
    assert result.returncode == 0, result.stderr
    rows = {" ".join(line.split()) for line in result.stdout.splitlines()}
    assert {f"{name} known once the processes have joined" for name in ("local_world_size", "node_rank", "num_nodes")} <= rows
    assert {"local_rank 0", "job_id none"} <= rows
