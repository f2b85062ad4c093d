"""``make gpu``, as far as it goes without a GPU: what it says then, and its steps on the CPU with their shortest settings."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def module(name, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def gpu(*arguments, **environ):
    command = [sys.executable, BENCHMARKS / "gpu.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environ)


def test_without_cuda_one_line_says_what_is_missing_and_nothing_is_done(tmp_path):
    result = gpu("--accelerator", "cuda", "--output", tmp_path / "out", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "sees no CUDA device" in result.stderr
    assert "run this on a machine with an NVIDIA GPU" in result.stderr
    assert not (tmp_path / "out").exists()


def test_wheels_that_are_not_there_or_for_another_python_are_one_line(tmp_path, monkeypatch):
    offline = module("offline_environment", monkeypatch)
    (line,) = offline.missing("cpu", tmp_path)
    assert line.endswith("where there is a package index, run make gpu-wheels, and copy that folder here")
    (tmp_path / "manifest.json").write_text(json.dumps({"python": "3.8", "left_out": []}))
    (line,) = offline.missing("cpu", tmp_path)
    assert "are for Python 3.8, and this is 3." in line
    assert "make gpu-wheels GPU_PYTHON_VERSION=3." in line


def test_a_run_leaves_a_summary_on_top_and_one_file_beside(tmp_path):
    out = tmp_path / "out"
    only = ("environment", "conformance", "transformer-engine")
    steps = [text for name in only for text in ("--only", name)]
    result = gpu("--accelerator", "cpu", "--quick", *steps, "--output", out)
    summary = json.loads((out / "summary.json").read_text())
    assert result.returncode == (0 if summary["is_good"] else 1), result.stdout + result.stderr
    found = {step["name"]: step for step in summary["steps"]}
    assert {name: found[name]["outcome"] for name in only[:2]} == dict.fromkeys(only[:2], "passed")
    if importlib.util.find_spec("transformer_engine") is None:
        assert found["transformer-engine"]["why"] == "the package transformer_engine is not installed"
    assert "torch" in json.loads((out / "environment" / "environment.json").read_text())["versions"]
    assert json.loads((out / "conformance" / "cpu.json").read_text())["run"]["is_complete"]
    assert "[cpu.html](conformance/cpu.html)" in (out / "summary.md").read_text()
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert {"out/summary.md", "out/conformance/cpu.html"} <= set(archive.getnames())


def test_a_step_that_fails_or_overruns_does_not_stop_the_next_one(tmp_path, monkeypatch):
    timed_steps = module("timed_steps", monkeypatch)

    def step(name, code, seconds=1.0, output=""):
        return timed_steps.Step(name, [sys.executable, "-c", code], seconds, output)

    sleep = "import time; time.sleep(99)"
    endless = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', '{sleep}'])\nprint('begun', flush=True)\n{sleep}"
    writes = "import time\ntry:\n    time.sleep(99)\nexcept KeyboardInterrupt:\n    print('what there is')"
    deaf = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{endless}"
    plan = [
        [step("fails", "raise SystemExit(3)"), step("writes", writes, 1, "part.txt"), step("deaf", deaf)],
        [step("last", "print('ok')", 9)],
    ]
    began = time.monotonic()
    schedule = timed_steps.Schedule(tmp_path, budget=11, environ=os.environ, cwd=tmp_path, about={"torch": "2"}, grace=1)
    schedule.run(plan)
    assert time.monotonic() - began < 11
    assert not schedule.is_good
    assert [(result.name, result.outcome) for result in schedule.results] == [
        ("fails", "failed"),
        ("writes", "stopped"),
        ("deaf", "stopped"),
        ("last", "passed"),
    ]
    assert (tmp_path / "writes" / "part.txt").read_text() == "what there is\n"
    assert (tmp_path / "deaf" / "log.txt").read_text() == "begun\n"
    assert (tmp_path / "last" / "log.txt").read_text() == "ok\n"
    page = (tmp_path / "summary.md").read_text()
    assert "| fails | failed with exit code 3 |" in page
    assert "| deaf | stopped: it had not finished after 3 s |" in page


def test_where_there_is_too_little_time_for_all_each_gets_its_share(tmp_path, monkeypatch):
    timed_steps = module("timed_steps", monkeypatch)
    plan = [[timed_steps.Step(name, [sys.executable, "-c", "import time; time.sleep(99)"], 100)] for name in ("first", "second")]
    schedule = timed_steps.Schedule(tmp_path, budget=4, environ=os.environ, cwd=tmp_path, about={}, grace=0.1)
    schedule.run(plan)
    first, second = schedule.results
    assert 1.9 < first.seconds < 3
    assert second.seconds > 0.9


def test_time_that_is_left_over_goes_to_the_next_step_and_none_begins_without(tmp_path, monkeypatch):
    timed_steps = module("timed_steps", monkeypatch)
    plan = [[timed_steps.Step(name, [sys.executable, "-c", "import time; time.sleep(99)"], 0.1)] for name in ("first", "second")]
    schedule = timed_steps.Schedule(tmp_path, budget=1.5, environ=os.environ, cwd=tmp_path, about={}, grace=0.1)
    schedule.run(plan)
    first, second = schedule.results
    assert first.seconds > 1.2
    assert (second.outcome, second.why) == ("stopped", "no time was left")


@pytest.mark.parametrize(("seconds", "rounds"), [(None, 50), (0.0, 1), (0.3, None)])
def test_a_benchmark_makes_as_many_rounds_as_fit(seconds, rounds, monkeypatch):
    measuring = module("measuring", monkeypatch)
    table = measuring.compare("a", "s", {"b": lambda: time.sleep(0.02) or 1.0}, 50, seconds)
    assert table.rounds == rounds or (rounds is None and 2 <= table.rounds <= 15)


def test_the_wheels_are_those_of_what_is_needed_and_torch_is_not_among_them(monkeypatch):
    gpu_wheels = module("gpu_wheels", monkeypatch)
    found = dict(gpu_wheels.pins(["accelkit[conformance]"], gpu_wheels.markers_of("3.12")))
    assert {"accelkit", "pluggy", "pytest", "iniconfig", "numpy", "zipp"} <= found.keys()
    assert not {"torch", "sympy", "cookiecutter", "lightning", "colorama"} & found.keys()


def test_wheels_that_are_too_large_are_named(tmp_path, monkeypatch):
    gpu_wheels = module("gpu_wheels", monkeypatch)
    (tmp_path / "big-1.whl").write_bytes(bytes(3_000_000))
    (tmp_path / "small-1.whl").write_bytes(bytes(500_000))
    said = "the wheels take 3.5 MB, and at most 2 MB are allowed; the largest: big 3.0, small 0.5"
    assert gpu_wheels.too_large(tmp_path, 2_000_000) == said
