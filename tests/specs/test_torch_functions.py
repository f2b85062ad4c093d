"""The defaults of ``Accelerator`` use ``torch.accelerator`` first and the device's module second, and never do nothing in silence."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings

import pytest
import torch
from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

import accelkit
from accelkit.runtime.seeding import seed_device
from accelkit.specs import torch_functions

MIB = 1 << 20


class Bare(FakeXPUAccelerator):
    """The fake XPU of a vendor whose module has only what torch itself calls. ``torch.accelerator`` works."""

    @property
    def device_module(self):
        names = ("is_available", "device_count", "current_device")
        return types.SimpleNamespace(**{name: getattr(torch.fake_xpu, name) for name in names})


class Elsewhere(Bare):
    """A device that is not torch's accelerator, and whose module has only what torch itself calls."""

    device_type = "elsewhere"


class WithModule(FakeXPUAccelerator):
    """A device that is not torch's accelerator. Its module records which of its functions are called."""

    device_type = "elsewhere"

    def __init__(self):
        self.calls = []

    @property
    def device_module(self):
        names = ("synchronize", "set_device", "memory_allocated", "max_memory_allocated", "empty_cache", "reset_peak_memory_stats")
        return types.SimpleNamespace(**{name: self.recorder(name) for name in names})

    def recorder(self, name):
        return lambda *arguments: self.calls.append((name, *arguments)) or 7


@pytest.fixture(scope="module", autouse=True)
def device():
    FakeXPUAccelerator().load()
    return torch.device("fake_xpu", 0)


def test_torch_accelerator_is_enough(device):
    bare = Bare()
    bare.setup_device(torch.device("fake_xpu", 1))
    assert torch.accelerator.current_device_index() == 1
    bare.setup_device(device)
    before = bare.memory_stats(device)["memory.allocated.bytes"]
    block = torch.ones(MIB, device=device)
    assert bare.memory_stats(device)["memory.allocated.bytes"] == before + 4 * MIB
    del block
    assert bare.memory_stats(device)["memory.peak.bytes"] >= before + 4 * MIB
    bare.reset_peak_memory_stats(device)
    assert bare.memory_stats(device)["memory.peak.bytes"] == before
    bare.empty_cache()
    assert bare.check().is_usable


def test_synchronize_waits_for_a_device_whose_module_cannot(device):
    source = torch.ones(1 << 16).pin_memory()
    with torch.fake_xpu.fault("slow_copy@300"), torch.Stream(device) as stream:
        source.to(device, non_blocking=True)
        assert not stream.query()
        Bare().synchronize(device)
        assert stream.query()


def test_another_device_than_torch_s_accelerator_uses_its_module(device):
    accelerator = WithModule()
    accelerator.setup_device(device)
    accelerator.synchronize(device)
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats(device)
    assert accelerator.memory_stats(device) == {"memory.allocated.bytes": 7.0, "memory.peak.bytes": 7.0}
    names = ["set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"]
    assert [name for name, *_ in accelerator.calls] == names


def test_what_neither_supports_is_an_error(device, error_text):
    accelerator = Elsewhere()
    with pytest.raises(accelkit.UnsupportedError) as caught:
        accelerator.synchronize(device)
    assert "torch.elsewhere has no synchronize" in caught.value.why
    assert "fake_xpu" in caught.value.why
    assert caught.value == error_text
    with pytest.raises(accelkit.UnsupportedError):
        accelerator.setup_device(torch.device("fake_xpu", 1))
    accelerator.setup_device(device)


def test_what_the_docs_promise_to_be_empty_is_empty(device):
    accelerator = Elsewhere()
    assert accelerator.memory_stats(device) == {}
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats(device)


def test_a_peak_that_cannot_be_reset_is_an_error(device):
    class Peaks(Elsewhere):
        def memory_stats(self, device):
            return {"memory.peak.bytes": 1.0}

    with pytest.raises(accelkit.UnsupportedError, match="reset_peak_memory_stats"):
        Peaks().reset_peak_memory_stats(device)


def test_errors_of_the_device_are_passed_on(device):
    class Lost(WithModule):
        device_type = "fake_xpu"

    accelerator = Lost()
    with pytest.raises(ValueError, match="cpu"):
        accelerator.synchronize(torch.device("cpu"))
    assert not accelerator.calls


def test_an_error_of_torch_accelerator_itself_is_passed_on(device):
    with pytest.raises(RuntimeError, match="fake_xpu:99 does not exist"):
        Bare().setup_device(torch.device("fake_xpu", 99))


def test_a_function_that_torch_accelerator_lacks_is_named_with_the_version_of_torch(device):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        torch_functions.call(Bare(), "defragment", device)
    assert f"torch {torch.__version__} has no torch.accelerator.defragment" in caught.value.why
    assert "torch.fake_xpu has no defragment" in caught.value.why


PYTHON_DEVICE = """
import types, torch, accelkit

class Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self):
        return True
    def has_primary_context(self, index):
        return True

class Guard(torch._C._acc.DeviceGuard):
    def type_(self):
        return torch._C._autograd.DeviceType.PrivateUse1

class Written(accelkit.Accelerator):
    device_type = "written"

hooks, guard = Hooks(), Guard()
torch.utils.rename_privateuse1_backend("written")
torch._C._acc.register_python_privateuseone_device_guard(guard)
torch._C._acc.register_python_privateuseone_hook(hooks)
torch._register_device_module("written", types.SimpleNamespace(memory_allocated=lambda device: 7))
device = torch.device("written", 0)
print(torch.accelerator.current_accelerator(), Written().memory_stats(device))
try:
    accelkit.specs.torch_functions.call(Written(), "max_memory_allocated", device)
except accelkit.UnsupportedError as error:
    print(error.why)
"""


@pytest.mark.skipif(not hasattr(torch._C, "_acc"), reason="this torch has no devices written in Python")
def test_what_torch_accelerator_does_not_implement_for_a_device_is_called_in_its_module():
    result = subprocess.run([sys.executable, "-c", PYTHON_DEVICE], capture_output=True, text=True, check=True)
    used, why = result.stdout.splitlines()
    assert used == "written {'memory.allocated.bytes': 7.0}"
    assert "torch.accelerator.max_memory_allocated: " in why
    assert "Allocator for written is not a DeviceAllocator" in why
    assert why.endswith("torch.written has no max_memory_allocated")


def test_a_device_type_without_a_module_is_the_vendors_mistake(error_text):
    class Nowhere(accelkit.Accelerator):
        device_type = "hpu"  # a device type of torch whose module comes with the vendor's package

    with pytest.raises(accelkit.BrokenPluginError) as caught:
        Nowhere().auto_device_count()
    assert "'hpu'" in caught.value.what
    assert "torch._register_device_module" in caught.value.hint
    assert caught.value.what == error_text


def test_a_device_without_a_generator_has_no_state_to_save_or_restore(device):
    assert Bare().get_rng_state(device) is None
    with pytest.raises(accelkit.UnsupportedError, match="no random state to set"):
        Bare().set_rng_state(torch.zeros(8, dtype=torch.uint8), device)


def test_a_device_without_a_generator_warns_that_it_is_not_seeded(device):
    with pytest.raises(accelkit.UnsupportedError, match="no generator to seed"):
        Bare().manual_seed(3)
    with pytest.warns(UserWarning, match="seed=3 seeds only the generators of the host"):
        seed_device(3, Bare(), device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seed_device(3, FakeXPUAccelerator(), device)
