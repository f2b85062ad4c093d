"""Measurements of a training step (forward pass, backward pass and SGD, in float32) for each of three small models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from accelkit.benchmarking.case import Case, Target
from accelkit.capabilities import Capabilities

if TYPE_CHECKING:
    import torch

_BATCH = {"mlp": 64, "cnn": 16, "transformer": 8}


def cases(is_quick: bool) -> list[Case]:
    """Return the measurements of training steps. If ``is_quick``, the batches are a quarter of their usual size."""
    found = []
    for model, batch in _BATCH.items():
        size = batch if is_quick else 4 * batch
        flops = _flops(model, size)
        found.append(Case(f"training.{model}", "samples/s", functools.partial(_step, model=model, size=size), size, {"float32": flops}))
    return found


def _flops(model: str, size: int) -> float:
    """Run a training step on the CPU, and return the FLOP of its matmuls, attention and convolutions, as counted by FlopCounterMode."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    host = Target(torch.empty(0).device, lambda: None, Capabilities())
    with FlopCounterMode(display=False) as counter:
        _step(host, model=model, size=size)()
    return float(counter.get_total_flops())


def _step(target: Target, *, model: str, size: int) -> Callable[[], object]:
    import torch

    module, x = _model(model, size)
    module, x = module.to(target.device), x.to(target.device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)

    def step() -> None:
        module(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _model(name: str, size: int) -> tuple[torch.nn.Module, torch.Tensor]:
    import torch
    from torch import nn

    if name == "mlp":
        return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)), torch.ones(size, 256)
    if name == "cnn":
        layers = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16 * 16, 10)), torch.ones(size, 3, 32, 32)
    return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True), torch.ones(size, 32, 64)
