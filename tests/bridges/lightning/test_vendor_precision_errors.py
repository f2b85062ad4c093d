"""A vendor's precision that a Trainer or a Fabric cannot use, or that is broken: an error that names it, never other numbers."""

from __future__ import annotations

import importlib

import pytest
import torch
from device_checking_model import QUIET
from scaled_training import CLIPPED, Loss, batches, make_module, sgd

import accelkit
from accelkit.bridges.lightning import fabric_kwargs, trainer_kwargs

pytestmark = pytest.mark.newest_peers


class Float(accelkit.Precision):
    """float32, of data of any dtype."""

    def convert_input(self, data):
        return accelkit.tree_map(lambda value: value.float() if isinstance(value, torch.Tensor) else value, data)


class Scaled(Float):
    def unscale_gradients(self, optimizer):
        pass


@pytest.fixture
def fit(tmp_path):
    """Trains for an epoch in a precision, with methods that replace those of the LightningModule."""

    def train(precision, accelerator="fake_xpu", *, optimizer=sgd, **methods):
        pl = importlib.import_module("lightning.pytorch")
        module = make_module(pl)
        module.__class__ = type("Module", (type(module),), {"configure_optimizers": optimizer, **methods})
        arguments = trainer_kwargs(accelerator, devices=1, precision=precision, package="lightning")
        trainer = pl.Trainer(**arguments, **QUIET, max_epochs=1, logger=False, default_root_dir=tmp_path, gradient_clip_val=CLIPPED)
        trainer.fit(module, batches())
        return module, trainer

    return train


def lbfgs(module):
    return torch.optim.LBFGS(module.parameters())


def test_an_optimizer_that_computes_gradients_in_its_step(fit, error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        fit(Scaled(), optimizer=lbfgs)
    assert "LBFGS" in caught.value.what
    assert caught.value == error_text
    module, _ = fit(Float(), optimizer=lbfgs)
    assert len(module.losses) > len(batches()), "without scaling it can be used"


def test_a_module_that_is_replaced(fit, error_text):
    class Replacing(Float):
        def convert_module(self, module):
            return torch.nn.Sequential(module)

    with pytest.raises(accelkit.UnsupportedError) as caught:
        fit(Replacing())
    assert "convert_module" in caught.value.why
    assert caught.value == error_text
    fabric = importlib.import_module("lightning.fabric").Fabric(**fabric_kwargs("fake_xpu", devices=1, precision=Replacing()))
    assert "Sequential" in repr(fabric.setup(torch.nn.Linear(4, 1)))


class Backward(Float):
    def __init__(self):
        self.losses = []

    def backward(self, loss, **kwargs):
        self.losses.append(float(loss.detach()))
        loss.backward(**kwargs)


def test_two_backward_passes(fit, error_text):
    def backward(self, loss, *args, **kwargs):
        loss.backward(*args, **kwargs)

    precision = Backward()
    module, _ = fit(precision)
    assert precision.losses == module.losses
    with pytest.raises(accelkit.UnsupportedError) as caught:
        fit(Backward(), backward=backward)
    assert "overrides backward" in caught.value.what
    assert caught.value == error_text


def test_options_of_a_backward_pass_reach_the_precision():
    precision = Backward()
    fabric = importlib.import_module("lightning.fabric").Fabric(**fabric_kwargs("fake_xpu", devices=1, precision=precision))
    model = fabric.setup(torch.nn.Linear(4, 1))
    loss = model(torch.ones(2, 4, device=fabric.device)).sum()
    fabric.backward(loss, retain_graph=True)
    fabric.backward(loss)
    assert len(precision.losses) == 2


@pytest.mark.parametrize("method", ["convert_input", "pre_backward", "forward_context"])
def test_a_method_that_returns_nothing(method, fit, error_text):
    broken = type("Broken", (Float,), {method: lambda self, *args: None})
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        fit(broken())
    assert f"{method} of the precision Broken returned an invalid value" in caught.value.what
    assert caught.value == error_text


def test_a_method_that_returns_nothing_in_a_fabric(error_text):
    broken = type("Broken", (Float,), {"convert_output": lambda self, data: None})
    fabric = importlib.import_module("lightning.fabric").Fabric(**fabric_kwargs("fake_xpu", devices=1, precision=broken()))
    model = fabric.setup(torch.nn.Linear(4, 1))
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        model(torch.ones(2, 4, device=fabric.device))
    assert "convert_output of the precision Broken" in caught.value.what
    assert caught.value == error_text


def test_an_error_of_the_precision_gets_a_note(fit):
    class Failing(Float):
        def unscale_gradients(self, optimizer):
            raise ZeroDivisionError("the scale is 0")

    with pytest.raises(ZeroDivisionError, match="the scale is 0") as caught:
        fit(Failing())
    assert any("unscale_gradients of the precision Failing failed" in note for note in caught.value.__notes__)


def test_an_error_of_the_optimizer_gets_none(fit):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user") as caught:
        fit(Scaled(), optimizer=lambda module: Failing(module.parameters(), lr=0.1))
    assert not getattr(caught.value, "__notes__", [])


def test_a_device_that_the_precision_does_not_support(fit):
    class Choosy(Float):
        def setup(self, accelerator, device):
            raise accelkit.UnsupportedError(f"no {device.type}", plugin=self.plugin, why="too small", hint="buy a larger one")

    with pytest.raises(accelkit.UnsupportedError, match="no fake_xpu"):
        fit(Choosy())


def test_a_step_without_a_loss_is_left_out(fit):
    class Counting(Scaled):
        def __init__(self):
            self.steps = 0

        def optimizer_step(self, optimizer, step, closure=None):
            self.steps += 1
            return step()

    def training_step(self, batch, index):
        return None if index < 3 else self.loss(*batch)

    precision = Counting()
    fit(precision, training_step=training_step)
    assert precision.steps == len(batches()) - 3


def test_the_accelerators_own_precision_is_used(fit):
    from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

    made = []

    class Own(FakeXPUAccelerator):
        def make_precision(self, name, device):
            made.append((name, str(device), Backward()))
            return made[-1][2] if name == "bf16-mixed" else None

    module, trainer = fit("bf16-mixed", Own())
    assert made[-1][:2] == ("bf16-mixed", "fake_xpu:0")
    assert made[-1][2].losses == module.losses
    assert trainer.precision == "bf16-mixed"


def test_lightning_does_not_shard_in_it(error_text):
    strategy = importlib.import_module("lightning.pytorch.strategies").ModelParallelStrategy()
    with pytest.raises(accelkit.UnsupportedError) as caught:
        trainer_kwargs("fake_xpu", devices=2, strategy=strategy, precision=Scaled(), package="lightning")
    assert "'Scaled' with ModelParallelStrategy" in caught.value.what
    assert caught.value == error_text


def test_positional_arguments_of_backward():
    """Fabric passes them on, and the specification takes them by name."""
    precision = Backward()
    fabric = importlib.import_module("lightning.fabric").Fabric(**fabric_kwargs("fake_xpu", devices=1, precision=precision))
    model = fabric.setup(Loss())
    x, y = next(iter(batches()))
    loss = model(x.to(fabric.device), y.to(fabric.device))
    fabric.backward(loss, None, True)
    fabric.backward(loss)
    assert len(precision.losses) == 2
