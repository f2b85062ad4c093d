"""The real Trainer, on the CPU and on a device that Lightning does not know."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch
from device_checking_model import loader, loss_of, make_watched, parameters_of

import accelkit
from accelkit.bridges.lightning import trainer_kwargs

DEVICES = [pytest.param("cpu", marks=pytest.mark.newest_peers), "fake_xpu"]


@pytest.mark.smoke
@pytest.mark.parametrize("device", DEVICES)
def test_fit_validate_test_and_predict(device, pl, make_trainer):
    model, trainer = make_watched(pl, device), make_trainer(device)
    before = loss_of(make_watched(pl, device))
    assert trainer.strategy.root_device.type == device
    assert isinstance(trainer.accelerator, pl.accelerators.Accelerator)
    assert trainer.accelerator.name() == device
    trainer.fit(model, loader(), loader())
    assert trainer.global_step == 8
    assert model.seen["gradient"] == 8 * 3
    assert model.seen["val batch"] >= 8
    losses = trainer.validate(model, loader(), verbose=False) + trainer.test(model, loader(), verbose=False)
    assert losses[0]["val_loss"] == losses[1]["test_loss"]
    predicted = trainer.predict(model, loader())
    assert [tuple(one.shape) for one in predicted] == [(8, 1)] * 4
    assert model.net.out.weight is model.net.into.weight, "tied after the way back to the host"
    assert loss_of(model) < 0.8 * before


@pytest.mark.usefixtures("forked_interpreters")
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true"])
def test_creating_the_arguments_does_not_initialise_the_driver(precision):
    """In a job, every rank creates them for the first device, before it knows its own."""
    program = f"""
import torch
from accelkit.bridges.lightning import trainer_kwargs
trainer_kwargs("fake_xpu", precision={precision!r}, package="lightning")
assert not torch.fake_xpu.is_initialized()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_strategy_auto_of_the_environment_is_the_default(monkeypatch, make_trainer):
    monkeypatch.setenv("ACCELKIT_STRATEGY", "auto")
    assert make_trainer("fake_xpu").strategy.root_device.type == "fake_xpu"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16), ("bf16-true", torch.bfloat16), ("64-true", torch.float64)],
)
def test_precisions(device, precision, dtype, pl, make_trainer):
    model, trainer = make_watched(pl, device, dtype), make_trainer(device, given={"precision": precision})
    assert trainer.precision == precision
    before = parameters_of(model)
    trainer.fit(model, loader(), loader())
    assert model.seen["gradient"] == 8 * 3
    assert all(not torch.equal(one, other) for one, other in zip(before, parameters_of(model), strict=True))
    expected = torch.float32 if "mixed" in precision else dtype
    assert {parameter.dtype for parameter in model.parameters()} == {expected}


def test_a_precision_plugin_of_lightnings_own_for_the_device_is_used_as_it_is(pl, make_trainer):
    precision = pl.plugins.MixedPrecision("bf16-mixed", device="fake_xpu")
    model, trainer = make_watched(pl, "fake_xpu", torch.bfloat16), make_trainer("fake_xpu", given={"plugins": [precision]}, max_epochs=1)
    assert trainer.precision_plugin is precision
    trainer.fit(model, loader())
    assert model.seen["gradient"] == 4 * 3


def test_a_strategy_of_the_users_own_is_used_as_it_is(pl, make_trainer):
    class Tying(pl.strategies.SingleDeviceStrategy):
        def model_to_device(self):
            super().model_to_device()
            self.model.net.out.weight = self.model.net.into.weight

    strategy = Tying(device="fake_xpu:0")
    model, trainer = make_watched(pl, "fake_xpu"), make_trainer("fake_xpu", given={"strategy": strategy}, max_epochs=1)
    assert trainer.strategy is strategy
    assert type(strategy) is Tying
    trainer.fit(model, loader())
    assert model.seen["gradient"] == 4 * 3


def test_a_trainer_that_has_not_trained_can_tear_its_device_down(make_trainer):
    class Counting(accelkit.Accelerator):
        device_type = "cpu"
        num_teardowns = 0

        @accelkit.hookimpl
        def teardown(self):
            self.num_teardowns += 1

    accelerator = Counting()
    make_trainer(accelerator).strategy.teardown()
    assert accelerator.num_teardowns == 1


@pytest.mark.parametrize("device", DEVICES)
def test_16_mixed_scales_with_the_devices_own_scaler(device, pl, make_trainer):
    trainer = make_trainer(device, given={"precision": "16-mixed"}, max_epochs=1)
    model = make_watched(pl, device, torch.float16)
    scaled = []
    model.on_after_backward = lambda: scaled.append(float(model.net.last.bias.grad))
    trainer.fit(model, loader())
    scaler = trainer.precision_plugin.scaler
    assert torch.device(scaler._device).type == device
    assert scaler.get_scale() > 256
    assert len(scaled) == 4
    assert all(abs(one) > 1000 for one in scaled), "scaled by the backward pass"
    finite = [norm for norm in model.norms if math.isfinite(norm)]
    assert finite, "not every step was skipped"
    assert max(finite) < 100, "unscaled before the step"


@pytest.mark.parametrize("device", DEVICES)
def test_clipping_and_accumulation(device, pl, make_trainer):
    model = make_watched(pl, device)
    clipped = []
    model.optimizer_zero_grad = lambda *_: None
    trainer = make_trainer(device, max_epochs=1, gradient_clip_val=0.01, accumulate_grad_batches=2)
    step = torch.optim.AdamW.step

    class Stepping(torch.optim.AdamW):
        def step(self, closure=None):
            def and_look():
                loss = closure()
                clipped.append(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))
                assert {p.grad.device.type for p in model.parameters()} == {device}
                return loss

            return step(self, and_look)

    model.configure_optimizers = lambda: Stepping(model.parameters(), lr=0.01)
    trainer.fit(model, loader())
    assert trainer.global_step == model.steps == 2
    assert clipped == pytest.approx([0.01, 0.01], rel=0.01)
    assert min(model.norms) > 0.01


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_checkpoint_and_resume(device, precision, pl, make_trainer, tmp_path):
    """Two epochs at once, and one, saved and gone on with from the file: the same."""
    dtype = torch.float32 if precision == "32-true" else torch.float16

    def fit(epochs, **kwargs):
        pl.seed_everything(7)
        model = make_watched(pl, device, dtype)
        model.net.dropout.p = 0.0
        trainer = make_trainer(device, given={"precision": precision}, max_epochs=epochs)
        trainer.fit(model, loader(), **kwargs)
        return model, trainer

    whole, _ = fit(2)
    _, trainer = fit(1)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    rest, trainer = fit(2, ckpt_path=tmp_path / "half.ckpt", **({"weights_only": False} if pl.__version__ >= "2.6" else {}))
    assert trainer.global_step == 8
    assert rest.steps == 4
    for one, other in zip(parameters_of(whole), parameters_of(rest), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.smoke
def test_an_optimizer_made_before_the_move_trains_the_model(pl, make_trainer):
    model = make_watched(pl, "fake_xpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.configure_optimizers = lambda: optimizer
    for _ in range(2):
        before = parameters_of(model)
        make_trainer("fake_xpu", max_epochs=1).fit(model, loader())
        assert all(not torch.equal(one, other) for one, other in zip(before, parameters_of(model), strict=True))


def test_the_second_device_can_be_meant(pl, make_trainer):
    model, trainer = make_watched(pl, "fake_xpu"), make_trainer("fake_xpu", given={"devices": [1]}, max_epochs=1)
    where = []
    model.on_train_start = lambda: where.extend({parameter.device for parameter in model.parameters()})
    trainer.fit(model, loader())
    assert where == [torch.device("fake_xpu", 1)]
    assert trainer.device_ids == [1]


@pytest.mark.smoke
def test_all_devices_are_meant_if_nothing_is_said(package):
    arguments = trainer_kwargs("fake_xpu", package=package)
    assert arguments["devices"] == 2
    assert type(arguments["strategy"]).__mro__[-1] is object
    assert "DDPStrategy" in {cls.__name__ for cls in type(arguments["strategy"]).__mro__}


@pytest.mark.smoke
def test_the_environment_says_what_arguments_do_not(package, monkeypatch):
    for name, value in {"ACCELERATOR": "fake_xpu", "DEVICES": "1", "PRECISION": "bf16-mixed", "STRATEGY": "ddp"}.items():
        monkeypatch.setenv(f"ACCELKIT_{name}", value)
    arguments = trainer_kwargs(package=package)
    assert arguments["accelerator"].plugin.name == "fake_xpu"
    assert arguments["devices"] == 1
    assert arguments["plugins"][0].precision == "bf16-mixed"
    assert type(arguments["strategy"]).__name__ == "DDPStrategy"


@pytest.mark.parametrize("device", DEVICES)
def test_device_stats_monitor(device, pl, make_trainer, tmp_path):
    logged = {}

    class Logger(pl.loggers.CSVLogger):
        def log_metrics(self, metrics, step=None):
            logged.update(metrics)
            super().log_metrics(metrics, step)

    monitor = pl.callbacks.DeviceStatsMonitor()
    trainer = make_trainer(device, logger=Logger(tmp_path), callbacks=[monitor], log_every_n_steps=1, max_epochs=1)
    trainer.fit(make_watched(pl, device), loader())
    key = "memory.allocated.bytes" if device == "fake_xpu" else "memory.resident.bytes"
    assert logged[f"DeviceStatsMonitor.on_train_batch_end/{key}"] > 0


@pytest.mark.newest_peers
def test_the_profiler_of_lightning_records_the_device(pl, make_trainer, tmp_path):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    profiler = pl.profilers.PyTorchProfiler(dirpath=tmp_path, filename="profile", activities=activities, export_to_chrome=True)
    make_trainer("fake_xpu", profiler=profiler, max_epochs=1).fit(make_watched(pl, "fake_xpu"), loader())
    (trace,) = tmp_path.glob("*.json")
    kernels = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "kernel"]
    assert "addmm_kernel" in {kernel["name"] for kernel in kernels}


@pytest.mark.parametrize("device", DEVICES)
def test_seed_everything_decides_what_the_device_draws(device, pl, make_trainer):
    def draws(seed):
        pl.seed_everything(seed)
        model = make_watched(pl, device)
        drawn = []
        model.on_train_batch_start = lambda *_: drawn.append(torch.rand(3, device=model.device).cpu())
        make_trainer(device, max_epochs=1).fit(model, loader())
        return torch.stack(drawn)

    assert torch.equal(draws(3), draws(3))
    assert not torch.equal(draws(3), draws(4))
