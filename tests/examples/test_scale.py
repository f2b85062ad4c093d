"""``benchmarks/scale.py``: what a run of small jobs finds, and how costs of larger jobs are computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The rows of a run of real jobs and simulated jobs, by title and whether the job was real."""
    plot = tmp_path_factory.mktemp("scale") / "plot.svg"
    sizes = ["--processes", "2", "3", "--ranks", "4", "8", "16", "--layers", "1", "--width-divisor", "64"]
    command = [sys.executable, SCRIPT, *sizes, "--json", "--plot", plot]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert plot.read_text().startswith("<?xml")
    return {(row["title"], row["is_real"]): row for row in json.loads(result.stdout.splitlines()[-1])["rows"]}


def test_a_simulated_save_receives_what_a_real_one_does_apart_from_headers(rows):
    simulated, real = (rows["save", is_real]["points"] for is_real in (False, True))
    per_rank = (simulated["8"]["received"] - simulated["4"]["received"]) / 4
    measured = real["3"]["received"] - real["2"]["received"]
    assert per_rank < measured < 1.5 * per_rank, "gloo and TCP add headers to each message, and nothing else is sent"


def test_a_verified_call_sends_a_packet_of_128_bytes_to_every_other_rank(rows):
    row = rows["verified call", False]
    assert {size: point["sent"] for size, point in row["points"].items()} == {"4": 3 * 128, "8": 7 * 128, "16": 15 * 128}
    assert row["sent_formula"] == "128 n - 128"
    assert row["misses"] == ["grows like n instead of log2 n"]


def test_nothing_but_the_call_log_is_sent_for_a_call_that_is_not_verified(rows):
    assert rows["call that is not verified", False]["at_size"]["sent"] == 0
    assert rows["call log, at the host of the store", False]["growth"] == "n"
    assert rows["vote on preemption", False]["misses"] == []
