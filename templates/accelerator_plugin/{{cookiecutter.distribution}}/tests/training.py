"""The program that test_strategy.py launches in several processes, and compares with training in one process."""

from __future__ import annotations

from collections.abc import Callable

import accelkit
import torch


def start() -> tuple[torch.Tensor, torch.nn.Module, torch.optim.Optimizer]:
    """Return samples, a model and its optimizer, which are the same in every process."""
    torch.manual_seed(0)
    samples, model = torch.randn(64, 8), torch.nn.Linear(8, 1)
    return samples, model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(
    samples: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer, backward: Callable[[torch.Tensor], object]
) -> str:
    """Train for five steps, and return the parameters as text."""
    for _ in range(5):
        backward((model(samples).squeeze(1) - samples.sum(1)).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
    return " ".join(f"{value:.3f}" for parameter in model.parameters() for value in parameter.flatten().tolist())


if __name__ == "__main__":
    rt = accelkit.Runtime()
    samples, model, optimizer = start()
    model, optimizer = rt.prepare(model, optimizer)
    parameters = train(samples[rt.process_index :: rt.num_processes], model, optimizer, rt.backward)
    print(f"process {rt.process_index} of {rt.num_processes}: {parameters}", flush=True)
    rt.teardown()
