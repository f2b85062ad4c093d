"""A real Ray on this machine: two actors that were given their variables as docs/clusters.md does it, and one that was not."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from cluster_parts import ROOT

from accelkit_builtin.clusters.ray import RayEnvironment

MORE = """
import json

def told(actor):
    from accelkit.cluster.detection import describe, select_cluster
    environment = select_cluster().environment
    return [environment.name, describe(environment)[0]]

alone = ray.remote(num_cpus=0)(Trainer.__ray_metadata__.modified_class).remote()
print("TOLD", json.dumps([results, *ray.get([actor.__ray_call__.remote(told) for actor in (*actors, alone)])]))
"""


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_two_actors(ray_python, tmp_path: Path):
    page = (ROOT / "docs" / "clusters.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(import os\n.*?import ray\n.*?)```", page, re.DOTALL)
    program = example.replace("ray.init()", "ray.init(num_cpus=2, include_dashboard=False)") + MORE
    (tmp_path / "actors.py").write_text(program)
    result = subprocess.run([ray_python, tmp_path / "actors.py"], capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr[-4000:]
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("TOLD")]
    results, first, second, alone = json.loads(line.removeprefix("TOLD"))
    assert results == [0, 1], "the Runtime's ranks"
    assert [name for name, _ in (first, second, alone)] == ["ray"] * 3
    ranks = [(told["global_rank"], told["local_rank"], told["local_world_size"], told["world_size"]) for _, told in (first, second)]
    assert ranks == [(0, 0, 2, 2), (1, 1, 2, 2)]
    assert first[1]["main_port"] == second[1]["main_port"] != 12910
    assert alone[1]["world_size"] == 1


def test_variables_count_ranks_machine_by_machine():
    """Actors come in any order; the first one given is rank 0."""
    made = RayEnvironment.variables([("b", "10.0.0.2"), ("a", "10.0.0.1"), ("b", "10.0.0.2")], 4000)
    shown = [(one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"], one["NODE_RANK"]) for one in made]
    assert shown == [("0", "0", "2", "0"), ("2", "0", "1", "1"), ("1", "1", "2", "0")]
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"], one["WORLD_SIZE"], one["NNODES"]) for one in made} == {("10.0.0.2", "4000", "3", "2")}
    for one in made:
        environment = RayEnvironment(one | {"RAY_RAYLET_PID": "1"})
        assert (environment.global_rank, environment.node_rank) == (int(one["RANK"]), int(one["NODE_RANK"]))
