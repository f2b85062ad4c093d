"""What a training step costs over the raw loop: accelkit, Fabric and Accelerate, on a model so small that little else is left.

Linear(32, 2), batch 32, SGD, float32 on the CPU, one thread; process-CPU time a step.
"""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections.abc import Callable

import torch
from measuring import arguments, interleave, microseconds, print_rounds

import accelkit

STEPS = 3000
Step = Callable[[], None]


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, backward: Callable[[torch.Tensor], object]) -> Step:
    batch = torch.randn(32, 32)

    def step() -> None:
        loss = model(batch).sum()
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def raw() -> Step:
    return step_of(*model_and_optimizer(), torch.Tensor.backward)


def with_accelkit() -> Step:
    runtime = accelkit.Runtime(accelerator="cpu")
    model, optimizer = runtime.prepare(*model_and_optimizer())
    return step_of(model, optimizer, runtime.backward)


def with_fabric() -> Step:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(*model_and_optimizer())
    return step_of(model, optimizer, fabric.backward)


def with_accelerate() -> Step:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*model_and_optimizer())
    return step_of(model, optimizer, accelerator.backward)


def main() -> None:
    options = arguments("Cost of a training step over the raw loop.", rounds=7)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    steps = {"raw loop": raw(), "accelkit": with_accelkit(), "Fabric": with_fabric(), "Accelerate": with_accelerate()}
    measure = functools.partial(microseconds, calls=STEPS, warm_up=200, clock=time.process_time)
    found = interleave({name: functools.partial(measure, step) for name, step in steps.items()}, options.rounds)
    print_rounds("training step", "us of process-CPU time", found, is_json=options.json)


if __name__ == "__main__":
    main()
