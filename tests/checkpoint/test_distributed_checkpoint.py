"""Checkpoints over several real processes: across strategies and their number, and when one of them fails."""

from __future__ import annotations

import os
from pathlib import Path

import preloaded
import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")


def run(program, *arguments):
    environ = os.environ | {"OMP_NUM_THREADS": "1", "FAKE_XPU_DEVICES": "2"}
    result = preloaded.run([str(HERE / program), *map(str, arguments)], environ)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param("across_strategies_and_sizes", marks=pytest.mark.smoke),
        "across_devices",
        "shards",
        "random_state",
        "other_objects",
        "in_the_background",
        "weights",
    ],
)
def test_across_processes(scenario, tmp_path):
    run("distributed_checkpoint_program.py", scenario, tmp_path / "ckpt")


@pytest.mark.parametrize("scenario", ["resuming", "two_runtimes", "calls_apart"])
def test_in_one_group(scenario, tmp_path):
    run("process_group_program.py", scenario, tmp_path)


def test_a_process_that_fails_or_dies_is_named_and_nothing_is_lost(tmp_path):
    run("failing_save_program.py", tmp_path / "ckpt")
