"""Jobs that are killed, or told to stop, go on: their final weights are those of the undisturbed run, bit for bit."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import preloaded
import pytest
import torch

HERE = Path(__file__).parent
SCRIPT = str(HERE / "recovery_program.py")
STEPS = 12


def launch(folder: Path, strategy: str, kills: str = "-", *, slow: float = 0) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    launcher = "-m accelkit launch --accelerator cpu --devices 2 --max-restarts 3"
    command = [preloaded.programs() / "python", *launcher.split(), SCRIPT]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "SLOW": str(slow)}
    return subprocess.Popen(
        [*command, str(folder), strategy, kills], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "weights.pt")
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    for strategy in ("ddp", "fsdp"):
        folder = tmp_path_factory.mktemp(strategy)
        job = launch(folder, strategy)
        text, _ = job.communicate(timeout=120)
        assert job.returncode == 0, text
        found[strategy] = weights(folder)
    return found


def killed(folder: Path, strategy: str, rank: int, step: int, expected: dict[str, torch.Tensor]) -> None:
    job = launch(folder, strategy, f"{rank}@{step}")
    text, _ = job.communicate(timeout=200)
    assert job.returncode == 0, text
    assert f"rank {rank} failed first: killed by SIGKILL" in text
    assert same(weights(folder), expected), f"killed rank {rank} at step {step} under {strategy}: other weights"


def at_random(count: int, seed: int) -> list[tuple[str, int, int]]:
    draw = random.Random(seed)
    return [(("ddp", "fsdp")[number % 2], draw.randrange(2), draw.randrange(STEPS)) for number in range(count)]


@pytest.mark.xdist_group("recovery")
@pytest.mark.parametrize(("strategy", "rank", "step"), at_random(2, seed=1))
def test_a_killed_rank_costs_no_bit(tmp_path, undisturbed, strategy, rank, step):
    killed(tmp_path, strategy, rank, step, undisturbed[strategy])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("recovery")
def test_twenty_kills(tmp_path, undisturbed):
    for number, (strategy, rank, step) in enumerate(at_random(20, seed=2)):
        killed(tmp_path / str(number), strategy, rank, step, undisturbed[strategy])
        print(f"{number + 1} of 20: rank {rank} of {strategy} killed at step {step}: the same weights")


@pytest.mark.soak
@pytest.mark.deepspeed
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_a_kill_under_deepspeed_costs_no_bit(tmp_path):
    job = launch(tmp_path / "undisturbed", "deepspeed")
    text, _ = job.communicate(timeout=200)
    assert job.returncode == 0, text
    for rank, step in (0, 7), (1, 10):
        killed(tmp_path / f"{rank}", "deepspeed", rank, step, weights(tmp_path / "undisturbed"))


@pytest.mark.xdist_group("recovery")
@pytest.mark.parametrize(("strategy", "name"), [("ddp", "SIGTERM"), ("fsdp", "SIGUSR1")])
def test_one_rank_is_told_to_stop_and_all_save_once(tmp_path, undisturbed, strategy, name):
    """The signal goes to one process only; what it says of the others is agreed. A second job goes on."""
    job = launch(tmp_path, strategy, slow=0.3)
    pids = [told(tmp_path / f"pid-{rank}") for rank in range(2)]
    until((tmp_path / "ckpt" / "step-0").exists)
    os.kill(pids[1], getattr(signal, name))
    until(lambda: (tmp_path / "stopped-0").exists() and (tmp_path / "stopped-1").exists())
    job.send_signal(signal.SIGTERM)  # the launcher would start them again
    job.communicate(timeout=60)
    stopped = [(tmp_path / f"stopped-{rank}").read_text() for rank in range(2)]
    assert stopped[0] == stopped[1], "processes stopped at different steps"
    assert not (tmp_path / "weights.pt").exists()
    job = launch(tmp_path, strategy)
    text, _ = job.communicate(timeout=120)
    assert job.returncode == 0, text
    assert same(weights(tmp_path), undisturbed[strategy])


def told(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
