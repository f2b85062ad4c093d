"""The device as an accelkit plugin: it is listed, selected by name, and trained on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

ROOT = Path(__file__).parents[3]


def accelkit(*arguments, check=True, **environ):
    command = [sys.executable, "-m", "accelkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check, env=os.environ | environ)


def test_list_shows_it_and_compiles_nothing(tmp_path):
    environ = {"FAKE_XPU_CACHE_DIR": str(tmp_path / "cache"), "ACCELKIT_CACHE_DIR": str(tmp_path / "accelkit")}
    rows = json.loads(accelkit("list", "--json", **environ).stdout)["plugins"]
    (row,) = [row for row in rows if row["name"] == "fake_xpu"]
    assert row["status"] == "available"
    assert row["distribution"] == "accelkit-fake-xpu"
    assert not (tmp_path / "cache").exists()


def test_auto_never_chooses_it():
    decision = json.loads(accelkit("why", "--json").stdout)
    assert decision["chosen"] != "fake_xpu"
    (candidate,) = [candidate for candidate in decision["candidates"] if candidate["name"] == "fake_xpu"]
    assert "simulated" in candidate["reason"]


def test_probe_computes_on_it():
    answer = json.loads(accelkit("probe", "fake_xpu", "--json").stdout)
    assert answer["status"] == "usable"


@pytest.mark.soak  # `make demo` trains on both devices, and fails if the model learns too little
def test_digits_learn_on_it_as_on_the_cpu():
    found = {}
    for accelerator in ("cpu", "fake_xpu"):
        command = [sys.executable, ROOT / "examples" / "digits.py", "--accelerator", accelerator]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        found[accelerator] = re.findall(r"([\d.]+)% of the held-out digits are classified correctly; ([\d.]+)% after", result.stdout)
    assert found["fake_xpu"]
    ((ours, reloaded),), ((theirs, _),) = found["fake_xpu"], found["cpu"]
    assert ours == reloaded
    assert abs(float(ours) - float(theirs)) < 1.5


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"FAKE_XPU_DEVICES": "many"}, "FAKE_XPU_DEVICES='many'"),
        ({"FAKE_XPU_FAULT": "fire@1"}, "'fire'"),
        ({"FAKE_XPU_VISIBLE_DEVICES": ""}, "FAKE_XPU_VISIBLE_DEVICES"),
        ({"FAKE_XPU_CACHE_DIR": "/dev/null/cache"}, "/dev/null/cache"),
        ({"CXX": "no-such-compiler", "FAKE_XPU_CACHE_DIR": "{tmp}"}, "no-such-compiler"),
    ],
    ids=["devices", "fault", "visible", "cache", "compiler"],
)
def test_why_it_cannot_be_used_is_said(environ, text, tmp_path):
    environ = {name: value.format(tmp=tmp_path) for name, value in environ.items()}
    result = accelkit("why", "fake_xpu", check=False, ACCELKIT_CACHE_DIR=str(tmp_path / "accelkit"), **environ)
    assert result.returncode != 0
    said = " ".join((result.stdout + result.stderr).split())
    assert text in said
    assert "accelkit-fake-xpu==0.1.0" in said


PROGRAM = """
import torch, accelkit
from torch.utils.data import DataLoader, TensorDataset

rt = accelkit.Runtime(accelerator="fake_xpu", devices=[1], precision={precision!r}, seed=0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)
model, optimizer, loader = rt.prepare(model, optimizer, loader)
torch.fake_xpu.reset_kernel_counts()
losses = []
for _ in range(20):
    for (x,) in loader:
        assert x.device == rt.device, x.device
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        rt.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0] / 2, losses
assert {{p.device for p in model.parameters()}} == {{rt.device}}
assert all(s.device == rt.device for v in optimizer.state.values() for s in v.values() if s.dim())
assert torch.fake_xpu.kernel_count(1) > 1000 and torch.fake_xpu.kernel_count(0) == 0
stats = rt.accelerator.memory_stats(rt.device)
assert 0 < stats["memory.allocated.bytes"] <= stats["memory.peak.bytes"]
path = rt.save_state({folder!r})
before = [p.detach().clone() for p in model.parameters()]
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
rt.load_state(path)
assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
print(rt.device, "trained")
"""


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_a_plain_loop_trains_on_it(precision, tmp_path):
    program = PROGRAM.format(precision=precision, folder=str(tmp_path / "ckpt"))
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:TypedStorage", "-c", program], capture_output=True, text=True, check=False
    )
    assert result.stdout == "fake_xpu:1 trained\n", result.stderr


def test_two_devices_of_one_are_refused(error_text):
    code = "import accelkit; accelkit.Runtime('fake_xpu', devices=2).device"
    environ = os.environ | {"FAKE_XPU_DEVICES": "1"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    error = result.stderr[result.stderr.rindex("accelkit.errors.DevicesError: ") :]
    assert all(part in error for part in ("devices=2", "fake_xpu"))
    assert error == error_text


def test_faults_are_for_the_program_and_not_for_the_trial(tmp_path):
    code = "import torch, accelkit; rt = accelkit.Runtime('fake_xpu'); torch.ones(1, device=rt.device); torch.ones(1, device=rt.device)"
    environ = os.environ | {"FAKE_XPU_FAULT": "oom@2", "ACCELKIT_CACHE_DIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    assert "OutOfMemoryError: fake_xpu out of memory" in result.stderr


def test_what_the_accelerator_declares_is_what_torch_says():
    import torch

    accelerator = FakeXPUAccelerator()
    capabilities = accelerator.capabilities()
    for name in ("float16", "bfloat16"):
        assert capabilities[f"autocast.{name}"] == "native"
        assert getattr(torch, name) in torch.fake_xpu.get_amp_supported_dtype()
    assert accelerator.check().is_usable
    assert accelerator.auto_device_count() == 2


def test_the_accelerator_is_short():
    source = Path(sys.modules[FakeXPUAccelerator.__module__].__file__)
    assert len(source.read_text().splitlines()) <= 60
