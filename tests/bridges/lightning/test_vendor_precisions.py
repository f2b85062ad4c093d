"""A precision of a vendor's distribution, in Lightning: the same losses and weights as in accelkit.Runtime."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from device_checking_model import QUIET, parameters_of
from preloaded_lightning import python
from scaled_training import CLIPPED, NAME, Loss, batches, make_module, sgd
from torch.utils.data import DataLoader

import accelkit
from accelkit.bridges.lightning import fabric_kwargs, install, uninstall

SOURCE = Path(__file__).with_name("vendor_precision.py").read_text("utf-8")
ENTRY_POINTS = "[accelkit.precisions]\nacme-scaled = vendor_acme:Scaled"


@pytest.fixture
def vendor(plugin_site):
    plugin_site.install("vendor-acme", SOURCE, entry_points=ENTRY_POINTS)


def train_in_runtime(precision=NAME, *, accumulation=1, epochs=2):
    rt = accelkit.Runtime("fake_xpu", precision=precision, gradient_accumulation_steps=accumulation)
    model = Loss()
    model, optimizer, loader = rt.prepare(model, sgd(model), batches())
    losses, norms = [], []
    for _ in range(epochs):
        for x, y in loader:
            with rt.accumulate(model):
                loss = model(x, y)
                losses.append(float(loss.detach()))
                rt.backward(loss)
                if rt.sync_gradients:
                    norms.append(float(rt.clip_grad_norm_(model.parameters(), CLIPPED)))
                optimizer.step()
                optimizer.zero_grad()
    return losses, parameters_of(model), norms


def assert_equal(found, expected):
    assert found[0] == expected[0]
    assert all(torch.equal(one, other) for one, other in zip(found[1], expected[1], strict=True))


@pytest.mark.parametrize("how", [pytest.param("", marks=pytest.mark.smoke), "accumulated", "manual"])
def test_a_trainer(how, vendor, pl, make_trainer):
    accumulation, is_manual = 2 if how == "accumulated" else 1, how == "manual"
    module = make_module(pl, is_manual=is_manual)
    clipping = {} if is_manual else {"gradient_clip_val": CLIPPED}
    trainer = make_trainer("fake_xpu", given={"precision": NAME}, accumulate_grad_batches=accumulation, **clipping)
    precision = trainer.precision_plugin
    assert trainer.precision == NAME
    trainer.fit(module, batches())
    expected = train_in_runtime(accumulation=accumulation)
    assert_equal((module.losses, parameters_of(module.loss)), expected)
    assert is_manual or module.norms == pytest.approx(expected[2]), "on_before_optimizer_step sees unscaled gradients, not yet clipped"
    assert sum(module.losses[8:]) < sum(module.losses[:8])
    log, steps = precision._selected.log, 16 // accumulation
    assert log == ["setup fake_xpu:0", "optimizer SGD", *["unscale"] * 3, "skip", *["unscale"] * (steps - 3), "teardown"]
    assert precision.state_dict() == {"scale": 3 + 1.5 * steps, "steps": steps}, "for a checkpoint that is saved now"


@pytest.mark.parametrize("with_closure", [pytest.param(False, marks=pytest.mark.smoke), True])
def test_a_fabric(with_closure, vendor, fabric_class, fabric_package, tmp_path):
    fabric = fabric_class(**fabric_kwargs("fake_xpu", devices=1, precision=NAME, package=fabric_package))
    model = Loss()
    model, optimizer = fabric.setup(model, sgd(model))
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = model(*batch)
        assert loss.dtype == torch.float64, "convert_output was called"
        losses.append(float(loss.detach()))
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIPPED)
        return loss

    state = {"model": model, "optimizer": optimizer, "precision": fabric.strategy.precision}
    loader = fabric.setup_dataloaders(batches())
    for epoch in range(2):
        for batch in loader:  # noqa: B007 # the closure reads it
            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        if epoch == 0:
            fabric.save(tmp_path / "first.ckpt", state)
            halfway = fabric.strategy.precision.plugin.scale
    assert_equal((losses, parameters_of(model)), train_in_runtime())
    log = fabric.strategy.precision.plugin.log
    assert log == ["setup fake_xpu:0", "optimizer SGD", *["unscale"] * 3, "skip", *["unscale"] * 13]
    end = losses[8:]
    fabric.load(tmp_path / "first.ckpt", state)
    assert fabric.strategy.precision.plugin.scale == halfway
    losses.clear()
    for batch in loader:  # noqa: B007 # the closure reads it
        closure()
        optimizer.step()
    assert losses == end


def test_a_trainer_continues(vendor, pl, make_trainer, tmp_path):
    """The checkpoint has the scale, and the number of steps, without which the third step would be skipped again."""

    def trained(epochs, path=None):
        module = make_module(pl)
        trainer = make_trainer("fake_xpu", given={"precision": NAME}, gradient_clip_val=CLIPPED, max_epochs=epochs)
        trainer.fit(module, batches(), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return trainer.precision_plugin, module

    trained(1)
    assert torch.load(tmp_path / "1.ckpt", weights_only=False)["Scaled"] == {"scale": 15.0, "steps": 8}
    precision, module = trained(2, tmp_path / "1.ckpt")
    assert "skip" not in precision._selected.log
    assert precision.state_dict() == {"scale": 27.0, "steps": 16}
    losses, weights, _ = train_in_runtime()
    assert_equal((module.losses, parameters_of(module.loss)), (losses[8:], weights))


def test_a_second_fit_continues_with_the_state(vendor, pl, make_trainer):
    module, trainer = make_module(pl), make_trainer("fake_xpu", given={"precision": NAME}, max_epochs=1)
    trainer.fit(module, batches())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, batches())
    assert trainer.precision_plugin.state_dict() == {"scale": 27.0, "steps": 16}
    assert trainer.precision_plugin._selected.log.count("setup fake_xpu:0") == 2


def test_its_name_works_after_install(vendor, pl, package, tmp_path):
    install(package=package)
    try:
        trainer = pl.Trainer(
            accelerator="fake_xpu", devices=1, precision=NAME, max_epochs=1, logger=False, default_root_dir=tmp_path, **QUIET
        )
    finally:
        uninstall()
    module = make_module(pl)
    trainer.fit(module, batches())
    assert trainer.precision_plugin._selected.steps == 0, "it was torn down"
    assert trainer.precision_plugin.state_dict()["steps"] == 8


def test_each_process_sets_the_precision_up_for_its_device(vendor, tmp_path):
    """Two processes, started by Lightning, of which each converts what it computes."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), environment["PYTHONPATH"]])
    program = Path(__file__).with_name("lightning_vendor_precision_program.py")
    result = subprocess.run(
        [python(), str(program), str(tmp_path)], capture_output=True, text=True, env=environment, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [one["log"][0] for one in ranks] == ["setup fake_xpu:0", "setup fake_xpu:1"]
    assert all(one["log"][1:] == ["optimizer SGD", *["unscale"] * 3, "skip", *["unscale"] * 5, "teardown"] for one in ranks)
    assert ranks[0]["parameters"] == ranks[1]["parameters"]
    assert ranks[0]["losses"] != ranks[1]["losses"], "half of the batches each"


@pytest.mark.torchao
@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="pip install 'accelkit[fp8]'")
def test_fp8(pl, make_trainer):
    """A precision of accelkit that Lightning does not have, and that replaces layers."""

    class Wide(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
            self.losses = []

        def forward(self, x):
            return self.net(x).float().pow(2).mean()

        def training_step(self, x):
            loss = self(x)
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self):
            return sgd(self)

    loader = DataLoader(torch.rand(32, 16, generator=torch.Generator().manual_seed(1)), batch_size=16)
    module = Wide()
    make_trainer("fake_xpu", given={"precision": "fp8"}).fit(module, loader)
    assert {type(layer).__name__ for layer in module.net} == {"AutocastFloat8Linear", "Tanh"}
    rt = accelkit.Runtime("fake_xpu", precision="fp8")
    model = Wide()
    model, optimizer, prepared = rt.prepare(model, sgd(model), loader)
    losses = []
    for x in (x for _ in range(2) for x in prepared):
        loss = model(x)
        losses.append(float(loss.detach()))
        rt.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert module.losses == losses
