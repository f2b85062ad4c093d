"""The errors that the vendors' pages quote for common mistakes are the ones that these mistakes cause."""

from __future__ import annotations

import pytest
import torch
from pages import ROOT

import accelkit
from accelkit import ClusterEnvironment, Precision, Strategy, hookimpl

pytestmark = pytest.mark.usefixtures("forked_interpreters")

ACCELERATOR = """
from accelkit import Accelerator, Availability


class AcmeAccelerator(Accelerator):
    "ACME NPU."

    device_type = "cpu"
"""


def assert_quoted(page: str, quote: str, error: BaseException) -> None:
    """The error contains the quote, and the page shows it as code."""
    assert quote in f"{error}"
    assert f"`{quote}`" in (ROOT / "docs" / "vendors" / page).read_text("utf-8")


@pytest.mark.parametrize(
    ("source", "quote"),
    [
        (
            "import os\nos.environ['ACME_MODE'] = '1'\n",
            "importing acme has side effects: it changed os.environ (ACME_MODE)",
        ),
        (
            "    @classmethod\n    def probe(cls):\n        return True\n",
            "probe() of acme did not return an Availability: it returned True (bool)",
        ),
        ("    def probe(self):\n        return None\n", "probe() missing 1 required positional argument: 'self'"),
        (
            "    @classmethod\n    def probe(cls):\n        raise OSError('no /dev/acme')\n",
            "probing acme failed: OSError: no /dev/acme",
        ),
        ("    def __init__(self, mode):\n        self.mode = mode\n", "its __init__ must work without arguments"),
        ("    declared_capabilities = []\n", "declared_capabilities is a list; use Capabilities.declare(native=[...])"),
    ],
    ids=["import", "bool", "classmethod", "raises", "init", "capabilities"],
)
def test_of_an_accelerator(source, quote, plugin_site):
    plugin_site.install("vendor-acme-plugin", ACCELERATOR + source, accelerators={"acme": "AcmeAccelerator"})
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        accelkit.Runtime("acme")
    assert_quoted("accelerator.md", quote, caught.value)


def test_of_an_accelerator_that_does_not_load_its_package(plugin_site):
    source = ACCELERATOR.replace('"cpu"', '"acme"') + "    def load(self):\n        pass\n"
    plugin_site.install("vendor-acme-plugin", source, accelerators={"acme": "AcmeAccelerator"})
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        accelkit.Runtime("acme")
    quote = "its probe() reports it as usable, but its check() failed: RuntimeError: Expected one of cpu, cuda"
    assert_quoted("accelerator.md", quote, caught.value)


class ReturnsNothing(Precision):
    def convert_module(self, module):
        module.double()


class ExpectsATensor(Precision):
    def convert_input(self, data):
        return data.to(torch.bfloat16)


class ConvertsOnlyParameters(Precision):
    def convert_module(self, module):
        return module.double()


class GivesAClass(Precision):
    def forward_context(self):
        return torch.autocast


class RequiresAString(Precision):
    required_capabilities = "autocast.bfloat16"


class RequiresAnArgument(Precision):
    def __init__(self, scale):
        self.scale = scale


class SavesAFunction(Precision):
    def state_dict(self):
        return {"function": print}


def compute(precision, tmp_path):
    rt = accelkit.Runtime("cpu", precision=precision)
    model = rt.prepare(torch.nn.Linear(4, 1))
    model(torch.ones(8, 4))
    rt.save_state(tmp_path)


@pytest.mark.parametrize(
    ("precision", "error", "quote"),
    [
        (ReturnsNothing, accelkit.BrokenPluginError, "convert_module of the precision Scaled returned an invalid value"),
        (ReturnsNothing, accelkit.BrokenPluginError, "it returned None (NoneType) instead of a module"),
        (ExpectsATensor, AttributeError, "'tuple' object has no attribute 'to'"),
        (ConvertsOnlyParameters, RuntimeError, "mat1 and mat2 must have the same dtype"),
        (GivesAClass, accelkit.BrokenPluginError, "instead of a context manager"),
        (SavesAFunction, accelkit.CheckpointError, "which cannot be loaded safely"),
    ],
)
def test_of_a_precision(precision, error, quote, tmp_path):
    with pytest.raises(error) as caught:
        compute(type("Scaled", (precision,), {})(), tmp_path)
    assert_quoted("precision.md", quote, caught.value)


@pytest.mark.parametrize(
    ("precision", "quote"),
    [
        (RequiresAString, "'autocast.bfloat16' is a string; expected a tuple of capabilities"),
        (RequiresAnArgument, "its __init__ must work without arguments"),
    ],
)
def test_of_a_precision_that_is_selected_by_name(precision, quote):
    accelkit.register(precision.__name__, precision)
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        accelkit.Runtime("cpu", precision=precision.__name__)
    assert_quoted("precision.md", quote, caught.value)


class WrapsInNothing(Strategy):
    def wrap_module(self, module, device):
        pass


class ExpectsAWrapper(Strategy):
    def unwrap_module(self, module):
        return module.module


def test_of_a_strategy_that_unwraps_a_module_that_is_not_wrapped(tmp_path):
    rt = accelkit.Runtime("cpu", strategy=ExpectsAWrapper())
    rt.prepare(torch.nn.Linear(4, 1))
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        rt.save_state(tmp_path)
    assert_quoted("strategy.md", "AttributeError: 'Linear' object has no attribute 'module'", caught.value)


@pytest.mark.parametrize(
    "quote", ["wrap_module of the strategy simple_ddp returned an invalid value", "it returned None (NoneType) instead of a module"]
)
def test_of_a_strategy(quote):
    accelkit.register("simple_ddp", WrapsInNothing)
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        accelkit.Runtime("cpu", strategy="simple_ddp").prepare(torch.nn.Linear(4, 1))
    assert_quoted("strategy.md", quote, caught.value)


class DroveEnvironment(ClusterEnvironment):
    creates_processes_externally = True

    @property
    def world_size(self):
        return self.number("DROVE_SIZE", least=1)

    @property
    def global_rank(self):
        return self.number("DROVE_RANK", below=("DROVE_SIZE",))


class WithoutProperty(DroveEnvironment):
    def world_size(self):
        return 2


@pytest.mark.parametrize(
    ("variables", "quote"),
    [
        ({}, "DROVE_SIZE is not set"),
        ({"DROVE_SIZE": "2", "DROVE_RANK": "2"}, "DROVE_RANK=2 must be less than 2 (DROVE_SIZE=2)"),
    ],
)
def test_of_a_cluster_environment(variables, quote):
    with pytest.raises(accelkit.AccelkitError) as caught:
        accelkit.Runtime("cpu", cluster=DroveEnvironment(variables))
    assert_quoted("cluster-environment.md", quote, caught.value)


@pytest.mark.parametrize(
    "quote",
    ["reading the cluster environment drove failed", "int() argument must be a string, a bytes-like object or a real number, not 'method'"],
)
def test_of_a_cluster_environment_without_properties(quote):
    accelkit.register("drove", WithoutProperty)
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        accelkit.Runtime("cpu", cluster="drove")
    assert_quoted("cluster-environment.md", quote, caught.value)


def test_of_a_cluster_environment_that_is_read_too_early():
    with pytest.raises(accelkit.UnknownPlacementError) as caught:
        _ = DroveEnvironment({"DROVE_SIZE": "2", "DROVE_RANK": "1"}).local_rank
    assert_quoted("cluster-environment.md", "local_rank is not known before the processes of the job join", caught.value)


def run_log(**methods):
    return type("RunLog", (), {name: hookimpl(method) for name, method in methods.items()})


def without_yield():
    return type("RunLog", (), {"setup_device": hookimpl(wrapper=True)(lambda self, device: None)})


@pytest.mark.parametrize(
    ("plugin", "quote"),
    [
        (run_log(checkpoint_save=lambda self, path: None)(), "RunLog.checkpoint_save implements an unknown hook"),
        (run_log(checkpoint_save=lambda self, path: None)(), "did you mean 'checkpoint_saved'?"),
        (
            run_log(checkpoint_saved=lambda self, folder: None)(),
            "RunLog.checkpoint_saved has an unknown argument",
        ),
        (run_log(), "the hook plugin RunLog is a class"),
        (without_yield()(), "a hook of RunLog cannot be registered"),
        (run_log(get_device_stats=lambda self, device: 21)(), "it returned 21 (int) instead of a dict of statistics by name"),
    ],
)
def test_of_a_hook_plugin(plugin, quote):
    with pytest.raises(accelkit.HookError) as caught:
        accelkit.Runtime("cpu", hooks=[plugin]).device_stats()
    assert_quoted("hooks.md", quote, caught.value)
