"""The constructor: precedence, contradictions, and arguments that it refuses."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import accelkit


class MyPrecision(accelkit.Precision):
    pass


def test_arguments_come_before_the_environment(monkeypatch, error_text):
    monkeypatch.setenv("ACCELKIT_PRECISION", "64-true")
    monkeypatch.setenv("ACCELKIT_ACCELERATOR", "cpu")
    assert accelkit.Runtime().state.precision == "64-true"
    assert accelkit.Runtime(precision="bf16-mixed").state.precision == "bf16-mixed"
    monkeypatch.setenv("ACCELKIT_STRATEGY", "nope")
    with pytest.raises(accelkit.UnknownNameError) as caught:
        accelkit.Runtime()
    assert "'nope'" in caught.value.what
    assert caught.value == error_text
    assert accelkit.Runtime(strategy="single_device").state.strategy == "single_device"


def test_strategy_auto_is_the_default(monkeypatch):
    assert accelkit.Runtime("cpu", strategy="auto").state.strategy == "single_device"
    assert accelkit.Runtime("cpu", devices=2, strategy="auto").state.strategy == "ddp"
    monkeypatch.setenv("ACCELKIT_STRATEGY", "ddp")
    assert accelkit.Runtime("cpu", strategy="auto").state.strategy == "ddp", "as if it were left out"
    monkeypatch.setenv("ACCELKIT_STRATEGY", "auto")
    assert accelkit.Runtime("cpu").state.strategy == "single_device"
    monkeypatch.setenv("ACCELKIT_STRATEGY", "")
    assert accelkit.Runtime("cpu").state.strategy == "single_device"


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_bad_number_of_nodes(monkeypatch, value, error_text):
    monkeypatch.setenv("ACCELKIT_NUM_NODES", value)
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime(accelerator="cpu")
    assert f"ACCELKIT_NUM_NODES={value!r}" in caught.value.what
    assert caught.value == error_text


def test_each_kind_of_plugin_is_a_name_or_an_instance():
    mine = MyPrecision()
    rt = accelkit.Runtime("cpu", precision=mine, strategy=accelkit.Strategy(), cluster="local")
    assert (rt.accelerator.name, rt.precision) == ("cpu", mine)
    assert rt.state.precision == "MyPrecision"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"accelerator": "cuda", "cpu": True}, "cpu=True"),
        ({"accelerator": "cpu", "strategy": accelkit.Strategy(device="cuda")}, "'Strategy'"),
    ],
)
def test_contradictions(arguments, text, error_text):
    with pytest.raises(accelkit.ContradictionError) as caught:
        accelkit.Runtime(**arguments)
    assert text in str(caught.value)
    assert caught.value == error_text


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"precision": 3.2}, accelkit.UsageError, "precision=3.2"),
        ({"strategy": MyPrecision()}, accelkit.UsageError, "accelkit.Strategy"),
        ({"devices": [0, 1]}, accelkit.DevicesError, "device 1"),
        ({"process_group": accelkit.ProcessGroupOptions(timeout=0)}, accelkit.UsageError, "timeout=0"),
        ({"hooks": "step_log"}, accelkit.UsageError, "hooks='step_log'"),
        ({"hooks": ["bf16-mixed"]}, accelkit.UnknownNameError, "'bf16-mixed'"),
        ({"hooks": [MyPrecision()]}, accelkit.UsageError, "precision="),
        ({"devices": "all"}, accelkit.DevicesError, "devices='all'"),
        ({"rng_types": ["cuda"]}, accelkit.UsageError, "'cuda'"),
        ({"gradient_accumulation_steps": 0}, accelkit.UsageError, "gradient_accumulation_steps"),
        ({"gradient_accumulation_steps": "2"}, accelkit.UsageError, "gradient_accumulation_steps"),
        ({"num_nodes": 0}, accelkit.UsageError, "num_nodes=0"),
        ({"num_nodes": "2"}, accelkit.UsageError, "num_nodes='2'"),
        ({"strategy": ""}, accelkit.UnknownNameError, "no strategy named ''"),
        ({"hooks": [accelkit.Strategy()]}, accelkit.UsageError, "hooks=[<strategy Strategy>]"),
    ],
)
def test_bad_arguments(arguments, error, text, error_text):
    with pytest.raises(error) as caught:
        accelkit.Runtime(**({"accelerator": "cpu"} | arguments))
    assert text in str(caught.value)
    assert caught.value == error_text


@pytest.mark.parametrize("value", ["soon", "-1", "inf"])
def test_a_time_out_that_is_none(monkeypatch, value, error_text):
    monkeypatch.setenv("ACCELKIT_TIMEOUT", value)
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime(accelerator="cpu")
    assert f"ACCELKIT_TIMEOUT='{value}'" in str(caught.value)
    assert caught.value == error_text


def test_a_strategy_that_the_device_cannot_do(error_text):
    class Alone(accelkit.Accelerator):
        device_type = "cpu"
        declared_capabilities = accelkit.Capabilities.declare(none=["process_group"])

    with pytest.raises(accelkit.UnsupportedError) as caught:
        accelkit.Runtime(accelerator=Alone(), strategy="ddp")
    assert "'ddp'" in caught.value.what
    assert "process_group" in caught.value.why
    assert caught.value == error_text


def test_a_vendors_package_that_fails_to_import_is_named(error_text):
    class Missing(accelkit.Accelerator):
        device_type = "cpu"
        torch_package = "torch_of_nobody"

        @classmethod
        def probe(cls):
            return accelkit.Availability.usable()

    with pytest.raises(accelkit.BrokenPluginError) as caught:
        accelkit.Runtime(accelerator=Missing())
    assert "'torch_of_nobody'" in caught.value.why
    assert caught.value == error_text
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


def test_importing_the_runtime_names_a_vendors_package_that_breaks_torch(plugin_site, error_text):
    source = "def _autoload():\n    raise OSError('libhccl.so: cannot open shared object file: No such file or directory')\n"
    plugin_site.install("torch-acme", source, entry_points="[torch.backends]\ntorch_acme = torch_acme:_autoload", version="2.1")
    code = "import accelkit\ntry:\n    accelkit.Runtime(accelerator='cpu')\nexcept accelkit.AccelkitError as error:\n    print(error)"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "import torch" in text
    assert text == error_text
    assert "torch-acme==2.1" in text
    assert "libhccl.so: cannot open shared object file" in text
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in text


def test_every_public_attribute_of_a_runtime_is_documented():
    documented = (accelkit.Runtime.__doc__ or "").partition("Attributes:")[2].partition("Raises:")[0]
    public = [name for name in vars(accelkit.Runtime("cpu")) if not name.startswith("_")]
    assert public
    for name in public:
        assert re.search(rf"^ +{name}: ", documented, re.MULTILINE), f"Runtime.{name} is not in the section Attributes"
