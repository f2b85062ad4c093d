"""The other way: somebody's Lightning accelerator in accelkit, and names that plugins register in Lightning's form."""

from __future__ import annotations

import importlib

import pytest
import torch
from device_checking_model import QUIET, loader, make_watched

import accelkit
from accelkit.bridges.lightning import from_lightning, install, trainer_kwargs, uninstall
from accelkit.discovery import catalog

SOURCE = """
from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

class Acme(FakeXPUAccelerator):
    def __init__(self, mode="plain"):
        self.mode = mode

    @classmethod
    def register_accelerators(cls, accelerator_registry):
        accelerator_registry.register("acme", cls, description="ACME")
        accelerator_registry.register({extra!r}, cls, description="ACME, quietly", mode="quiet")
"""


@pytest.fixture
def theirs(pl):
    """As somebody wrote it for Lightning."""

    class SotaAccelerator(pl.accelerators.Accelerator):
        """The state of the art."""

        set_up = ()

        def __init__(self, mode="plain"):
            self.mode = mode

        def setup_device(self, device):
            type(self).set_up = (*self.set_up, device)

        def teardown(self):
            pass

        def get_device_stats(self, device):
            return {"temperature": 40.0}

        @staticmethod
        def parse_devices(devices):
            return devices if isinstance(devices, list) else int(devices)

        @staticmethod
        def get_parallel_devices(devices):
            return [torch.device("fake_xpu", i) for i in (devices if isinstance(devices, list) else range(devices))]

        @staticmethod
        def auto_device_count():
            return 2

        @staticmethod
        def is_available():
            return True

        @staticmethod
        def name():
            return "sota"

    return SotaAccelerator


@pytest.fixture
def bare_names():
    yield install
    uninstall()


def test_in_a_runtime(theirs, error_text):
    adopted = from_lightning(theirs)
    assert (adopted.device_type, adopted.__doc__) == ("fake_xpu", "The state of the art.")
    rt = accelkit.Runtime(accelerator=adopted(), devices=[1])
    model = torch.nn.Linear(4, 1)
    model, optimizer, batches = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())
    for x, y in batches:
        assert x.device == torch.device("fake_xpu", 1)
        rt.backward(torch.nn.functional.mse_loss(model(x), y))
        assert model.weight.grad.device == torch.device("fake_xpu", 1)
        optimizer.step()
        optimizer.zero_grad()
    assert theirs.set_up == (torch.device("fake_xpu", 1),)
    assert rt.device_stats()["temperature"] == 40.0
    with pytest.raises(accelkit.DevicesError) as caught:
        accelkit.Runtime(accelerator=adopted(), devices=3)
    assert "devices=3" in caught.value.what
    assert "fake_xpu" in caught.value.what
    assert caught.value == error_text


@pytest.mark.parametrize("framework", ["pytorch", "fabric"])
def test_the_memory_is_the_statistics_of_one_that_has_none(framework, theirs):
    """Fabric's accelerators lack the method. The Trainer's inherit one that raises NotImplementedError."""
    base = importlib.import_module(f"lightning.{framework}.accelerators").Accelerator
    methods = {name: method for name, method in vars(theirs).items() if not name.startswith("_") and name != "get_device_stats"}
    rt = accelkit.Runtime(accelerator=from_lightning(type("Plain", (base,), methods))(), devices=[1])
    kept = torch.ones(1000, device=rt.device)
    assert rt.device_stats()["memory.allocated.bytes"] >= kept.nbytes


def test_by_name(theirs, package, monkeypatch):
    monkeypatch.setattr(catalog, "_registered", {})
    accelkit.register("sota", from_lightning(theirs, mode="fast"))
    accelerator = trainer_kwargs("sota", devices=1, package=package)["accelerator"]
    assert accelerator.plugin._lightning.mode == "fast"
    monkeypatch.undo()
    accelkit.refresh()


def test_one_that_is_not_available(theirs, error_text):
    theirs.is_available = staticmethod(lambda: False)
    with pytest.raises(accelkit.UsageError) as caught:
        from_lightning(theirs)
    assert "SotaAccelerator" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UnavailableError) as caught:
        accelkit.select(from_lightning(theirs, device_type="fake_xpu")())
    assert "is_available()" in caught.value.why
    assert caught.value == error_text


@pytest.mark.parametrize("devices", [[-5], [2]])
def test_a_device_that_the_class_accepts_and_that_does_not_exist(theirs, devices):
    with pytest.raises(accelkit.DevicesError, match="has 2 devices"):
        from_lightning(theirs, device_type="fake_xpu")().parse_devices(devices)


def test_what_is_no_accelerator(error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        from_lightning(dict)
    assert "setup_device" in caught.value.why
    assert "parse_devices" in caught.value.why
    assert caught.value == error_text


@pytest.mark.parametrize("how", ["instance", "name"])
def test_with_bare_names_it_trains_on_its_device(how, theirs, pl, bare_names, tmp_path):
    """Lightning alone trains on the CPU with it, and says nothing."""
    arguments = {"devices": 1, "max_epochs": 1, "logger": False, "default_root_dir": tmp_path} | QUIET
    if how == "name":
        pl.accelerators.AcceleratorRegistry.register("sota", theirs, override=True, mode="fast")
    asked = theirs() if how == "instance" else "sota"
    assert pl.Trainer(accelerator=asked, **arguments).strategy.root_device.type == "cpu"
    bare_names()
    model = make_watched(pl, "fake_xpu")
    pl.Trainer(accelerator=asked, **arguments).fit(model, loader())
    assert model.seen["gradient"] == 4 * 3
    pl.accelerators.AcceleratorRegistry.pop("sota", None)


def test_names_that_a_plugin_registers(pl, bare_names, plugin_site):
    plugin_site.install("vendor-acme", SOURCE.format(extra="acme_quiet"), accelerators={"acme": "Acme"})
    bare_names("acme")
    for name, mode in {"acme": "plain", "acme_quiet": "quiet"}.items():
        trainer = pl.Trainer(accelerator=name, devices=1, logger=False, **QUIET)
        assert trainer.strategy.root_device.type == "fake_xpu"
        assert (trainer.accelerator.plugin.mode, trainer.accelerator.plugin.plugin) == (mode, "vendor-acme==1.0")


def test_an_install_that_fails_registers_no_names(pl, bare_names, plugin_site):
    plugin_site.install("vendor-acme", SOURCE.format(extra="acme_quiet"), accelerators={"acme": "Acme"})
    with pytest.raises(accelkit.UsageError, match="fake_xpu"):
        bare_names("acme", "fake_xpu")
    bare_names()
    with pytest.raises(accelkit.UnknownNameError, match="acme_quiet"):
        pl.Trainer(accelerator="acme_quiet", devices=1, logger=False, **QUIET)


def test_a_registered_name_of_lightnings(bare_names, plugin_site, error_text):
    plugin_site.install("vendor-acme", SOURCE.format(extra="cuda"), accelerators={"acme": "Acme"})
    with pytest.raises(accelkit.NameConflictError) as caught:
        bare_names("acme")
    assert "'cuda'" in caught.value.what
    assert caught.value.plugin == "vendor-acme==1.0"
    assert caught.value == error_text


def test_a_plugin_that_registers_nothing(bare_names, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        bare_names("fake_xpu")
    assert "FakeXPUAccelerator" in caught.value.why
    assert "register_accelerators" in caught.value.why
    assert caught.value == error_text
