"""Time per batch in accelkit, Fabric, Accelerate and Trainer, compared with the raw loop, in cases that involve more than a small model.

There is one table each for nested batches of 50 tensors, a DataLoader with 4 workers, a compiled model, a model with 1,000 parameters, a
metric that is gathered in every step, and a loss that is written to TensorBoard in every step. On the CPU, the numbers are the CPU time of
the main process. On other devices, they are the wall-clock time until the device has finished all batches. torch computes in one thread
in the main process. The DataLoader's workers are separate processes. The Trainer also writes the number of the epoch to TensorBoard in
every step.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import peers
import torch
from measuring import Measure, Table, arguments, clock_of, compare, report
from torch.utils.data import DataLoader, Dataset

import accelkit

Batch = dict[str, dict[str, torch.Tensor]]
Epochs = Callable[[int], None]
"""A function that trains for the given number of epochs."""
GROUPS, PARTS, ROWS, WIDTH = 10, 5, 32, 8


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """What is trained, and on which batches.

    Attributes:
        tensors: The number of groups in a batch, and of tensors in each group.
        depth: The number of layers of the model. Each layer has two parameters.
        has_metric: Whether the predictions of each batch are collected from all processes, to compute a metric.
        is_logged: Whether the loss of each batch is written to TensorBoard.
        batches: The number of batches in an epoch.
    """

    title: str
    tensors: tuple[int, int] = (1, 1)
    workers: int = 0
    is_compiled: bool = False
    depth: int = 1
    has_metric: bool = False
    is_logged: bool = False
    batches: int = 300

    def loader(self) -> DataLoader[Any]:
        """Return a loader of stored batches, because collating 50 tensors takes longer than everything else in a step."""
        batches = Batches(self.batches, *self.tensors)
        return DataLoader(batches, batch_size=None, num_workers=self.workers, persistent_workers=self.workers > 0)

    def model_and_optimizer(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model: torch.nn.Module = Layers(self.tensors[0] * self.tensors[1] * WIDTH, self.depth)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, foreach=True)
        return (torch.compile(model) if self.is_compiled else model), optimizer


CASES = (
    Case("a step with nested batches of 50 tensors", tensors=(GROUPS, PARTS)),
    Case("a step with a DataLoader with 4 workers", workers=4),
    Case("a step of a compiled model", is_compiled=True),
    Case("a step of a model with 1,000 parameters", depth=500, batches=5),
    Case("a step with a metric", has_metric=True),
    Case("a step that writes its loss to TensorBoard", is_logged=True),
)


class Batches(Dataset[Batch]):
    """Stored batches, which are dicts of dicts of tensors of shape (32, 8)."""

    def __init__(self, count: int, groups: int, parts: int) -> None:
        self._batches = [
            {f"group{group}": {f"part{part}": torch.randn(ROWS, WIDTH) for part in range(parts)} for group in range(groups)}
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        return self._batches[index]


class Layers(torch.nn.Module):
    """Linear layers, one after another. The last one has two outputs."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth - 1)), torch.nn.Linear(width, 2))

    def forward(self, batch: Batch) -> torch.Tensor:
        result: torch.Tensor = self.layers(torch.cat([part for group in batch.values() for part in group.values()], dim=1))
        return result


def loss_of(result: torch.Tensor) -> torch.Tensor:
    return result.square().mean()


def raw(case: Case, accelerator: str, folder: str) -> Epochs:
    from torch.utils.tensorboard import SummaryWriter

    device = accelkit.device(accelerator)
    model, optimizer = case.model_and_optimizer()
    model.to(device)
    loader = case.loader()
    writer = SummaryWriter(f"{folder}/raw") if case.is_logged else None
    has_to_move = device.type != "cpu"

    def run(epochs: int) -> None:
        step, right = 0, torch.zeros((), device=device)
        for _ in range(epochs):
            for given in loader:
                batch = (
                    {name: {part: tensor.to(device) for part, tensor in group.items()} for name, group in given.items()}
                    if has_to_move
                    else given
                )
                result = model(batch)
                loss = loss_of(result)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if case.has_metric:
                    right += result.detach().argmax(1).sum()
                if writer is not None:
                    writer.add_scalar("loss", loss.item(), step)
                step += 1

    return run


def loop_of(case: Case, owner: Any) -> Epochs:
    """Return the loop for accelkit's Runtime or Accelerate's Accelerator, which have the same methods."""
    model, optimizer = case.model_and_optimizer()
    model, optimizer, loader = owner.prepare(model, optimizer, case.loader())
    backward, gather, log = owner.backward, owner.gather_for_metrics, owner.log

    def run(epochs: int) -> None:
        step, right = 0, torch.zeros((), device=owner.device)
        for _ in range(epochs):
            for batch in loader:
                result = model(batch)
                loss = loss_of(result)
                backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if case.has_metric:
                    right += gather(result.detach().argmax(1)).sum()
                if case.is_logged:
                    log({"loss": loss.item()}, step=step)
                step += 1

    return run


def with_accelkit(case: Case, accelerator: str, folder: str) -> Epochs:
    from accelkit.tracking.tensorboard import TensorBoard

    return loop_of(case, accelkit.Runtime(accelerator, trackers=(TensorBoard(f"{folder}/accelkit"),) if case.is_logged else ()))


def with_accelerate(case: Case, accelerator: str, folder: str) -> Epochs:
    if not case.is_logged:
        return loop_of(case, peers.accelerate(accelerator))
    owner = peers.accelerate(accelerator, log_with="tensorboard", project_dir=folder)
    owner.init_trackers("accelerate")
    return loop_of(case, owner)


def with_fabric(case: Case, accelerator: str, folder: str) -> Epochs:
    from lightning.fabric.loggers import TensorBoardLogger

    loggers = {"loggers": TensorBoardLogger(folder, name="fabric")} if case.is_logged else {}
    fabric = peers.fabric(accelerator, **loggers)
    model, optimizer = fabric.setup(*case.model_and_optimizer())
    loader = fabric.setup_dataloaders(case.loader())

    def run(epochs: int) -> None:
        step, right = 0, torch.zeros((), device=fabric.device)
        for _ in range(epochs):
            for batch in loader:
                result = model(batch)
                loss = loss_of(result)
                fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if case.has_metric:
                    right += fabric.all_gather(result.detach().argmax(1)).sum()
                if case.is_logged:
                    fabric.log("loss", loss.item(), step=step)
                step += 1

    return run


def with_trainer(case: Case, accelerator: str, folder: str) -> Epochs:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.loggers import TensorBoardLogger

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = case.model_and_optimizer()
            self.right: torch.Tensor | int = 0

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            result = self.model(batch)
            loss = loss_of(result)
            if case.has_metric:
                self.right += self.all_gather(result.detach().argmax(1)).sum()
            if case.is_logged:
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

    loader = case.loader()

    def run(epochs: int) -> None:
        logged = {"logger": TensorBoardLogger(folder, name="trainer"), "log_every_n_steps": 1}
        quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        options = logged | quiet if case.is_logged else {"barebones": True}
        peers.trainer(accelerator, max_epochs=epochs, **options).fit(Module(), loader)

    return run


def per_batch(case: Case, run: Epochs, clock: Callable[[], float]) -> Measure:
    """Return a function that measures the microseconds per batch by ``clock``, without the first epoch."""

    def seconds(epochs: int) -> float:
        start = clock()
        run(epochs)
        return clock() - start

    return lambda: (seconds(3) - seconds(1)) / (2 * case.batches) * 1e6


CONTESTANTS: dict[str, Callable[[Case, str, str], Epochs]] = {
    "raw loop": raw,
    "accelkit": with_accelkit,
    "Fabric": with_fabric,
    "Accelerate": with_accelerate,
    "Trainer": with_trainer,
}


def tables_of(cases: Sequence[Case], accelerator: str, rounds: int, seconds: float | None) -> list[Table]:
    clock, unit = clock_of(accelkit.Runtime(accelerator))
    tables = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            runs = {name: make(case, accelerator, folder) for name, make in CONTESTANTS.items()}
            for run in runs.values():
                run(1)  # compiles the model and opens the loggers
            measures = {name: per_batch(case, run, clock) for name, run in runs.items()}
            tables.append(compare(case.title, unit, measures, rounds, seconds))
    return tables


def main() -> None:
    options = arguments(__doc__.partition("\n")[0], rounds=21, accelerator="cpu")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    report(tables_of(CASES, options.accelerator, options.rounds, options.seconds), is_json=options.json)


if __name__ == "__main__":
    main()
