"""A model that uses only some of its layers in a forward pass."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import torch


class PartialModel(torch.nn.Module):
    """A model that adds the results of several layers. The input of the model has 4 features.

    The layer ``always`` is used in every forward pass. The argument ``used`` of ``forward`` selects which of the three layers in ``parts``
    are used in addition.
    """

    def __init__(self) -> None:
        super().__init__()
        self.always = torch.nn.Linear(4, 4)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, batch: torch.Tensor, used: AbstractSet[int]) -> torch.Tensor:
        """Return the sum of the results of the layer ``always`` and of the layers in ``parts`` whose indices are in ``used``."""
        result: torch.Tensor = self.always(batch)
        for index in sorted(used):
            result = result + self.parts[index](batch)
        return result
