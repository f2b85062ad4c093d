"""Training with Lightning and Accelerate, for the checks of the area ``bridges``, and a program that trains on two devices.

This module imports torch, so the checks import it only when they run. The program is run with:

``accelkit launch --accelerator NAME --devices 2 -m accelkit_conformance.oracle.bridge_training FRAMEWORK NAME``

FRAMEWORK is ``trainer``, ``fabric`` or ``accelerate``. NAME is the name of the accelerator.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
import tempfile
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from accelkit import UnsupportedError
from accelkit_conformance.subject import assert_on_device

BATCHES, EPOCHS, RATE = 4, 5, 0.1
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def make_loader(batch_size: int = 8, *, is_shared: bool = False) -> DataLoader[Any]:
    """Return a loader of a dataset of 32 samples. Each sample is a pair: a row of four numbers, and their sum.

    Args:
        batch_size: The number of samples in each batch of this process.
        is_shared: Whether the samples are divided among the processes of the job. If False, every process loads all 32 samples.
    """
    rows = torch.randn(8 * BATCHES, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    return DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data, shuffle=False) if is_shared else None)


def make_model() -> torch.nn.Module:
    """Return a new model, with the same parameters on every process."""
    torch.default_generator.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def loss_of(model: Any, batch: Any, device: torch.device) -> torch.Tensor:
    """Return the loss of a batch, and assert that the batch, the model's output and the parameters are on the device."""
    rows, sums = batch
    result = model(rows)
    assert_on_device(device, rows, sums, result, *model.parameters())
    return torch.nn.functional.mse_loss(result.float(), sums)


def step(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Assert that the gradients are on the device, take an optimizer step and clear the gradients."""
    assert_on_device(device, *(parameter.grad for group in optimizer.param_groups for parameter in group["params"]))
    optimizer.step()
    optimizer.zero_grad()


def check_trained(trained: torch.nn.Module, *, is_exact: bool, batch_size: int = 8) -> None:
    """Assert that a trained model matches a model that a plain loop on the CPU trains in float32.

    Args:
        trained: The model of ``make_model``, after ``EPOCHS`` epochs.
        is_exact: Whether both the parameters and the loss must be close to those of the plain loop. If False, only the loss must be close.
            Pass False for a model that was trained in a lower precision, perhaps with a gradient scaler that skipped the first steps.
        batch_size: The batch size of the whole job.

    Raises:
        AssertionError: If a value that must be close is not.
    """
    host = torch.device("cpu")
    plain, mine = make_model(), copy.deepcopy(trained).cpu().float()
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for batch in make_loader(batch_size):
            loss_of(plain, batch, host).backward()  # type: ignore[no-untyped-call]
            step(optimizer, host)
    if is_exact:
        for found, expected in zip(mine.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        before, after, expected_loss = (
            sum(loss_of(one, batch, host).item() for batch in make_loader()) for one in (make_model(), mine, plain)
        )
    assert abs(after - expected_loss) < 0.1 * (before - expected_loss), (
        f"the loss went from {before:.3f} to {after:.3f}, in a plain loop to {expected_loss:.3f}"
    )


def make_lightning_module(package: ModuleType, device: torch.device | None = None) -> Any:
    """Return a LightningModule that asserts that its parameters, batches and gradients are on the device.

    Args:
        package: The ``pytorch`` module of Lightning, which has ``LightningModule``.
        device: The expected device; None for the root device of the process.
    """

    class Watched(package.LightningModule):  # type: ignore[misc,name-defined] # only known at run time
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()
            self.num_steps = 0

        @property
        def wanted(self) -> torch.device:
            return device if device is not None else self.trainer.strategy.root_device

        def training_step(self, batch: Any) -> torch.Tensor:
            return loss_of(self.net, batch, self.wanted)

        def validation_step(self, batch: Any) -> None:
            self.log("loss", loss_of(self.net, batch, self.wanted))

        test_step = validation_step

        def predict_step(self, batch: Any) -> torch.Tensor:
            assert_on_device(self.wanted, *batch)
            result: torch.Tensor = self.net(batch[0])
            return result

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            assert_on_device(self.wanted, *(parameter.grad for parameter in self.parameters()))
            self.num_steps += 1

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    return Watched()


def _with_trainer(name: str) -> torch.nn.Module:
    package = importlib.import_module("lightning.pytorch")
    from accelkit.bridges.lightning import trainer_kwargs

    module = make_lightning_module(package)
    module.train_dataloader = functools.partial(make_loader, is_shared=True)  # Lightning's own sampler shuffles
    with tempfile.TemporaryDirectory() as folder:
        options = {**QUIET, "default_root_dir": folder, "max_epochs": EPOCHS, "use_distributed_sampler": False}
        package.Trainer(**trainer_kwargs(name, package="lightning"), **options).fit(module)
    net: torch.nn.Module = module.net
    return net


def train_with_fabric(fabric: Any, device: torch.device) -> torch.nn.Module:
    """Train a model in a plain loop, with a Fabric that has been launched, and return the model.

    In each step, assert that the parameters, the batch and the gradients are on ``device``.
    """
    model = make_model()
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=RATE))
    loader = fabric.setup_dataloaders(make_loader())
    for _ in range(EPOCHS):
        for batch in loader:
            fabric.backward(loss_of(wrapped, batch, device))
            step(optimizer, device)
    return model


def train_with_accelerate(accelerator: Any, device: torch.device) -> Any:
    """Train a model in a plain loop, with Accelerate's ``accelerator``, and return the prepared model.

    In each step, assert that the parameters, the batch and the gradients are on ``device``.
    """
    model = make_model()
    wrapped, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE), make_loader())
    for _ in range(EPOCHS):
        for batch in loader:
            accelerator.backward(loss_of(wrapped, batch, device))
            step(optimizer, device)
    return wrapped


def _with_fabric(name: str) -> torch.nn.Module:
    package = importlib.import_module("lightning.fabric")
    from accelkit.bridges.lightning import fabric_kwargs

    fabric = package.Fabric(**fabric_kwargs(name, package="lightning"))
    fabric.launch()
    return train_with_fabric(fabric, fabric.device)


def _with_accelerate(name: str) -> torch.nn.Module:
    from accelkit.bridges.accelerate import accelerator

    one = accelerator(name)
    unwrapped: torch.nn.Module = one.unwrap_model(train_with_accelerate(one, one.device))
    return unwrapped


UNSUPPORTED = "unsupported: "
FRAMEWORKS = {"trainer": _with_trainer, "fabric": _with_fabric, "accelerate": _with_accelerate}


def main(framework: str, name: str) -> None:
    """Train as one of two ranks, and compare the model with a model that a single process trained on the batches of both ranks.

    If the bridge does not support the device in this environment, print ``UNSUPPORTED`` and the error.
    """
    try:
        trained = FRAMEWORKS[framework](name)
    except UnsupportedError as error:
        sys.stdout.write(f"{UNSUPPORTED}{error}\n")
        return
    assert torch.distributed.get_world_size() == 2, f"{torch.distributed.get_world_size()} processes train together"
    check_trained(trained, is_exact=True, batch_size=16)
    sys.stdout.write("trained\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
