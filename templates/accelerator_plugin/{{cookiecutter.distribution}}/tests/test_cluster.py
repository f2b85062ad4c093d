"""Tests of the cluster environment with the variables that the launcher sets."""

from __future__ import annotations

import accelkit
import pytest

from {{ cookiecutter.__package }}.cluster import {{ cookiecutter.__class }}Environment

LAUNCHED = {
    "{{ cookiecutter.accelerator | upper }}_JOB": "7",
    "{{ cookiecutter.accelerator | upper }}_WORLD_SIZE": "8",
    "{{ cookiecutter.accelerator | upper }}_RANK": "5",
    "{{ cookiecutter.accelerator | upper }}_LOCAL_RANK": "1",
    "{{ cookiecutter.accelerator | upper }}_NODES": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "23456",
}


def test_its_processes_are_recognised_and_no_others() -> None:
    assert {{ cookiecutter.__class }}Environment().detect_cluster({"RANK": "0"}) is None
    detection = {{ cookiecutter.__class }}Environment().detect_cluster(LAUNCHED)
    assert detection is not None
    assert detection.priority > 0


def test_ranks_and_rendezvous() -> None:
    cluster = {{ cookiecutter.__class }}Environment(LAUNCHED)
    assert (cluster.global_rank, cluster.world_size) == (5, 8)
    assert (cluster.local_rank, cluster.local_world_size) == (1, 4)
    assert (cluster.node_rank, cluster.num_nodes) == (1, 2)
    assert (cluster.main_address, cluster.main_port) == ("node0", 23456)


def test_contradictions_name_the_variable() -> None:
    cluster = {{ cookiecutter.__class }}Environment(LAUNCHED | {"{{ cookiecutter.accelerator | upper }}_RANK": "8"})
    with pytest.raises(accelkit.ContradictionError, match="{{ cookiecutter.accelerator | upper }}_RANK=8"):
        _ = cluster.global_rank
    with pytest.raises(accelkit.ContradictionError, match="3 processes"):
        {{ cookiecutter.__class }}Environment(LAUNCHED).validate_settings(num_devices=3, num_nodes=None)
