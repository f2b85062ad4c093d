"""Small models with smooth activations, for the tests of precisions.

The numbers of input and output features of each ``Linear`` layer are multiples of 16, as matrix products in float8 require. The classes are
at module level, so that a prepared model can be pickled.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import nn

ROWS = 16
FEATURES = 16


class Perceptron(nn.Module):
    """Two ``Linear`` layers with ``tanh`` between them.

    Attributes:
        seen: The dtype of the first layer's output in each eager forward pass so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 32), nn.Linear(32, FEATURES)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if not torch.compiler.is_compiling():
            self.seen.append(hidden.dtype)
        result: torch.Tensor = self.last(torch.tanh(hidden))
        return result


class Pair(NamedTuple):
    """A named tuple inside the input or the output of a model."""

    image: torch.Tensor
    label: torch.Tensor


@dataclasses.dataclass
class Batch:
    """A dataclass inside the input or the output of a model."""

    values: torch.Tensor
    name: str


class Nested(Perceptron):
    """A model that keeps the arguments it received, and returns nested results."""

    def forward(self, batch: Any, *rest: Any, **options: Any) -> Any:  # type: ignore[override]
        self.received = (batch, rest, options)
        result = super().forward(batch["x"])
        return {
            "logits": result,
            "list": [result, (result * 2, Pair(result, result.argmax(-1)))],
            "batch": Batch(result, "kept"),
            "mask": result > 0,
            "count": 3,
        }


class Normalized(nn.Module):
    """A model with float and integer buffers, and with a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, FEATURES)
        self.third = nn.Linear(FEATURES, FEATURES)
        self.third.weight = self.second.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.third(torch.tanh(self.second(self.norm(self.first(x)))))
        return result


def perceptron() -> nn.Module:
    """Return a new ``Perceptron``, the model that most tests train."""
    return Perceptron()


def convolution() -> nn.Module:
    """Return a small convolutional network, for rows of 16 features that it treats as 4 x 4 images."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, FEATURES)
    )


def attention() -> nn.Module:
    """Return a transformer layer followed by a ``Linear`` layer. The rows of the batch, of 16 features each, form one sequence."""
    layer = nn.TransformerEncoderLayer(FEATURES, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
    return nn.Sequential(nn.Unflatten(0, (1, -1)), layer, nn.Flatten(0, 1), nn.Linear(FEATURES, FEATURES))


def normalization() -> nn.Module:
    """Return a model with batch and layer normalisation."""
    return nn.Sequential(
        nn.Linear(FEATURES, 32),
        nn.BatchNorm1d(32),
        nn.GELU(),
        nn.Linear(32, FEATURES),
        nn.LayerNorm(FEATURES),
        nn.Linear(FEATURES, FEATURES),
    )


MODELS = {"perceptron": perceptron, "convolution": convolution, "attention": attention, "normalization": normalization}
