"""Overhead of a training step in accelkit, Fabric, Accelerate and Trainer, compared with the raw loop, on a very small model.

The model is a Linear(32, 2), trained with SGD on batches of 32 in one thread. On the CPU, the numbers are the process's CPU time per
batch. On other devices, they are the wall-clock time per batch, until the device has finished all batches. The Trainer is ``barebones``,
so that it does nothing but train.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import peers
import torch
from measuring import Measure, arguments, clock_of, compare, report
from torch.utils.data import DataLoader, TensorDataset

import accelkit

BATCHES, WARM_UP = 1000, 100
TARGET = torch.zeros(32, 2)
"""The target of the loss. ``main`` moves it to the device."""
Loop = Callable[[int], None]
"""A function that trains on the given number of batches."""


@dataclasses.dataclass(frozen=True, slots=True)
class Same:
    """An iterable that yields the same batch ``count`` times. It is not a list, because a Trainer treats a list as several loaders."""

    batch: torch.Tensor
    count: int

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        return itertools.repeat([self.batch], self.count)

    def __len__(self) -> int:
        return self.count


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A way to train, which is measured for every contestant."""

    title: str
    accelerator: str = "cpu"
    precision: str = "32-true"
    accumulation: int = 1
    has_loader: bool = False

    @property
    def is_mixed(self) -> bool:
        return self.precision.endswith("-mixed")

    @property
    def device(self) -> torch.device:
        return accelkit.device(self.accelerator)

    def data(self) -> Any:
        """Return a DataLoader of 128 batches, or an iterable that yields one batch on the device 128 times."""
        torch.manual_seed(0)
        if self.has_loader:
            return DataLoader(TensorDataset(torch.randn(128 * 32, 32)), batch_size=32)
        return Same(torch.randn(32, 32).to(self.device), 128)


KINDS = (
    Kind("a step in 32-true"),
    Kind("a step in bf16-mixed", precision="bf16-mixed"),
    Kind("a step in 16-mixed", precision="16-mixed"),
    Kind("a batch, with gradients accumulated over 4 batches", accumulation=4),
    Kind("a step, with a DataLoader", has_loader=True),
)


def endless(data: Iterable[Any], count: int) -> Iterator[Any]:
    """Return an iterator over ``count`` batches, which starts again whenever ``data`` is exhausted."""
    return itertools.islice(itertools.chain.from_iterable(itertools.repeat(data)), count)


def loss_of(result: torch.Tensor) -> torch.Tensor:
    """Return the loss. Under autocast too, it is computed in float32, so that each contestant converts the result only once."""
    return torch.nn.functional.mse_loss(result, TARGET)


def model_and_optimizer(device: torch.device | None = None) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 2).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def raw(kind: Kind) -> Loop:
    model, optimizer = model_and_optimizer(kind.device)
    data, every, device = kind.data(), kind.accumulation, kind.device

    def plain(count: int) -> None:
        for number, (batch,) in enumerate(endless(data, count), 1):
            (loss_of(model(batch)) / every if every > 1 else loss_of(model(batch))).backward()
            if number % every == 0:
                optimizer.step()
                optimizer.zero_grad()

    def from_loader(count: int) -> None:
        for (batch,) in endless(data, count):
            loss_of(model(batch.to(device))).backward()
            optimizer.step()
            optimizer.zero_grad()

    def in_bfloat16(count: int) -> None:
        for (batch,) in endless(data, count):
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(model(batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    scaler = torch.amp.GradScaler(device.type, enabled=kind.precision == "16-mixed")

    def in_float16(count: int) -> None:
        for (batch,) in endless(data, count):
            with torch.autocast(device.type, torch.float16):
                loss = loss_of(model(batch))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    if kind.has_loader and device.type != "cpu":
        return from_loader
    return {"bf16-mixed": in_bfloat16, "16-mixed": in_float16}.get(kind.precision, plain)


def loop_of(kind: Kind, owner: Any) -> Loop:
    """Return the loop for accelkit's Runtime or Accelerate's Accelerator, whose optimizers skip a step while gradients accumulate."""
    model, optimizer = owner.prepare(*model_and_optimizer())
    data = owner.prepare(kind.data()) if kind.has_loader else kind.data()
    backward, accumulate = owner.backward, owner.accumulate

    def run(count: int) -> None:
        for (batch,) in endless(data, count):
            loss = loss_of(model(batch))
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    def accumulating(count: int) -> None:
        for (batch,) in endless(data, count):
            with accumulate(model):
                loss = loss_of(model(batch))
                backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    return accumulating if kind.accumulation > 1 else run


def with_accelkit(kind: Kind) -> Loop:
    return loop_of(kind, accelkit.Runtime(kind.accelerator, precision=kind.precision, gradient_accumulation_steps=kind.accumulation))


def with_fabric(kind: Kind) -> Loop | str:
    if kind.precision == "16-mixed" and kind.accelerator == "cpu":
        return "no float16 on the CPU"
    fabric = peers.fabric(kind.accelerator, kind.precision)
    model, optimizer = fabric.setup(*model_and_optimizer())
    data = fabric.setup_dataloaders(kind.data()) if kind.has_loader else kind.data()
    every = kind.accumulation

    def run(count: int) -> None:
        for number, (batch,) in enumerate(endless(data, count), 1):
            is_due = number % every == 0
            with fabric.no_backward_sync(model, enabled=not is_due) if every > 1 else contextlib.nullcontext():
                fabric.backward(loss_of(model(batch)) / every)
            if is_due:
                optimizer.step()
                optimizer.zero_grad()

    def plain(count: int) -> None:
        for (batch,) in endless(data, count):
            fabric.backward(loss_of(model(batch)))
            optimizer.step()
            optimizer.zero_grad()

    return run if every > 1 else plain


def with_accelerate(kind: Kind) -> Loop | str:
    if kind.precision == "16-mixed" and kind.accelerator == "cpu":
        return "on the CPU, it silently computes in float32"
    return loop_of(kind, peers.accelerate(kind.accelerator, kind.precision, gradient_accumulation_steps=kind.accumulation))


def with_trainer(kind: Kind) -> Loop | str:
    from lightning.pytorch import LightningModule

    if kind.precision == "16-mixed" and kind.accelerator == "cpu":
        return "no float16 on the CPU"

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = model_and_optimizer()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = loss_of(self.model(batch[0]))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

    def run(count: int) -> None:
        steps = {"accumulate_grad_batches": kind.accumulation, "max_steps": count // kind.accumulation}
        trainer = peers.trainer(kind.accelerator, kind.precision, barebones=True, **steps)
        trainer.fit(Module(), kind.data())

    return run


def per_batch(loop: Loop | str, clock: Callable[[], float]) -> Measure | str:
    """Return a function that measures the microseconds per batch by ``clock``, without the time to start."""
    if isinstance(loop, str):
        return loop

    def seconds(count: int) -> float:
        start = clock()
        loop(count)
        return clock() - start

    return lambda: (seconds(WARM_UP + BATCHES) - seconds(WARM_UP)) / BATCHES * 1e6


def main() -> None:
    global TARGET
    options = arguments(__doc__.partition("\n")[0], rounds=21, accelerator="cpu")
    runtime = accelkit.Runtime(options.accelerator)
    TARGET = TARGET.to(runtime.device)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    contestants = {
        "raw loop": raw,
        "accelkit": with_accelkit,
        "Fabric": with_fabric,
        "Accelerate": with_accelerate,
        "Trainer": with_trainer,
    }

    clock, unit = clock_of(runtime)
    tables = []
    for kind in (dataclasses.replace(kind, accelerator=options.accelerator) for kind in KINDS):
        measures = {name: per_batch(make(kind), clock) for name, make in contestants.items()}
        tables.append(compare(kind.title, unit, measures, options.rounds, options.seconds))
    report(tables, is_json=options.json)


if __name__ == "__main__":
    main()
