"""The first use of a Runtime starts its device and joins its processes, once; what does not fit or does not compute is refused."""

from __future__ import annotations

import sys

import pytest
import torch

import accelkit
from accelkit_builtin.strategies.single_device import SingleDeviceStrategy


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


def test_an_accelerator_without_a_device_is_unavailable(error_text):
    class Empty(accelkit.Accelerator):
        device_type = "cpu"

        def auto_device_count(self):
            return 0

    with pytest.raises(accelkit.UnavailableError) as caught:
        accelkit.Runtime(accelerator=Empty())
    assert caught.value.why == "cpu has 0 devices"
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


def test_a_process_that_a_launcher_started_with_others_is_no_silent_single_one(monkeypatch, error_text):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(accelkit.ContradictionError) as caught:
        accelkit.Runtime(accelerator="cpu")
    assert "WORLD_SIZE=4" in caught.value.what
    assert caught.value == error_text


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


def test_a_strategy_is_set_up_and_torn_down_once():
    calls = []

    class Watched(SingleDeviceStrategy):
        def setup(self, accelerator, devices):
            calls.append(f"setup {list(devices)}")

        def teardown(self):
            calls.append("teardown")

    with accelkit.Runtime("cpu", strategy=Watched()) as rt:
        assert calls == []
        _ = rt.device
        assert calls == ["setup [0]"]
    assert calls == ["setup [0]", "teardown"]
    rt.teardown()
    assert calls[2:] == [], "it was not set up again"


def test_a_teardown_that_fails_keeps_no_other_plugin_from_its_own():
    calls = []

    class Watched(SingleDeviceStrategy):
        def teardown(self):
            calls.append("strategy")
            raise ValueError("neither")

    class Failing(accelkit.Precision):
        def teardown(self):
            calls.append("precision")
            raise ValueError("no end")

    class Hooks:
        @accelkit.hookimpl
        def teardown(self):
            calls.append("hooks")

    rt = accelkit.Runtime("cpu", strategy=Watched(), precision=Failing(), hooks=[Hooks()])
    _ = rt.device
    with pytest.raises(accelkit.BrokenPluginError, match="no end"):
        rt.teardown()
    assert calls == ["precision", "strategy", "hooks"]
    rt.teardown()
    assert len(calls) == 3, "nothing is torn down twice"


def test_a_device_that_does_not_compute_is_an_error(error_text):
    class Liar(accelkit.Accelerator):
        device_type = "cpu"

        def check(self):
            return accelkit.Availability.broken("1 + 1 was 3", "ask the vendor")

    with pytest.raises(accelkit.UnavailableError) as caught:
        _ = accelkit.Runtime(accelerator=Liar()).device
    assert "'cpu'" in caught.value.what
    assert caught.value == error_text
