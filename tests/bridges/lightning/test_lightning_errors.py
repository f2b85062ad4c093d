"""What cannot be had is an error that says why: never a run on the CPU."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from preloaded_lightning import python

import accelkit
from accelkit.bridges.lightning import fabric_kwargs, install, trainer_kwargs
from accelkit.bridges.lightning.compat import KNOWN_VERSIONS


def refused(error, *parts, **arguments):
    with pytest.raises(error) as caught:
        trainer_kwargs("fake_xpu", **arguments)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_a_device_whose_driver_is_gone_is_not_available(package):
    class Vanishing(accelkit.Accelerator):
        device_type = "cpu"
        is_there = True

        def auto_device_count(self):
            if not self.is_there:
                raise OSError("no driver")
            return 1

    accelerator = trainer_kwargs(Vanishing(), devices=1, package=package)["accelerator"]
    assert accelerator.is_available() is True
    Vanishing.is_there = False
    assert accelerator.is_available() is False


@pytest.mark.smoke
def test_a_process_that_has_run_a_backward_pass_before_the_device_was_loaded_is_told_so(package):
    program = (
        "import sys, torch\n"
        "from accelkit.bridges.lightning import trainer_kwargs\n"
        "torch.ones(1, requires_grad=True).sum().backward()\n"
        "arguments = trainer_kwargs('fake_xpu', devices=1, package=sys.argv[1])\n"
        "arguments['accelerator'].setup_device(torch.device('fake_xpu', 0))\n"
    )
    result = subprocess.run([python(package), "-c", program, package], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "UnavailableError: a backward pass on fake_xpu:0 failed in this process" in result.stderr, result.stderr


def test_an_unknown_version_is_refused(package, monkeypatch, error_text):
    monkeypatch.setattr(importlib.import_module(package), "__version__", "2.7.0")
    for call in (lambda: trainer_kwargs("cpu", package=package), lambda: install(package=package)):
        with pytest.raises(accelkit.UnsupportedError) as caught:
            call()
        assert "2.7.0" in caught.value.what
        assert package in caught.value.what
        assert KNOWN_VERSIONS in caught.value.why
        assert f"pip install '{package.replace('_', '-')}{KNOWN_VERSIONS}'" in caught.value.hint
        assert caught.value == error_text


def test_the_extra_installs_what_is_known():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["lightning"] == [f"lightning{KNOWN_VERSIONS}"]


def test_a_package_that_is_not_there(monkeypatch, error_text):
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.partition(".")[0] == "lightning_fabric"]:
        monkeypatch.delitem(sys.modules, name)
    for call in (lambda: fabric_kwargs("cpu", package="lightning_fabric"), lambda: install(package="lightning_fabric")):
        with pytest.raises(accelkit.UnavailableError) as caught:
            call()
        assert "Fabric" in caught.value.what
        assert "pip install 'accelkit[lightning]'" in caught.value.hint
        assert caught.value == error_text


def test_a_package_that_is_none_of_lightnings(error_text):
    for call in (lambda: trainer_kwargs("cpu", package="torch"), lambda: install(package="torch")):
        with pytest.raises(accelkit.UnknownNameError) as caught:
            call()
        assert "package='torch'" in caught.value.what
        assert caught.value == error_text


def test_more_devices_than_there_are():
    refused(accelkit.DevicesError, "devices=3 cannot be used with fake_xpu", "3 were requested, but there are 2", devices=3)


def test_an_accelerator_that_is_not_available_passes_its_reason_on(plugin_site, package, error_text):
    source = (
        "from accelkit import Accelerator, Availability\nclass Acme(Accelerator):\n    device_type = 'acme'\n    @classmethod\n"
        "    def probe(cls):\n        return Availability.absent('no card in the slot', 'put one in')\n"
    )
    plugin_site.install("vendor-acme", source, accelerators={"acme": "Acme"})
    with pytest.raises(accelkit.UnavailableError) as caught:
        trainer_kwargs("acme", package=package)
    assert caught.value.plugin == "vendor-acme==1.0"
    assert (caught.value.why, caught.value.hint) == ("no card in the slot", "put one in"), "the vendor's own words"
    assert caught.value == error_text


def test_a_strategy_that_lightning_gives_to_cuda_only():
    refused(
        accelkit.UnsupportedError,
        "the bridge to Lightning does not support strategy 'fsdp_cpu_offload' on fake_xpu",
        "why: Lightning supports it only on CUDA devices; accelkit's strategy='fsdp'",
        "use strategy='fsdp' or 'ddp'",
        strategy="fsdp_cpu_offload",
    )


@pytest.mark.parametrize("name", ["ddp_spawn", "ddp_fork", "ddp_notebook"])
def test_strategies_that_pickle_or_fork(name):
    refused(accelkit.UnsupportedError, f"strategy '{name}'", "would pickle or fork a process", strategy=name)


@pytest.mark.parametrize(("name", "precision"), [("ModelParallelStrategy", "16-mixed"), ("FSDPStrategy", "64-true")])
def test_a_precision_in_which_lightning_does_not_shard(name, precision):
    theirs = importlib.import_module("lightning.pytorch.strategies").ModelParallelStrategy
    strategy = theirs() if name == theirs.__name__ else "fsdp"
    what = f"the bridge to Lightning does not support precision '{precision}' with {name} on fake_xpu"
    refused(accelkit.UnsupportedError, what, "bf16-mixed", strategy=strategy, precision=precision, devices=2, package="lightning")


def test_a_strategy_that_does_not_exist():
    refused(accelkit.UnknownNameError, "Lightning has no strategy named 'dpp'", "did you mean 'ddp'?", strategy="dpp")
    refused(accelkit.UnknownNameError, "Lightning has no strategy named 'zigzag'", "'single_device'", strategy="zigzag")


def test_one_device_for_several():
    refused(
        accelkit.UnsupportedError, "supports only one process with one device", "2 devices of fake_xpu", strategy="single_device", devices=2
    )


def test_strategy_objects_of_lightnings_that_would_not_train_on_the_device(pl, package):
    strategies = pl.strategies
    refused(
        accelkit.UnsupportedError, "'DDPStrategy' on fake_xpu", "requests a CUDA stream", strategy=strategies.DDPStrategy(), package=package
    )
    refused(accelkit.UnsupportedError, "'FSDPStrategy' on fake_xpu", "CUDA", strategy=strategies.FSDPStrategy(), package=package)
    elsewhere = strategies.SingleDeviceStrategy(device="cpu")
    refused(accelkit.ContradictionError, "the strategy uses cpu", "fake_xpu:0", strategy=elsewhere, devices=1, package=package)
    same = trainer_kwargs("fake_xpu", strategy=strategies.SingleDeviceStrategy(device="fake_xpu:0"), devices=1, package=package)
    assert same["strategy"].root_device == torch.device("fake_xpu", 0)


def test_a_precision_that_the_device_has_not():
    refused(accelkit.UnsupportedError, "does not support precision 'transformer-engine'", precision="transformer-engine")


def test_a_precision_of_another_device(pl, package):
    given = pl.plugins.MixedPrecision("bf16-mixed", device="cuda")
    refused(
        accelkit.ContradictionError,
        "MixedPrecision is for cuda, but the accelerator is fake_xpu",
        "has no effect on this device",
        "precision='bf16-mixed'",
        plugins=[given],
        package=package,
    )
    refused(accelkit.ContradictionError, "remove one of them", plugins=[given], precision="32-true", package=package)


def test_a_number_of_processes_that_is_not_the_launchers(monkeypatch):
    launched = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29512",
    }
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    refused(accelkit.ContradictionError, "devices=1 on each machine was requested", "--nproc-per-node=1", devices=1)
    assert trainer_kwargs("fake_xpu")["devices"] == 2


@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("parse_devices", "return '0'", "a list of device indices such as [0, 1]"),
        ("get_parallel_devices", "return ['cpu']", "instead of a list of torch.device"),
        ("auto_device_count", "return '1'", "TypeError: 'str' object"),
        ("get_parallel_devices", "raise ValueError('no board')", "ValueError: no board"),
    ],
)
def test_a_wrong_method_of_a_plugin_is_named(method, body, expected):
    module, head = {}, "import accelkit\nclass Hostile(accelkit.Accelerator):\n    device_type = 'cpu'\n"
    exec(f"{head}    def {method}(self, *args):\n        {body}", module)
    hostile = module["Hostile"]()
    hostile.name, hostile.plugin = "hostile", "hostile==1.0"

    def use():
        accelerator = trainer_kwargs(hostile)["accelerator"]
        accelerator.get_parallel_devices(accelerator.parse_devices(1))

    with pytest.raises(accelkit.BrokenPluginError) as caught:
        use()
    assert caught.value.plugin == "hostile==1.0"
    assert expected in caught.value.why
