"""SLURM's lists: node lists expand as ``scontrol show hostnames`` does, on recorded pairs and, where it is installed, on generated ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from slurm import INSTALL

from accelkit_builtin.clusters.slurm_lists import expand_nodes, reserved_ports, tasks_on

PAIRS = json.loads(Path(__file__).with_name("node_lists.json").read_text("utf-8"))["pairs"]
CONFIGURATION = "ClusterName=x\nSlurmctldHost=localhost\nAuthType=auth/none\nNodeName=localhost\nPartitionName=p Nodes=ALL\n"


@pytest.mark.parametrize(("written", "names"), PAIRS)
def test_recorded_lists(written, names):
    if names is None:
        with pytest.raises(ValueError, match="range|bracket"):
            list(expand_nodes(written))
    else:
        assert list(expand_nodes(written)) == names


name = st.from_regex(r"[a-z]{1,4}([0-9]{1,3}|-[a-z]{1,3})?", fullmatch=True)
single = st.builds(lambda first, width: f"{first:0{width}}", st.integers(0, 1200), st.integers(1, 4))
span = st.builds(
    lambda first, more, width: f"{first:0{width}}-{first + more:0{width}}", st.integers(0, 1200), st.integers(0, 12), st.integers(1, 4)
)
bracket = st.lists(single | span, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
item = (
    name
    | st.lists(st.tuples(name, bracket).map("".join), min_size=1, max_size=3).map("".join)
    | st.tuples(name, bracket, bracket).map("".join)
)
node_list = st.lists(item, min_size=1, max_size=4).map(",".join)


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory):
    """What the real one prints; None where it refuses the list."""
    if shutil.which("scontrol") is None:
        pytest.skip(f"scontrol not found: {INSTALL}")
    configuration = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    configuration.write_text(CONFIGURATION)

    def show(written: str) -> list[str] | None:
        command = ["scontrol", "show", "hostnames", written]
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"SLURM_CONF": str(configuration)})
        return None if "nvalid" in result.stderr else result.stdout.split("\n")[:-1]

    return show


@pytest.mark.slurm
def test_generated_lists_expand_as_scontrol_does(scontrol):
    # Without shrinking: each example is a process.
    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(node_list)
    def check(written):
        assert list(expand_nodes(written)) == scontrol(written)

    check()


@pytest.mark.slurm
def test_the_recorded_lists_are_what_scontrol_prints(scontrol):
    for written, names in PAIRS:
        assert scontrol(written) == names, written


@pytest.mark.parametrize(
    ("written", "node", "told"),
    [
        ("2(x2)", 0, (2, 2, 4)),
        ("2(x2)", 1, (2, 2, 4)),
        ("2(x2),1", 2, (1, 3, 5)),
        ("3,1", 1, (1, 2, 4)),
        ("1(x100000),2", 100000, (2, 100001, 100002)),
    ],
)
def test_tasks_on_a_node(written, node, told):
    assert tasks_on(node, written) == told


@pytest.mark.parametrize(("written", "node"), [("2(x2)", 2), ("", 0), ("2(x)", 0), ("2,,1", 0), ("-1", 0), ("0,2", 0), ("2 (x2)", 0)])
def test_tasks_that_cannot_be(written, node):
    with pytest.raises(ValueError, match="tasks"):
        tasks_on(node, written)


def test_reserved_ports():
    assert list(reserved_ports("22001-22003,22007")) == [22001, 22002, 22003, 22007]
    for wrong in ("", "x", "22003-22001", "0-3", "65536", "22001-"):
        with pytest.raises(ValueError, match="port|range"):
            reserved_ports(wrong)
