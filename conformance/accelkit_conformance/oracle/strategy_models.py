"""Small models that a strategy trains, and their data."""

from __future__ import annotations

from collections.abc import Callable

import torch

WIDTH = 6
SAMPLES = 12


class Block(torch.nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class BlockModel(torch.nn.Module):
    """A model with repeated blocks in a ModuleList. Strategies that shard parameters usually shard each block separately."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = torch.nn.Linear(4, WIDTH)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.outward = torch.nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.outward(x)
        return result


class TiedModel(torch.nn.Module):
    """A model in which two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return result


class UnusedModel(torch.nn.Module):
    """A model with a layer that the forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(4, 2)
        self.unused = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.used(x))


class BufferedModel(torch.nn.Module):
    """A model with two buffers: one takes part in the forward pass, and the other counts the forward passes in training."""

    scale: torch.Tensor
    passes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor([1.5, 0.5]))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
        return torch.tanh(self.linear(x)) * self.scale


class DropoutModel(torch.nn.Module):
    """A model that ends with dropout. Results that dropout keeps are almost never 0, so the zeros show the dropout mask."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(self.linear(x), 0.5, self.training)


class WideModel(torch.nn.Module):
    """A model of 2 MB in float64, with repeated layers in a ModuleList."""

    WIDTH = 256

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(self.WIDTH, self.WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


def make(cls: Callable[[], torch.nn.Module], dtype: torch.dtype, seed: int = 0) -> torch.nn.Module:
    """Return a new model on the CPU, in ``dtype``. The same ``seed`` gives the same parameters on every process.

    Seeds torch's default generator.
    """
    torch.default_generator.manual_seed(seed)
    return cls().to(dtype)


def make_batches(count: int, dtype: torch.dtype, samples: int = SAMPLES) -> list[torch.Tensor]:
    """Return ``count`` global batches of ``samples`` rows each. Every process gets the same batches."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(samples, 4, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]
