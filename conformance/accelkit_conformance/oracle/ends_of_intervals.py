"""Large draws whose numbers must stay in an interval, even where the uniform random number behind them is 0 or rounded to 1."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_COUNT = 1 << 22
_MOST_DRAWS = 16
_SECONDS = 0.4
_POSITIVE = math.ulp(0.0)
_FINITE = sys.float_info.max


def _chosen(x: torch.Tensor, category: int, *, replacement: bool) -> torch.Tensor:
    """Draw one of two categories for each row of a matrix. Only ``category``, 0 or 1, has a weight."""
    weights = torch.zeros(len(x) // 4, 2, dtype=x.dtype, device=x.device)
    weights[:, category] = 1
    return torch.multinomial(weights, 1, replacement)


INTERVALS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "bernoulli_of_ones": (lambda x: torch.bernoulli(torch.ones_like(x)), 1, 1),
    "bernoulli_of_zeros": (lambda x: torch.bernoulli(torch.zeros_like(x)), 0, 0),
    "cauchy_": (lambda x: x.cauchy_(), -_FINITE, _FINITE),
    "exponential_": (lambda x: x.exponential_(), _POSITIVE, _FINITE),
    "geometric_": (lambda x: x.geometric_(0.5), 0, _FINITE),  # 0 instead of 1 once in 2**25 numbers on CUDA
    "log_normal_": (lambda x: x.log_normal_(), _POSITIVE, _FINITE),
    "multinomial_of_the_first": (lambda x: _chosen(x, 0, replacement=True), 0, 0),
    "multinomial_of_the_second": (lambda x: _chosen(x, 1, replacement=True), 1, 1),
    "multinomial_without_replacement": (lambda x: _chosen(x, 1, replacement=False), 1, 1),
    "normal_": (lambda x: x.normal_(), -_FINITE, _FINITE),
    "rand": (lambda x: torch.rand(x.shape, dtype=x.dtype, device=x.device), 0, math.nextafter(1, 0)),
    "randint": (lambda x: torch.randint(0, 1000, (len(x),), device=x.device), 0, 999),
    "random_": (lambda x: x.random_(0, 1000), 0, 999),
    "uniform_": (lambda x: x.uniform_(-2, 3), -2, math.nextafter(3, 0)),
}
"""Samplers by name. Each takes a vector that has the length, the dtype and the device of the random numbers to draw. With each are the
smallest and the largest number that it may draw."""


def check_ends(subject: Subject, name: str) -> None:
    """Check that all numbers of large draws are in their interval.

    In float32, up to sixteen draws of 4,194,304 numbers are made. After 0.4 seconds, no further draw begins. In float64, there is one draw.
    ``multinomial`` draws a quarter as many numbers.

    Raises:
        AssertionError: If a number is outside the interval, or is NaN.
        NotSupported: If the device lacks a dtype that the sampler needs.
    """
    draw, _, _ = INTERVALS[name]
    require_dtypes(subject, lambda: draw(torch.zeros(8)))
    deadline = time.monotonic() + _SECONDS
    for number in range(_MOST_DRAWS):
        if number and time.monotonic() > deadline:
            break
        _check_draw(name, torch.zeros(_COUNT, device=subject.device))
    if subject.capabilities.can("dtype.float64"):
        _check_draw(name, torch.zeros(_COUNT, dtype=torch.float64, device=subject.device))


def _check_draw(name: str, x: torch.Tensor) -> None:
    draw, low, high = INTERVALS[name]
    drawn = draw(x)
    least, greatest = float(drawn.min()), float(drawn.max())
    assert low <= least, f"{name} of {x.dtype} drew {least!r}"
    assert greatest <= high, f"{name} of {x.dtype} drew {greatest!r}"
