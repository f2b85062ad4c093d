"""``make bench``: what a run leaves, and that it says where accelkit is behind."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "everything.py"


def run_benchmarks(output, *names):
    """Run these benchmarks for one round. Return the results, and the page on standard output."""
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, SCRIPT, "--rounds", "1", *only, "--output", output]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads((output / "results.json").read_text()), result.stdout


def test_a_run_leaves_a_page_numbers_and_a_plot(tmp_path):
    found, printed = run_benchmarks(tmp_path / "out", "list_cost")
    assert [table["title"] for table in found["tables"]] == ["accelkit list"]
    page = (tmp_path / "out" / "results.md").read_text()
    assert page == printed.removesuffix("\n")
    assert f"torch {found['about']['torch']}" in page
    assert (tmp_path / "out" / "results.svg").read_text().startswith("<?xml")


@pytest.mark.usefixtures("forked_interpreters")
def test_a_profiled_step_leaves_a_trace_and_a_summary_that_names_a_slow_loader(tmp_path):
    program = SCRIPT.with_name("profile_step.py")
    command = [sys.executable, program, "--accelerator", "fake_xpu", "--output", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "waiting for the loader" in (tmp_path / "summary-slow.txt").read_text()
    (trace,) = (tmp_path / "traces").glob("*.json")
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.soak
def test_a_step_holds_no_more_memory_than_the_raw_loops(tmp_path):
    found, printed = run_benchmarks(tmp_path / "out", "memory_per_step")
    assert [table["title"] for table in found["tables"]] == ["peak memory of a step in 32-true", "peak memory of a step in bf16-mixed"]
    for table in found["tables"]:
        assert list(table["rows"]) == ["raw loop", "accelkit", "Fabric", "Accelerate"]
        assert table["rows"]["accelkit"]["ratio"] <= 1.0, "accelkit holds no memory that the raw loop does not"
    assert "| **accelkit** |" in printed


@pytest.mark.soak
def test_every_contestant_is_measured_in_every_case_of_a_step(tmp_path):
    found, _ = run_benchmarks(tmp_path / "out", "step_cases")
    assert len(found["tables"]) == 6
    for table in found["tables"]:
        assert list(table["rows"]) == ["raw loop", "accelkit", "Fabric", "Accelerate", "Trainer"]
        assert all(row["median"] > 0 for row in table["rows"].values())


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ({"Fabric": 2.0}, ["Fabric"]),
        ({"Fabric": 2.99}, []),
        ({"Fabric": 4.0, "Accelerate": 1.0}, ["Accelerate"]),
        ({'accelkit, verify="lazy"': 1.0, "  until it is verified": 2.0}, []),
    ],
)
def test_the_page_says_where_accelkit_is_behind(theirs, expected):
    spec = importlib.util.spec_from_file_location("everything", SCRIPT)
    everything = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(everything)
    rows = {"raw loop": 1.0, "accelkit": 3.0, **theirs}
    table = {"title": "a step", "unit": "us", "rounds": 1, "rows": {}}
    for name, median in rows.items():
        table["rows"][name] = dict.fromkeys(("median", "lowest", "highest", "over_base", "ratio"), median) | {"not_measured": ""}
    table["rows"]["Trainer"] = {"not_measured": "no float16 on the CPU"}
    assert everything.behind(table) == expected
    page = "\n".join(everything.as_markdown({"about": {}, "tables": [table]}))
    assert "not measured: no float16 on the CPU" in page
    assert ("accelkit needs more" in page) == bool(expected)


COVERAGE = SCRIPT.with_name("operator_coverage.py")


def coverage_of(accelerator, *patterns):
    """Return the tables of ``operator_coverage.py``, each with the names of its missing overloads."""
    selected = [word for pattern in patterns for word in ("--select", pattern)]
    command = [sys.executable, COVERAGE, "--accelerator", accelerator, *selected, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    return [row | {"missing": {name for names in row["missing"].values() for name in names}} for row in rows]


def test_operator_coverage_sees_composite_overloads_and_only_calls_on_the_device():
    required, everything, *_ = coverage_of("fake_xpu", "operators/forward[matmul,float32]", "operators/out[mul,float32]")
    assert not {"aten::mm", "aten::mul.out"} & required["missing"]
    assert not {"aten::matmul", "aten::mm", "aten::mul.out"} & everything["missing"]
    assert "aten::resolve_conj" in everything["missing"], "the fake XPU's matmul calls it on the host only"
    assert {"aten::add.Tensor", "aten::einsum"} <= everything["missing"]


def test_operator_coverage_leaves_nothing_out_without_a_reason():
    import torch

    required, everything, *_ = coverage_of("cpu", "operators/forward[mul,float32]")
    num_overloads = sum(name.startswith("aten::") for name in torch._C._dispatch_get_all_op_names())
    assert everything["overloads"] + sum(everything["left_out"].values()) == num_overloads
    assert required["missing"] <= everything["missing"]
    assert len(required["missing"]) == required["overloads"] - required["seen"]
