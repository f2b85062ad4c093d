"""``accelkit.device``: only the device. What docs/plain-torch.md says of ``torch.set_default_device`` is asserted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import accelkit

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def seen():
    result = subprocess.run([sys.executable, HERE / "plain_device_program.py"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_a_plain_loop_trains_on_it(seen):
    assert (seen["device"], seen["index"]) == ("fake_xpu:0", "fake_xpu:1")
    assert seen["loss"] == "fake_xpu:0"
    assert seen["losses"][-1] < seen["losses"][0] / 10


def test_the_default_device_is_where_tensors_and_modules_are_made(seen):
    assert {name: seen["made"][name] for name in ("ones", "module")} == {"ones": "fake_xpu:0", "module": "fake_xpu:0"}
    assert seen["after"] == "cpu"


def test_the_default_device_is_of_one_thread_and_not_of_what_exists_already(seen):
    found = {name: seen["made"][name] for name in ("from_numpy", "thread", "loaded")}
    assert found == {"from_numpy": "cpu", "thread": "cpu", "loaded": "cpu"}
    assert seen["with cpu"] == "cpu"


def test_a_shuffling_loader_wants_a_generator_of_the_default_device(seen):
    assert "Expected a 'fake_xpu' device type for generator but found 'cpu'" in seen["shuffling"]
    assert seen["batch"] == "cpu"


def test_the_name_comes_from_the_argument_then_the_environment_then_auto(monkeypatch):
    assert accelkit.device() == torch.device("cpu")
    monkeypatch.setenv("ACCELKIT_ACCELERATOR", "fake_xpu")
    assert accelkit.device() == torch.device("fake_xpu", 0)
    assert accelkit.device("cpu") == torch.device("cpu")
    monkeypatch.setenv("ACCELKIT_DEVICES", "1,")
    assert accelkit.device() == torch.device("fake_xpu", 1)


def test_in_a_job_it_is_this_processs_and_no_group_is_joined():
    job = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "test"}
    code = "import accelkit, torch; print(accelkit.device('fake_xpu'), torch.distributed.is_initialized())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | job)
    assert result.stdout == "fake_xpu:1 False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process see what its threads are at")
def test_a_process_that_ends_at_once_ends_well():
    """torch aborts a process that ends while a backward thread, of the device that is not used, is still starting: every other time."""
    code = "import accelkit; accelkit.device('fake_xpu', 1)"
    ends = [subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode for _ in range(4)]
    assert ends == [0] * 4


def test_what_does_not_exist_is_an_error_and_not_the_cpu(error_text):
    with pytest.raises(accelkit.UnknownNameError, match="fake_xpu_"):
        accelkit.device("fake_xpu_")
    with pytest.raises(accelkit.DevicesError) as caught:
        accelkit.device("fake_xpu", 7)
    assert "devices=[7]" in caught.value.what
    assert "fake_xpu" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UnavailableError) as caught:
        accelkit.device("cuda")
    assert "'cuda'" in caught.value.what
    assert caught.value == error_text


def test_a_device_of_which_a_process_has_trained_without_is_an_error_that_says_so(error_text):
    code = "import torch, accelkit; torch.ones(1, requires_grad=True).sum().backward(); accelkit.device('fake_xpu')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "fake_xpu:0" in result.stderr
    assert result.stderr[result.stderr.rindex("a backward pass on") :].splitlines()[0] == error_text
