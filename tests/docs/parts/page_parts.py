"""What pages need and readers have: a model, an optimizer, data."""

from __future__ import annotations

import torch


class Model(torch.nn.Module):
    """A layer; its result's mean is a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(batch)
        return result.pow(2)


def parts() -> tuple[Model, torch.optim.Optimizer, torch.utils.data.DataLoader[torch.Tensor]]:
    """A new model, its optimizer, and a loader of two batches."""
    model = Model()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(torch.rand(16, 16), batch_size=8)


def labelled() -> torch.utils.data.DataLoader[tuple[torch.Tensor, ...]]:
    """Batches of inputs and targets."""
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(16, 16), torch.rand(16, 16)), batch_size=8)
