"""Bare names in Trainer, Fabric and LightningCLI."""

from __future__ import annotations

import inspect
import os
import subprocess
from pathlib import Path

import pytest
import torch
from device_checking_model import QUIET, loader, make_watched
from preloaded_lightning import python

import accelkit
from accelkit.bridges.lightning import install, trainer_kwargs, uninstall

PROGRAM = Path(__file__).with_name("lightning_cli_program.py")


@pytest.fixture
def bare_names():
    install()
    yield
    uninstall()


def test_a_trainer(bare_names, pl, tmp_path):
    trainer = pl.Trainer(
        accelerator="fake_xpu", devices=1, precision="16-mixed", max_epochs=1, logger=False, default_root_dir=tmp_path, **QUIET
    )
    model = make_watched(pl, "fake_xpu", torch.float16)
    trainer.fit(model, loader(), loader())
    assert model.seen["gradient"] == 4 * 3
    assert trainer.precision == "16-mixed"


def test_a_fabric(bare_names, fabric_class):
    fabric = fabric_class(accelerator="fake_xpu", devices=1, precision="bf16-mixed")
    model = fabric.setup(torch.nn.Linear(4, 1))
    assert {parameter.device.type for parameter in model.parameters()} == {"fake_xpu"}
    assert model(torch.ones(2, 4, device=fabric.device)).device.type == "fake_xpu"


def test_auto_is_accelkits(bare_names, pl, fabric_class, monkeypatch):
    assert pl.Trainer(logger=False, **QUIET).strategy.root_device.type == "cpu"
    monkeypatch.setenv("ACCELKIT_ACCELERATOR", "fake_xpu")
    monkeypatch.setenv("ACCELKIT_DEVICES", "1")
    assert pl.Trainer(logger=False, **QUIET).strategy.root_device.type == "fake_xpu"
    assert pl.Trainer(accelerator="auto", logger=False, **QUIET).strategy.root_device.type == "fake_xpu"
    assert fabric_class().device.type == "fake_xpu"


def test_auto_that_cannot_be_had_is_an_error(bare_names, pl, monkeypatch, error_text):
    monkeypatch.setenv("ACCELKIT_AUTO_ORDER", "fake_xpu")
    with pytest.raises(accelkit.UnavailableError) as caught:
        pl.Trainer()
    assert "ACCELKIT_AUTO_ORDER=fake_xpu" in caught.value.what
    assert caught.value == error_text


def test_names_of_lightnings_own_stay_its_own(bare_names, pl):
    trainer = pl.Trainer(accelerator="cpu", precision="bf16-mixed", logger=False, **QUIET)
    assert type(trainer.accelerator) is pl.accelerators.CPUAccelerator
    with pytest.raises(Exception, match="No supported gpu backend"):
        pl.Trainer(accelerator="gpu")
    arguments = trainer_kwargs("fake_xpu", devices=1, package=pl.__name__.partition(".")[0])
    assert pl.Trainer(**arguments, logger=False, **QUIET).accelerator is arguments["accelerator"]


def test_a_name_that_nobody_has(bare_names, pl):
    with pytest.raises(accelkit.UnknownNameError, match="fake_xpu"):
        pl.Trainer(accelerator="fake_xqu")


def test_the_variable_that_lightning_reads(bare_names, pl, monkeypatch):
    monkeypatch.setenv("PL_TRAINER_ACCELERATOR", "fake_xpu")
    monkeypatch.setenv("PL_TRAINER_DEVICES", "1")
    trainer = pl.Trainer(logger=False, **QUIET)
    assert trainer.strategy.root_device == torch.device("fake_xpu", 0)
    assert trainer.num_devices == 1


@pytest.mark.parametrize("text", ["", "{[]: 1}"])
def test_a_variable_that_is_empty_or_no_literal(bare_names, pl, monkeypatch, text):
    monkeypatch.setenv("PL_TRAINER_DEVICES", text)
    if text:
        with pytest.raises(accelkit.DevicesError):
            pl.Trainer(accelerator="fake_xpu", logger=False, **QUIET)
    else:
        assert pl.Trainer(accelerator="fake_xpu", logger=False, **QUIET).num_devices == 2


def test_it_can_be_undone(pl):
    before = vars(pl.Trainer)["__init__"]
    signature = inspect.signature(pl.Trainer)
    install()
    install()
    assert vars(pl.Trainer)["__init__"] is not before
    assert inspect.signature(pl.Trainer) == signature
    uninstall()
    assert vars(pl.Trainer)["__init__"] is before
    with pytest.raises(ValueError, match="invalid accelerator name"):
        pl.Trainer(accelerator="fake_xpu")


def test_somebody_elses_init_on_top(pl, monkeypatch, error_text):
    install()
    ours = pl.Trainer.__init__
    pl.Trainer.__init__ = lambda self, **kwargs: ours(self, **kwargs | {"logger": False})
    with pytest.raises(accelkit.UnsupportedError) as caught:
        uninstall()
    assert f"{pl.__name__}.Trainer" in str(caught.value)
    assert caught.value == error_text
    pl.Trainer.__init__ = ours
    uninstall()


def test_a_class_that_takes_other_arguments(pl, package, monkeypatch, error_text):
    monkeypatch.setattr(pl.Trainer, "__init__", lambda self, max_epochs=1: None)
    with pytest.raises(accelkit.UnsupportedError) as caught:
        install(package=package)
    assert "num_nodes" in caught.value.what
    assert caught.value == error_text


def test_lightning_cli(package, tmp_path):
    """``python train.py fit --trainer.accelerator=fake_xpu --trainer.devices=2``, for real."""
    arguments = ["fit", "--trainer.accelerator=fake_xpu", "--trainer.devices=2", "--trainer.precision=16-mixed", "--trainer.max_epochs=1"]
    arguments += ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LIGHTNING_PACKAGE": package}
    result = subprocess.run(
        [python(package), str(PROGRAM), *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    ended = sorted(line for line in result.stdout.splitlines() if line.startswith("trained on"))
    assert ended == ["trained on fake_xpu:0 in 16-mixed, 2 steps", "trained on fake_xpu:1 in 16-mixed, 2 steps"]
