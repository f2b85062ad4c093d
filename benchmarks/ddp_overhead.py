"""Cost of a step of distributed data parallel in accelkit, Fabric, Accelerate and Trainer, compared with torch's DDP, on two processes.

The model is an MLP 64-256-256-10, trained with SGD in float32 on the CPU, over gloo, with batches of 32 and one thread per process. The
numbers are wall-clock times of a step on rank 0. All contestants run in the same two processes and take turns, so that a change in the
machine's speed affects all of them equally.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from measuring import arguments, compare, microseconds, report

import accelkit

STEPS = 300
Step = Callable[[], None]


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step_of(model: Any, optimizer: Any, backward: Callable[[torch.Tensor], object]) -> Step:
    batch = torch.randn(32, 64)

    def step() -> None:
        loss = model(batch).square().mean()
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def raw() -> Step:
    model, optimizer = model_and_optimizer()
    return step_of(torch.nn.parallel.DistributedDataParallel(model), optimizer, torch.Tensor.backward)


def with_accelkit() -> Step:
    runtime = accelkit.Runtime(accelerator="cpu")
    model, optimizer = runtime.prepare(*model_and_optimizer())
    return step_of(model, optimizer, runtime.backward)


def with_fabric() -> Step:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(*model_and_optimizer())
    return step_of(model, optimizer, fabric.backward)


def with_accelerate() -> Step:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*model_and_optimizer())
    return step_of(model, optimizer, accelerator.backward)


def with_trainer() -> Callable[[], float]:
    """Return a function that measures the microseconds of a step, without the time that the Trainer takes to start."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = model_and_optimizer()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

    def seconds(steps: int) -> float:
        trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=steps, barebones=True)
        start = time.perf_counter()
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(32 * steps * 2, 64), batch_size=32))
        return time.perf_counter() - start

    return lambda: (seconds(20 + STEPS) - seconds(20)) / STEPS * 1e6


def main() -> None:
    options = arguments("Cost of a step of distributed data parallel, compared with torch's own.", rounds=9)
    if "RANK" not in os.environ:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *sys.argv]
        os.execve(sys.executable, launcher, os.environ | {"OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    if not is_first:
        sys.stderr = io.StringIO()
    steps = {"raw DDP": raw(), "accelkit": with_accelkit(), "Fabric": with_fabric(), "Accelerate": with_accelerate()}
    measure = functools.partial(microseconds, calls=STEPS, warm_up=20, clock=time.perf_counter)
    measures = {name: functools.partial(measure, step) for name, step in steps.items()} | {"Trainer": with_trainer()}
    table = compare("a step of DDP on 2 processes", "us of wall time", measures, options.rounds, options.seconds)
    if is_first:
        report([table], is_json=options.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
