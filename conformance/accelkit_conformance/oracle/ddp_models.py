"""Models with less common parameters and outputs, which are trained with DDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Several(nn.Module):
    """A model with a convolution in channels_last, a frozen parameter and nested outputs. ``ddp_programs`` lets the two linear layers share
    a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.one, self.other = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        images = self.conv(x.view(-1, 3, 3, 3)[:, :, :2])
        hidden = torch.tanh(self.one(images.flatten(1)) * self.frozen)
        return {"a": self.other(hidden) * self.scale, "b": [hidden @ self.one.weight, {"c": images}]}


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(27, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.first(x.flatten(1)).tanh()
        for _ in range(2):  # the same layer twice, as in models with shared layers
            hidden = checkpoint(self.second, hidden, use_reentrant=False).tanh()
        return {"a": hidden, "b": [hidden.square(), {"c": hidden}]}
