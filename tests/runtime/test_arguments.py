"""The constructor: precedence, contradictions, and what a first use refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import accelkit


class MyPrecision(accelkit.Precision):
    pass


def test_arguments_come_before_the_environment(monkeypatch):
    monkeypatch.setenv("ACCELKIT_PRECISION", "64-true")
    monkeypatch.setenv("ACCELKIT_ACCELERATOR", "cpu")
    assert accelkit.Runtime().state.precision == "64-true"
    assert accelkit.Runtime(precision="bf16-mixed").state.precision == "bf16-mixed"
    monkeypatch.setenv("ACCELKIT_STRATEGY", "nope")
    with pytest.raises(accelkit.UnknownNameError, match="there is no strategy 'nope'"):
        accelkit.Runtime()
    assert accelkit.Runtime(strategy="single_device").state.strategy == "single_device"


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_bad_number_of_nodes(monkeypatch, value):
    monkeypatch.setenv("ACCELKIT_NUM_NODES", value)
    with pytest.raises(accelkit.UsageError, match="is no number of nodes"):
        accelkit.Runtime(accelerator="cpu")


def test_plugins_take_a_mix_of_names_and_instances():
    mine = MyPrecision()
    rt = accelkit.Runtime(plugins=["cpu", mine, "single_device", "local"])
    assert (rt.accelerator.name, rt.precision) == ("cpu", mine)
    assert rt.state.precision == "MyPrecision"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"precision": "64-true", "plugins": [MyPrecision()]}, "two precision plugins are given"),
        ({"plugins": ["64-true", "bf16-mixed"]}, "two precision plugins are given"),
        ({"accelerator": "cpu", "plugins": ["cuda"]}, "two accelerator plugins are given"),
        ({"accelerator": "cuda", "cpu": True}, "cpu=True and accelerator='cuda'"),
        ({"accelerator": "cpu", "strategy": accelkit.Strategy(device="cuda")}, "disagree about the device"),
    ],
)
def test_contradictions(arguments, text):
    with pytest.raises(accelkit.ContradictionError, match=text):
        accelkit.Runtime(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"plugins": ["nobody"]}, accelkit.UnknownNameError, r"plugins=\['nobody'\] cannot be placed"),
        ({"precision": 32}, accelkit.UsageError, "precision=32 cannot be used"),
        ({"strategy": MyPrecision()}, accelkit.UsageError, "an instance of accelkit.Strategy is expected"),
        ({"devices": 2}, accelkit.DevicesError, "2 are asked for, 1 is there"),
        ({"hooks": "step_log"}, accelkit.UsageError, "hooks='step_log' is a string"),
        ({"plugins": "cpu"}, accelkit.UsageError, "write plugins=\\['cpu'\\]"),
        ({"devices": "all"}, accelkit.DevicesError, "neither a number"),
        ({"rng_types": ["cuda"]}, accelkit.UsageError, "there is no generator 'cuda'"),
        ({"gradient_accumulation_steps": 0}, accelkit.PrepareError, "at least 1 is expected"),
    ],
)
def test_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        accelkit.Runtime(**({"accelerator": "cpu"} | arguments))


def test_more_devices_than_one_process_drives_is_an_error_at_first_use():
    class Twin(accelkit.Accelerator):
        device_type = "cpu"

        def auto_device_count(self):
            return 2

    rt = accelkit.Runtime(accelerator=Twin(), devices=2)
    with pytest.raises(accelkit.UnsupportedError, match="devices=\\[0, 1\\] on 1 node.* is more than one process can drive"):
        _ = rt.device
    with pytest.raises(accelkit.UnsupportedError, match="accelkit 0.1.0 trains on one device"):
        _ = accelkit.Runtime(accelerator="cpu", num_nodes=2).device


def test_a_process_that_a_launcher_started_with_others_is_no_silent_single_one(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(accelkit.ContradictionError, match="WORLD_SIZE=4"):
        accelkit.Runtime(accelerator="cpu")


def test_the_constructor_initialises_no_driver_and_first_use_asks_once():
    calls = []

    class Watched(accelkit.Accelerator):
        device_type = "cpu"

        def check(self):
            calls.append("check")
            return accelkit.Availability.usable()

        def setup_device(self, device):
            calls.append(f"setup {device}")

        def teardown(self):
            calls.append("teardown")

    with accelkit.Runtime(accelerator=Watched()) as rt:
        assert calls == []
        assert rt.device == torch.ones(1).device
        _ = rt.device
        assert calls == ["check", "setup cpu:0"]
    assert calls[-1] == "teardown"
    _ = rt.device
    assert calls.count("check") == 2, "a Runtime that was torn down starts anew"


def test_a_device_that_does_not_compute_is_an_error():
    class Liar(accelkit.Accelerator):
        device_type = "cpu"

        def check(self):
            return accelkit.Availability.broken("1 + 1 was 3", "ask the vendor")

    with pytest.raises(accelkit.UnavailableError) as caught:
        _ = accelkit.Runtime(accelerator=Liar()).device
    assert "does not compute" in str(caught.value)
    assert "1 + 1 was 3" in str(caught.value)
    assert "ask the vendor" in str(caught.value)


def test_a_vendors_package_that_fails_to_import_is_named():
    class Missing(accelkit.Accelerator):
        device_type = "cpu"
        torch_package = "torch_of_nobody"

        @classmethod
        def probe(cls):
            return accelkit.Availability.usable()

    with pytest.raises(accelkit.BrokenPluginError, match="loading the accelerator cpu failed") as caught:
        accelkit.Runtime(accelerator=Missing())
    assert "No module named 'torch_of_nobody'" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_state_prints_well_and_is_frozen(rt):
    assert "accelerator          cpu\n" in str(rt.state)
    assert "device               cpu\n" in str(rt.state)
    with pytest.raises(AttributeError):
        rt.state.accelerator = "cuda"
    assert repr(rt) == "<Runtime cpu 32-true single_device>"


def test_an_accelerators_own_precision_comes_first():
    class Vendors(accelkit.Precision):
        pass

    class Special(accelkit.Accelerator):
        device_type = "cpu"

        def make_precision(self, name, device):
            return Vendors() if name == "bf16-mixed" else None

    assert isinstance(accelkit.Runtime(accelerator=Special(), precision="bf16-mixed").precision, Vendors)
    assert not isinstance(accelkit.Runtime(accelerator=Special(), precision="32-true").precision, Vendors)


def test_importing_the_runtime_names_a_vendors_package_that_breaks_torch(plugin_site):
    source = "def _autoload():\n    raise OSError('libhccl.so: cannot open shared object file: No such file or directory')\n"
    plugin_site.install("torch-acme", source, entry_points="[torch.backends]\ntorch_acme = torch_acme:_autoload", version="2.1")
    code = "import accelkit\ntry:\n    accelkit.Runtime(accelerator='cpu')\nexcept accelkit.AccelkitError as error:\n    print(error)"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "import torch failed" in text
    assert "torch-acme==2.1" in text
    assert "libhccl.so: cannot open shared object file" in text
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in text
