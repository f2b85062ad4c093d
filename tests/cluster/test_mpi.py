"""Real mpirun of Open MPI and MPICH: what its processes are told."""

from __future__ import annotations

import pytest


@pytest.mark.openmpi
def test_open_mpi(openmpi, run_told):
    ranks = run_told(*openmpi, "-n", "4")
    assert [(one["environment"], one["global_rank"], one["local_rank"], one["local_world_size"]) for one in ranks] == [
        ("mpi", rank, rank, 4) for rank in range(4)
    ]
    assert {(one["world_size"], one["num_nodes"], one["node_rank"], one["main_address"]) for one in ranks} == {(4, 1, 0, "127.0.0.1")}
    assert len({one["main_port"] for one in ranks}) == 1
    assert not any(one["warnings"] or one["errors"] for one in ranks), "Open MPI names its run: the port is made of that"
    assert "Open MPI started this process" in ranks[0]["candidates"]["mpi"][1]


@pytest.mark.openmpi
def test_two_runs_of_open_mpi_have_different_ports(openmpi, run_told):
    first, second = (run_told(*openmpi, "-n", "1")[0]["main_port"] for _ in range(2))
    assert first != second
    assert run_told(*openmpi, "-n", "1", MASTER_PORT="4242", MASTER_ADDR="::1")[0]["main_port"] == 4242


@pytest.mark.mpich
def test_mpich(mpich, run_told):
    ranks = run_told(*mpich, "-n", "4")
    assert [(one["environment"], one["global_rank"], one["local_rank"], one["local_world_size"]) for one in ranks] == [
        ("mpi", rank, rank, 4) for rank in range(4)
    ]
    assert {(one["world_size"], one["num_nodes"], one["main_address"], one["main_port"]) for one in ranks} == {(4, 1, "127.0.0.1", 12910)}
    for one in ranks:
        (warning,) = one["warnings"]
        assert warning.startswith("MASTER_PORT is not set; the cluster environment 'mpi' uses 12910")
    assert not any(one["warnings"] for one in run_told(*mpich, "-n", "2", MASTER_ADDR="127.0.0.1", MASTER_PORT="4242"))
