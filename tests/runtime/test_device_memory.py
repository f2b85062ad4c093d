"""Waiting for the device, its memory, and its cache."""

from __future__ import annotations

import pytest
import torch

import accelkit

pytestmark = pytest.mark.usefixtures("no_garbage")


class Recording(accelkit.Accelerator):
    """A device of the host that records when its cache is emptied, and cannot wait once it is set up."""

    device_type = "cpu"

    def __init__(self):
        self.calls = []

    @classmethod
    def probe(cls):
        return accelkit.Availability.usable()

    def setup_device(self, device):
        self.calls.append("setup_device")

    def empty_cache(self):
        self.calls.append("empty_cache")

    def synchronize(self, device):
        if self.calls:
            raise RuntimeError("the queue is stuck")


def test_memory_follows_what_is_allocated():
    rt = accelkit.Runtime("fake_xpu")
    before = rt.memory.current
    large = torch.zeros(1 << 20, device=rt.device)
    assert rt.memory.current >= before + (4 << 20)
    del large
    assert rt.memory.current < before + (4 << 20)
    assert rt.memory.peak >= before + (4 << 20)
    rt.memory.reset_peak()
    assert rt.memory.peak == rt.memory.current
    assert repr(rt.memory) == f"<DeviceMemory current={rt.memory.current} peak={rt.memory.peak} bytes>"


def test_a_device_that_does_not_report_what_is_allocated_has_none(rt):
    assert (rt.memory.current, rt.memory.peak) == (None, None)
    rt.memory.reset_peak()


def test_the_queue_is_empty_after_waiting():
    rt = accelkit.Runtime("fake_xpu")
    host, target = torch.ones(4).pin_memory(), torch.zeros(4, device=rt.device)
    with torch.fake_xpu.fault("slow_copy@300"), torch.Stream(rt.device) as stream:
        target.copy_(host, non_blocking=True)
        assert not stream.query(), "the program went on"
        rt.synchronize()
        assert stream.query()


def test_the_cache_of_a_device_in_use_is_emptied():
    accelerator = Recording()
    accelkit.Runtime(accelerator).empty_cache()
    assert accelerator.calls == ["setup_device", "empty_cache"]


def test_the_host_has_nothing_to_wait_for(rt):
    rt.synchronize()
    rt.empty_cache()


def test_a_failing_plugin_is_named(error_text):
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        accelkit.Runtime(Recording()).synchronize()
    assert "stuck" in str(caught.value)
    assert caught.value == error_text


def test_a_model_that_the_program_drops_leaves_no_memory():
    rt = accelkit.Runtime("fake_xpu")
    before = rt.memory.current
    for _ in range(2):
        model = torch.nn.Linear(64, 64)
        model, optimizer = rt.prepare(model, torch.optim.Adam(model.parameters()))
        rt.backward(model(torch.ones(2, 64, device=rt.device)).mean())
        optimizer.step()
        model, optimizer = rt.free_memory(model, optimizer)
        assert rt.memory.current == before
