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
    sizes = ["--processes", "2", "3", "--ranks", "32", "64", "128", "--layers", "1", "--width-divisor", "64"]
    command = [sys.executable, SCRIPT, *sizes, "--json", "--plot", plot]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert plot.read_text().startswith("<?xml")
    return {(row["title"], row["is_real"]): row for row in json.loads(result.stdout.splitlines()[-1])["rows"]}


def test_a_simulated_save_receives_what_a_real_one_does_apart_from_headers(rows):
    simulated, real = (rows["save", is_real]["points"] for is_real in (False, True))
    per_rank = (simulated["64"]["received"] - simulated["32"]["received"]) / 32
    measured = real["3"]["received"] - real["2"]["received"]
    assert per_rank < measured < 1.5 * per_rank, "gloo and TCP add headers to each message, and nothing else is sent"


def test_a_verified_call_sends_48_bytes_in_each_of_log2_n_rounds(rows):
    row = rows["verified call", False]
    assert {size: (point["sent"], point["messages"]) for size, point in row["points"].items()} == {
        "32": (5 * 48, 10),
        "64": (6 * 48, 12),
        "128": (7 * 48, 14),
    }
    assert (row["sent_formula"], row["received_formula"]) == ("48 log2 n", "48 log2 n")


def test_nothing_but_the_call_log_is_sent_for_a_call_that_is_not_verified(rows):
    assert rows["call that is not verified", False]["at_size"]["sent"] == 0
    assert rows["vote on preemption", False]["sent_formula"] == "8 log2 n"


def test_the_host_of_the_store_receives_as_many_entries_of_the_call_log_in_a_second_however_many_ranks_there_are(rows):
    row = rows["call log, on the host of the store", False]
    assert (row["per"], row["growth"]) == ("second", "1")
    assert {point["messages"] for point in row["points"].values()} == {1000}


@pytest.mark.parametrize("operation", ["order the machines (accelkit launch)", "error after a timeout, on the host of the store"])
def test_what_the_host_of_the_store_does_once_grows_with_n_and_not_with_its_square(rows, operation):
    assert rows[operation, False]["growth"] == "n"


def test_no_operation_but_a_save_misses_its_aim(rows):
    """The cost of a save of 4,096 ranks does not follow from that of such small saves, which have one index."""
    assert {title for (title, _), row in rows.items() if row["misses"]} <= {"save"}
