"""Two processes, two devices: started by Lightning, by accelkit launch and by torchrun; whole models, and sharded ones."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from device_checking_model import loader, small_net
from preloaded_lightning import python

PROGRAM = Path(__file__).with_name("lightning_ddp_program.py")
SHARDED = Path(__file__).with_name("lightning_sharded_program.py")
ACCELKIT_LAUNCH = ["-m", "accelkit", "launch", "--accelerator", "fake_xpu", "--devices", "2"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(folder, package, *arguments, launcher=(), program=PROGRAM):
    """What each rank saw, in the order of ranks."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAM.parent)}
    command = [python(package), *launcher, program, folder, package, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def assert_trained_together(ranks, steps=4, devices=("fake_xpu:0", "fake_xpu:1")):
    assert [one["device"] for one in ranks] == [*devices]
    assert [one["world_size"] for one in ranks] == [2, 2]
    assert {one["steps"] for one in ranks} == {steps}, "half of the batches each"
    assert ranks[0]["parameters"] == ranks[1]["parameters"]
    assert ranks[0]["gradient"] == ranks[1]["gradient"]
    assert all("fake_xpu:fxccl" in one["backends"] for one in ranks)


@pytest.mark.parametrize(
    ("how", "package"),
    [
        ("arguments", "lightning"),
        ("bare_names", "pytorch_lightning"),
        pytest.param("arguments", "pytorch_lightning", marks=pytest.mark.soak),
        pytest.param("bare_names", "lightning", marks=pytest.mark.soak),
    ],
)
def test_lightnings_own_launcher(how, package, tmp_path):
    ranks = run(tmp_path, package, how, "16-mixed" if how == "bare_names" else "32-true")
    assert_trained_together(ranks)
    assert ranks[0]["val_loss"] == ranks[1]["val_loss"]
    assert ranks[0]["environment"][0] == "LightningEnvironment"
    assert (tmp_path / "ddp.ckpt").exists()


@pytest.mark.parametrize(
    "launcher",
    [pytest.param(ACCELKIT_LAUNCH, id="accelkit"), pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.newest_peers)],
)
def test_processes_that_a_launcher_started(launcher, tmp_path):
    """Neither devices nor an environment is named: both come from accelkit's, which serves as Lightning's."""
    ranks = run(tmp_path, "lightning", "launched", "32-true", launcher=launcher)
    assert_trained_together(ranks)
    assert ranks[0]["environment"][:2] == ["TorchElasticEnvironment", "PluginEnvironment"]


@pytest.mark.newest_peers
def test_processes_of_which_each_sees_only_its_own_device(tmp_path):
    """Each calls its device 0, and Lightning counts one device for each process."""
    ranks = run(tmp_path, "lightning", "one_device_each", "32-true", launcher=TORCHRUN)
    assert_trained_together(ranks, devices=("fake_xpu:0", "fake_xpu:0"))
    assert [one["device_on_machine"] for one in ranks] == [0, 1]
    assert [one["auto_device_count"] for one in ranks] == [2, 2]


@pytest.mark.parametrize("package", ["lightning", pytest.param("pytorch_lightning", marks=pytest.mark.soak)])
def test_fabric(package, tmp_path):
    assert_trained_together(run(tmp_path, package, "fabric", "32-true"), steps=2)


@pytest.mark.parametrize(
    ("how", "package", "precision", "accelerator"),
    [
        ("arguments", "lightning", "32-true", "fake_xpu"),
        ("bare_names", "pytorch_lightning", "bf16-mixed", "fake_xpu"),
        pytest.param("arguments", "pytorch_lightning", "bf16-mixed", "fake_xpu", marks=pytest.mark.soak),
        pytest.param("bare_names", "lightning", "bf16-mixed", "fake_xpu", marks=pytest.mark.soak),
        ("fabric", "lightning", "32-true", "fake_xpu"),
        ("fsdp_arguments", "lightning", "32-true", "cpu"),
        ("fsdp_bare_names", "pytorch_lightning", "bf16-mixed", "fake_xpu"),
        ("fsdp_fabric", "lightning", "32-true", "fake_xpu"),
    ],
)
def test_sharded(how, package, precision, accelerator, tmp_path):
    """By accelkit's fsdp or by Lightning's strategy: the weights of a plain loop on the CPU, on batches of both processes together."""
    ranks = run(tmp_path, package, how, precision, accelerator, program=SHARDED)
    devices = ["cpu", "cpu"] if accelerator == "cpu" else ["fake_xpu:0", "fake_xpu:1"]
    assert [one["devices"] for one in ranks] == [[device] for device in devices]
    is_trainer, by_name = not how.endswith("fabric"), how.startswith("fsdp_")
    for one in ranks:
        assert one["steps"] == 4
        assert one["is_sharded"]
        if is_trainer:
            assert one["checkpoint_is_sharded"] is not by_name
        if is_trainer and by_name:
            assert one["val_loss"][0] == one["val_loss"][1] == ranks[0]["val_loss"][0]
        assert accelerator == "cpu" or "fake_xpu:fxccl" in one["backends"]
    assert ranks[0]["parameters"] == ranks[1]["parameters"]
    net = small_net()
    if is_trainer and by_name:
        assert ranks[0]["names"] == sorted(f"net.{name}" for name in net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    for x, y in [*loader(batch_size=16), *loader(batch_size=16)]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            result = net(x)
        torch.nn.functional.mse_loss(result.float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    tolerance = {"rtol": 1e-5 if precision == "32-true" else 2e-2, "atol": 1e-5}
    for found, expected in zip(ranks[0]["parameters"], net.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(found), expected.detach(), **tolerance)
    if is_trainer and by_name:
        x, y = loader().dataset.tensors
        torch.testing.assert_close(ranks[0]["val_loss"][0], torch.nn.functional.mse_loss(net(x), y).item(), **tolerance)
