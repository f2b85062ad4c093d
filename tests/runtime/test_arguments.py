"""The constructor: precedence, contradictions, and what a first use refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

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


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_bad_number_of_nodes(monkeypatch, value, error_text):
    monkeypatch.setenv("ACCELKIT_NUM_NODES", value)
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime(accelerator="cpu")
    assert f"ACCELKIT_NUM_NODES={value!r}" in caught.value.what
    assert caught.value == error_text


def test_plugins_take_a_mix_of_names_and_instances():
    mine = MyPrecision()
    rt = accelkit.Runtime(plugins=["cpu", mine, "single_device", "local"])
    assert (rt.accelerator.name, rt.precision) == ("cpu", mine)
    assert rt.state.precision == "MyPrecision"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"precision": "64-true", "plugins": [MyPrecision()]}, "precision"),
        ({"plugins": ["64-true", "bf16-mixed"]}, "precision"),
        ({"accelerator": "cpu", "plugins": ["cuda"]}, "accelerator"),
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
        ({"plugins": ["nobody"]}, accelkit.UnknownNameError, "plugins=['nobody']"),
        ({"precision": 3.2}, accelkit.UsageError, "precision=3.2"),
        ({"strategy": MyPrecision()}, accelkit.UsageError, "accelkit.Strategy"),
        ({"devices": [0, 1]}, accelkit.DevicesError, "device 1"),
        ({"process_group": accelkit.ProcessGroupOptions(timeout=0)}, accelkit.UsageError, "timeout=0"),
        ({"hooks": "step_log"}, accelkit.UsageError, "hooks='step_log'"),
        ({"plugins": "cpu"}, accelkit.UsageError, "plugins=['cpu']"),
        ({"devices": "all"}, accelkit.DevicesError, "devices='all'"),
        ({"rng_types": ["cuda"]}, accelkit.UsageError, "'cuda'"),
        ({"gradient_accumulation_steps": 0}, accelkit.PrepareError, "gradient_accumulation_steps=0"),
    ],
)
def test_bad_arguments(arguments, error, text, error_text):
    with pytest.raises(error) as caught:
        accelkit.Runtime(**({"accelerator": "cpu"} | arguments))
    assert text in str(caught.value)
    assert caught.value == error_text


def test_more_devices_than_one_process_drives_is_an_error_at_first_use(monkeypatch, error_text):
    monkeypatch.setattr(sys, "argv", ["train.py"])

    class Twin(accelkit.Accelerator):
        device_type = "cpu"

        def auto_device_count(self):
            return 2

    rt = accelkit.Runtime(accelerator=Twin(), devices=2)
    assert rt.state.strategy == "ddp"
    with pytest.raises(accelkit.UnsupportedError) as caught:
        _ = rt.device
    assert "devices=[0, 1]" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UnsupportedError) as caught:
        _ = accelkit.Runtime(accelerator="cpu", num_nodes=2).device
    assert "--accelerator cpu" in caught.value.hint
    assert "--devices 1" in caught.value.hint
    assert "--num-nodes 2" in caught.value.hint
    assert caught.value == error_text
    with pytest.raises(accelkit.UnsupportedError) as caught:
        _ = accelkit.Runtime(accelerator="cpu", devices=2, strategy="single_device").device
    assert "'single_device'" in caught.value.what
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


def test_ddp_with_one_process_is_a_group_of_one():
    with accelkit.Runtime(accelerator="cpu", strategy="ddp") as rt:
        model = rt.prepare(torch.nn.Linear(2, 1))
        assert torch.distributed.get_world_size() == 1
        assert rt.unwrap_model(model) is model.module
        rt.backward(model(torch.ones(1, 2)).sum())
        assert model.module.weight.grad.tolist() == [[1.0, 1.0]]
    assert not torch.distributed.is_initialized()


def test_a_group_that_the_program_made_is_kept_or_refused(error_text):
    class Two(accelkit.ClusterEnvironment):
        creates_processes_externally = True
        world_size = local_world_size = 2

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with accelkit.Runtime(accelerator="cpu", strategy="ddp") as rt:
            _ = rt.device
        assert torch.distributed.is_initialized()
        with pytest.raises(accelkit.ContradictionError) as caught:
            _ = accelkit.Runtime(accelerator="cpu", cluster=Two()).device
        assert "torch.distributed" in caught.value.what
        assert caught.value == error_text
    finally:
        torch.distributed.destroy_process_group()


def test_processes_that_do_not_find_each_other_are_told_so(error_text):
    class Lonely(accelkit.ClusterEnvironment):
        creates_processes_externally = True
        world_size = local_world_size = 2
        global_rank = local_rank = 1
        main_port = 9

    rt = accelkit.Runtime(accelerator="cpu", cluster=Lonely(), process_group=accelkit.ProcessGroupOptions(timeout=2))
    with pytest.raises(accelkit.UnavailableError) as caught:
        _ = rt.device
    assert "127.0.0.1:9" in caught.value.what
    assert caught.value == error_text


def test_more_processes_than_devices_is_an_error(error_text):
    class Three(accelkit.ClusterEnvironment):
        creates_processes_externally = True
        world_size = local_world_size = 3

    class One(accelkit.Accelerator):
        device_type = "cpu"
        visible_devices_variable = "ONE_VISIBLE_DEVICES"

        def auto_device_count(self):
            return 1

    with pytest.raises(accelkit.ContradictionError) as caught:
        accelkit.Runtime(accelerator=One(), cluster=Three())
    assert "3 processes" in caught.value.what
    assert caught.value == error_text


def test_one_visible_device_for_each_process_is_its_own(monkeypatch):
    class Third(accelkit.ClusterEnvironment):
        creates_processes_externally = True
        world_size = local_world_size = 3
        global_rank = local_rank = 2

    class One(accelkit.Accelerator):
        device_type = "cpu"
        visible_devices_variable = "ONE_VISIBLE_DEVICES"

        def auto_device_count(self):
            return 1

    monkeypatch.setenv("ONE_VISIBLE_DEVICES", "2")
    rt = accelkit.Runtime(accelerator=One(), cluster=Third())
    assert rt.state.devices == (0,)
    assert rt.strategy.root_device(rt.accelerator, rt.state.devices, rt.local_process_index).index == 0


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


def test_a_device_that_does_not_compute_is_an_error(error_text):
    class Liar(accelkit.Accelerator):
        device_type = "cpu"

        def check(self):
            return accelkit.Availability.broken("1 + 1 was 3", "ask the vendor")

    with pytest.raises(accelkit.UnavailableError) as caught:
        _ = accelkit.Runtime(accelerator=Liar()).device
    assert "'cpu'" in caught.value.what
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
