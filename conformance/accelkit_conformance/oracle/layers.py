"""Layers that checks use or test: batch normalisation without int64, recurrent layers with states that are views, and self-attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def batch_norm(subject: Subject, num_features: int) -> torch.nn.BatchNorm1d:
    """Return a BatchNorm1d layer. Its ``num_batches_tracked``, an int64 buffer, is None if the device lacks int64."""
    layer = torch.nn.BatchNorm1d(num_features)
    if subject.lacks("int64"):
        layer.num_batches_tracked = None
    return layer


class ViewedStates(nn.Module):
    """A recurrent module whose initial states are views that are not contiguous. If a device refuses such views, contiguous copies are
    used."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, states: Any) -> Any:
        views = tree_map_only(torch.Tensor, lambda one: one[:, 1:4], states)
        try:
            return self.layer(x, views)
        except RuntimeError:
            return self.layer(x, tree_map_only(torch.Tensor, torch.Tensor.contiguous, views))


class SelfAttention(nn.MultiheadAttention):
    """Attention of a sequence to itself. torch has a separate kernel for self-attention, and uses it only if all three arguments are the
    same tensor."""

    def forward(self, x: torch.Tensor, **options: Any) -> Any:  # type: ignore[override]
        return super().forward(x, x, x, **options)
