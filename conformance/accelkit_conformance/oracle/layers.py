"""Layers for checks that do not test the layers themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def batch_norm(subject: Subject, num_features: int) -> torch.nn.BatchNorm1d:
    """Return a BatchNorm1d layer. Its ``num_batches_tracked``, an int64 buffer, is None if the device lacks int64."""
    layer = torch.nn.BatchNorm1d(num_features)
    if subject.lacks("int64"):
        layer.num_batches_tracked = None
    return layer
