"""The table of docs/precisions.md: made by a short run of what makes it, and what fails it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "precisions.py"
ROWS = (
    ("32-true", "64-true", "bf16-mixed", "16-mixed"),
    ("32-true", "bf16-true", "16-true", "fp8"),
    ("32-true", "bitsandbytes-8bit", "bitsandbytes-4bit", "transformer-engine", "transformer-engine-float16"),
)
"""Precisions that one test trains in, after float32."""
HAS_ALL = all(importlib.util.find_spec(name) for name in ("torchao", "bitsandbytes"))


@pytest.mark.torchao
@pytest.mark.bitsandbytes
@pytest.mark.skipif(not HAS_ALL, reason="pip install 'accelkit[fp8,bitsandbytes]'")
@pytest.mark.timeout(900)  # many CPUs have no float16 convolutions, and take minutes
@pytest.mark.parametrize("precisions", ROWS, ids=lambda precisions: precisions[1])
@pytest.mark.parametrize(
    "accelerator", [pytest.param("cpu", marks=pytest.mark.soak), "fake_xpu"]
)  # `make precisions` does it on the CPU too
def test_every_precision_learns_and_stores_what_it_promises(accelerator, precisions, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: precisions -->\nold\n<!-- end of table -->\nafter\n")
    command = [sys.executable, SCRIPT, "--accelerator", accelerator, "--epochs", "4", "--write", page]
    command += [f"--precision={precision}" for precision in precisions]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}  # small layers: on a busy machine threads wait for each other
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    rows = [line for line in lines if line.startswith("| `")]
    assert [row.split(" | ")[1] for row in rows] == [f"`{precision}`" for precision in precisions]
    unavailable = [row for row in rows if "unavailable" in row]
    assert unavailable == [row for row in rows if "transformer-engine" in row]
    assert all("the accelerator declares that it does not support transformer_engine" in row for row in unavailable)
    assert f"torch {torch.__version__}" in lines[-3]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("precisions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tests_have_every_precision_of_the_table(script):
    assert {precision for precisions in ROWS for precision in precisions} == set(script.PROMISED)


def test_another_dtype_than_promised_is_a_failure(script, monkeypatch):
    monkeypatch.setitem(script.PROMISED, "64-true", ("float64", "float32"))
    _, _, wrong = script.row("cpu", "64-true", 2.0, 1)
    assert "1 Conv2d: result in float64, not in float32" in wrong
    assert wrong[-1].endswith("in float32 200.00%")
