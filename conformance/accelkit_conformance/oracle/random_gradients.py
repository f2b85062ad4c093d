"""Gradients of functions that draw random numbers, compared with finite differences on the same device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name
from torch import nn

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_STEP = 0.02
_Make = Callable[[torch.device], Callable[[torch.Tensor], torch.Tensor]]


def _module(make: Callable[[], nn.Module], call: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda layer, x: layer(x)) -> _Make:
    def on(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
        torch.default_generator.manual_seed(1)
        layer = make().to(device)
        return lambda x: call(layer, x)

    return on


FUNCTIONS: Mapping[str, tuple[_Make, tuple[int, ...]]] = {
    "dropout": (lambda device: lambda x: F.dropout(x, 0.3).sin(), (6, 7)),
    "dropout1d": (lambda device: lambda x: F.dropout1d(x, 0.3).sin(), (3, 6, 2)),
    "dropout2d": (lambda device: lambda x: F.dropout2d(x, 0.3).sin(), (3, 6, 2, 2)),
    "dropout3d": (lambda device: lambda x: F.dropout3d(x, 0.3).sin(), (3, 6, 2, 2, 2)),
    "alpha_dropout": (lambda device: lambda x: F.alpha_dropout(x, 0.3, training=True).sin(), (6, 7)),
    "feature_alpha_dropout": (lambda device: lambda x: F.feature_alpha_dropout(x, 0.3, training=True).sin(), (3, 6, 4)),
    "rrelu": (lambda device: lambda x: F.rrelu(x - 0.5, training=True).sin(), (6, 7)),
    "gumbel_softmax": (lambda device: lambda x: F.gumbel_softmax(x, tau=0.7), (6, 7)),
    "fractional_max_pool2d": (lambda device: lambda x: F.fractional_max_pool2d(x, 2, (3, 3)).sin(), (2, 2, 7, 7)),
    "lstm": (_module(lambda: nn.LSTM(5, 4, 3, dropout=0.4), lambda layer, x: layer(x)[0]), (4, 3, 5)),
    "lstm_both_directions": (
        _module(lambda: nn.LSTM(5, 4, 2, dropout=0.4, bidirectional=True), lambda layer, x: layer(x)[1][0]),
        (4, 3, 5),
    ),
    "gru": (_module(lambda: nn.GRU(5, 4, 2, dropout=0.4, batch_first=True), lambda layer, x: layer(x)[0]), (3, 4, 5)),
    "rnn": (_module(lambda: nn.RNN(5, 4, 2, dropout=0.4), lambda layer, x: layer(x)[0]), (4, 3, 5)),
    "attention": (_module(lambda: nn.MultiheadAttention(8, 2, dropout=0.4), lambda layer, x: layer(x, x, x)[0]), (5, 3, 8)),
    "attention_without_weights": (
        _module(lambda: nn.MultiheadAttention(8, 2, dropout=0.4), lambda layer, x: layer(x, x, x, need_weights=False)[0]),
        (5, 3, 8),
    ),
    "transformer": (_module(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, activation="gelu")), (5, 3, 8)),
}
"""Pairs, by name. The first item takes a device and returns the function to differentiate there; the second is the shape of the input."""


def check_gradient(subject: Subject, name: str) -> None:
    """Check the gradient of a function that draws random numbers.

    The gradient is compared with finite differences along three random directions. Both are computed from calls with the same seed, so that
    all these calls draw the same numbers.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``FUNCTIONS``.

    Raises:
        AssertionError: If two calls with the same seed give different results, if a call with another seed gives the same result, or if the
            gradient is wrong.
        NotSupported: If the device lacks a dtype that the function uses.
    """
    make, shape = FUNCTIONS[name]
    require_dtypes(subject, lambda: make(torch.device("cpu"))(torch.ones(shape)))
    function = make(subject.device)
    generator = torch.Generator().manual_seed(4)
    start = torch.randn(shape, generator=generator)

    def loss(x: torch.Tensor, seed: int = 5) -> torch.Tensor:
        torch.default_generator.manual_seed(seed)
        subject.accelerator.manual_seed(seed)
        y = function(x)
        weights = torch.linspace(-1.0, 2.0, y.numel()).view(y.shape).to(subject.device)
        return (y * weights).sum()

    x = start.to(subject.device).requires_grad_()
    first = loss(x)
    (gradient,) = torch.autograd.grad(first, x)
    assert first.item() == loss(x).item(), f"{name} with the same seed gave two results"
    assert first.item() != loss(x, 6).item(), f"{name} does not depend on the seed"
    for _ in range(3):
        direction = torch.randn(shape, generator=generator)
        direction /= direction.norm()
        with torch.no_grad():
            values = [loss((start + step * _STEP * direction).to(subject.device)).item() for step in (-2, -1, 1, 2)]
        numeric = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * _STEP)
        found = float((gradient.cpu().double() * direction.double()).sum())
        allowed = 0.01 * float(gradient.norm()) + 1e-3
        assert abs(found - numeric) < allowed, f"the derivative of {name} in a direction is {found:.4f}, not {numeric:.4f}"
