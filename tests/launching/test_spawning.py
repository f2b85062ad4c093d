"""Starting processes from Python: what comes back, and what is left if it fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import psutil
import pytest
import torch
import worker_functions

import accelkit
from accelkit.launching import device_allocation, spawn_launcher
from accelkit.launching.spawn_launcher import launch

CPU = {"accelerator": "cpu", "devices": 2}
INTERACTIVE = """
import torch
from accelkit.launching.spawn_launcher import launch
model = torch.nn.Linear(3, 2)
before = model.weight.detach().clone()
torch.rand(600, 600) @ torch.rand(600, 600)  # OpenMP has threads now
def train(runtime, model):
    inner, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    (torch.rand(600, 600) @ torch.rand(600, 600)).sum()
    runtime.backward(inner(torch.ones(1, 3)).sum())
    optimizer.step()
    return runtime.num_processes
print("returned", launch(train, model, accelerator="cpu", devices=2), bool((model.weight != before).all()))
"""


def _alive(notes):
    pids = [int(path.name) for path in notes.iterdir()]
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def _until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.smoke
def test_one_device_needs_no_other_process(monkeypatch, error_text):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    rt = accelkit.Runtime("cpu")
    assert rt.launch(lambda runtime, word: (runtime is rt, word, os.getpid()), "mine") == (True, "mine", os.getpid())
    with pytest.raises(accelkit.UnsupportedError) as caught:
        accelkit.Runtime("cpu", num_nodes=2).launch(print)
    assert "accelkit launch --accelerator cpu --devices 1 --num-nodes 2" in caught.value.hint
    assert caught.value == error_text


@pytest.mark.parametrize(("strategy", "where"), [("ddp", "cpu"), ("fsdp", "cpu"), pytest.param("ddp", "fake_xpu", marks=pytest.mark.smoke)])
def test_the_parent_has_what_rank_0_has_trained(monkeypatch, strategy, where):
    monkeypatch.setenv("FAKE_XPU_DEVICES", "2")
    model = _model()
    parts = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}
    weight = model[0].weight
    result = accelkit.Runtime(where, devices=2, strategy=strategy).launch(worker_functions.train, parts, "it", 3)
    assert (result["name"], result["processes"], result["environ"]["LOCAL_WORLD_SIZE"]) == ("it", 2, "2")
    assert result["environ"]["RANK"] == "0"
    assert result["device"] == {"cpu": "cpu"}.get(where, f"{accelkit.select(where).accelerator.device_type}:0")
    assert (result["loss"].device.type, result["loss"].requires_grad) == ("cpu", False)
    assert model[0].weight is weight, "the very same parameters"
    assert parts["optimizer"].state[weight]["step"] == 3
    alone = _model()
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2):
            torch.manual_seed(10 * step + rank)
            (alone(torch.rand(4, 3)).pow(2).mean() / 2).backward()
        optimizer.step()
    if where == "cpu":  # a device has random numbers of its own
        torch.testing.assert_close(model.state_dict(), alone.state_dict())
    else:
        assert all((ours != theirs).any() for ours, theirs in zip(model.parameters(), _model().parameters(), strict=True))
    assert "RANK" not in os.environ


@pytest.mark.parametrize(
    ("how", "told"), [pytest.param("raise", "ZeroDivisionError: mine", marks=pytest.mark.smoke), ("kill", "SIGKILL"), ("exit", "9")]
)
def test_a_failure_arrives_with_its_rank_and_traceback(tmp_path, how, told, error_text):
    with pytest.raises(accelkit.RankFailedError) as caught:
        launch(worker_functions.fail, how, str(tmp_path), **CPU)
    assert "rank 1" in caught.value.what
    assert "rank 0" not in caught.value.what
    assert told in caught.value.what
    assert caught.value.what == error_text
    if how == "raise":
        assert re.search(r"worker_functions\.py\", line \d+, in fail", caught.value.why)
        assert "spawned.py" not in caught.value.why
    assert len(list(tmp_path.iterdir())) == 4
    assert not _alive(tmp_path)


def test_a_rank_that_is_still_exiting_when_another_has_lost_it_is_told_as_finished(tmp_path):
    with pytest.raises(accelkit.RankFailedError, match="possibly waiting for rank 1, which had finished"):
        launch(worker_functions.exit_slowly, str(tmp_path), **CPU)


def test_a_process_that_ignores_the_signal_is_killed(monkeypatch):
    monkeypatch.setattr(spawn_launcher, "_GRACE_SECONDS", 0.5)
    with pytest.raises(accelkit.RankFailedError, match="rank 1 failed first: ZeroDivisionError: mine") as caught:
        launch(worker_functions.ignore_sigterm, **CPU)
    assert "rank 0: was running, and was ended with SIGKILL" in caught.value.why


def test_the_processes_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert launch(worker_functions.give, torch.get_num_threads, **CPU) == max(1, device_allocation.cores() // 2)


def test_what_cannot_travel_is_said(error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        launch(lambda runtime: None, **CPU)
    assert "<lambda>" in str(caught.value)
    assert caught.value == error_text
    with pytest.raises(accelkit.RankFailedError) as caught:
        launch(worker_functions.give, worker_functions.unpicklable, accelerator="cpu", devices=1)
    assert "give" in caught.value.what
    assert "rank 0" in caught.value.what
    assert caught.value.what == error_text
    with pytest.raises(accelkit.DevicesError):
        launch(worker_functions.give, int, accelerator="cpu", devices="0,0")


@pytest.mark.parametrize("devices", [1, 2])
def test_a_name_is_not_a_function(devices, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime("cpu", devices=devices).launch("train")
    assert "'train'" in caught.value.what
    assert caught.value == error_text


def test_a_rank_starts_no_job_of_its_own(monkeypatch, error_text):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(accelkit.ContradictionError) as caught:
        launch(worker_functions.give, int, **CPU)
    assert "WORLD_SIZE" in str(caught.value)
    assert caught.value == error_text


def test_a_device_in_use_is_not_forked(error_text):
    program = (
        "import accelkit, torch, worker_functions\n"
        "from accelkit.launching.spawn_launcher import launch\n"
        "torch.ones(1, device=accelkit.Runtime('fake_xpu', devices=1).device)\n"
        "launch(worker_functions.give, int, accelerator='fake_xpu', devices=2, start_method='fork')"
    )
    environ = os.environ | {"PYTHONPATH": os.path.dirname(__file__), "FAKE_XPU_DEVICES": "2"}
    result = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    error = result.stderr[result.stderr.index("accelkit.errors.") :]
    assert "fake_xpu" in error.splitlines()[0]
    assert error == error_text


def test_an_interactive_session_forks():
    result = subprocess.run([sys.executable, "-"], input=INTERACTIVE, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "returned 2 True\n"


def test_a_program_without_a_main_guard_is_told_so(tmp_path, error_text):
    program = tmp_path / "unguarded.py"
    program.write_text(
        "import worker_functions\nfrom accelkit.launching.spawn_launcher import launch\n"
        "launch(worker_functions.give, int, accelerator='cpu', devices=2)\n"
    )
    environ = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}
    result = subprocess.run([sys.executable, str(program)], env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    error = result.stderr[result.stderr.rindex("accelkit.errors.RankFailedError: ") :]
    assert "exit code 1" in error
    hint = error.partition("  what to do: ")[2]
    assert "if __name__ == '__main__':" in hint
    assert hint == error_text  # of the two ranks, either may be the first to fail


@pytest.mark.parametrize("number", [2, 9])
def test_processes_end_with_their_parent(tmp_path, number):
    notes = tmp_path / "notes"
    notes.mkdir()
    call = "launch(worker_functions.fail, 'sleep', sys.argv[1], accelerator='cpu', devices=2)"
    program = f"import sys, worker_functions\nfrom accelkit.launching.spawn_launcher import launch\n{call}"
    environ = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}
    with (tmp_path / "stderr").open("w") as stderr:
        parent = subprocess.Popen([sys.executable, "-c", program, str(notes)], env=environ, stderr=stderr)
    _until(lambda: len(list(notes.iterdir())) == 4)
    parent.send_signal(number)
    assert parent.wait(timeout=60) == -number
    if number == 2:
        assert "KeyboardInterrupt" in (tmp_path / "stderr").read_text()
        assert not _alive(notes)
    else:
        _until(lambda: not _alive(notes))  # nor what the processes started themselves
