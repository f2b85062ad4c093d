"""A model of which only some parts take part in a forward pass."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import torch


class PartialModel(torch.nn.Module):
    """Adds the results of some of three layers, and of a layer that is always used. Its input has 4 features."""

    def __init__(self) -> None:
        super().__init__()
        self.always = torch.nn.Linear(4, 4)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, batch: torch.Tensor, used: AbstractSet[int]) -> torch.Tensor:
        """Return the sum of the results of ``always`` and of the parts with the indices in ``used``."""
        result: torch.Tensor = self.always(batch)
        for index in sorted(used):
            result = result + self.parts[index](batch)
        return result
