"""Check that draws from a continuous distribution have this distribution, and that successive draws are not correlated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

CONTINUOUS = (
    "rand", "randn", "uniform_", "normal_", "exponential_", "cauchy_", "log_normal_",
    "uniform_far_from_zero", "normal_far_from_zero", "exponential_of_high_rate", "exponential_of_low_rate", "cauchy_of_other_parameters",
    "log_normal_of_other_parameters", "normal_of_a_size", "rand_like", "randn_like",
)  # fmt: skip
"""The names of the draws."""


def _normal(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + (x / math.sqrt(2)).erf())


def _continuous_draws(subject: Subject, name: str, count: int) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Return ``count`` draws from the distribution ``name``, and the cumulative distribution function of this distribution."""
    x = torch.empty(count, device=subject.device)
    table: dict[str, tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
        "rand": (lambda: torch.rand(count, device=subject.device), lambda v: v.clamp(0, 1)),
        "randn": (lambda: torch.randn(count, device=subject.device), _normal),
        "uniform_": (lambda: x.uniform_(-2, 3), lambda v: ((v + 2) / 5).clamp(0, 1)),
        "normal_": (lambda: x.normal_(1, 2), lambda v: _normal((v - 1) / 2)),
        "exponential_": (lambda: x.exponential_(0.5), lambda v: 1 - (-0.5 * v).exp()),
        "cauchy_": (lambda: x.cauchy_(0, 1), lambda v: 0.5 + v.atan() / math.pi),
        "log_normal_": (lambda: x.log_normal_(0, 1), lambda v: _normal(v.log())),
        "uniform_far_from_zero": (lambda: x.uniform_(-1000, -999), lambda v: (v + 1000).clamp(0, 1)),
        "normal_far_from_zero": (lambda: x.normal_(-300, 0.5), lambda v: _normal((v + 300) / 0.5)),
        "exponential_of_high_rate": (lambda: x.exponential_(250), lambda v: 1 - (-250 * v).exp()),
        "exponential_of_low_rate": (lambda: x.exponential_(1e-6), lambda v: 1 - (-1e-6 * v).exp()),
        "cauchy_of_other_parameters": (lambda: x.cauchy_(-4, 0.25), lambda v: 0.5 + ((v + 4) / 0.25).atan() / math.pi),
        "log_normal_of_other_parameters": (lambda: x.log_normal_(2, 0.3), lambda v: _normal((v.log() - 2) / 0.3)),
        "normal_of_a_size": (lambda: torch.normal(-2.0, 5.0, (count,), device=subject.device), lambda v: _normal((v + 2) / 5)),
        "rand_like": (lambda: torch.rand_like(x), lambda v: v.clamp(0, 1)),
        "randn_like": (lambda: torch.randn_like(x), _normal),
    }
    draw, distribution = table[name]
    return draw(), distribution


def check_continuous_draws(subject: Subject, name: str, count: int) -> None:
    """Check with the Kolmogorov-Smirnov test that draws have the right distribution, and check that successive numbers are not correlated.

    Args:
        subject: The plugin under test, with its device.
        name: A name in ``CONTINUOUS``.
        count: The number of draws.

    Raises:
        AssertionError: If the draws are on another device, if the distribution is wrong, or if the numbers are correlated.
    """
    drawn, distribution = _continuous_draws(subject, name, count)
    subject.assert_on_device(drawn)
    values = drawn.cpu().double().sort()[0]
    expected = distribution(values)
    steps = torch.arange(count, dtype=torch.float64) / count
    distance = float(torch.maximum((expected - steps).abs(), (expected - steps - 1 / count).abs()).max())
    assert distance * math.sqrt(count) < 2.2, f"{name}: the greatest distance between the distributions is {distance:.4f}"
    quantiles = distribution(drawn.cpu().double())
    correlation = float(torch.corrcoef(torch.stack([quantiles[:-1], quantiles[1:]]))[0, 1])
    assert abs(correlation) < 0.04, f"{name}: successive numbers are correlated (coefficient {correlation:.3f})"
