"""Calls to pointwise functions with Python numbers as operands or as keyword arguments."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.differentiable import random_inputs
from accelkit_conformance.oracle.function_keywords import Call, product


def _divide(x: Any, by: float, rounding_mode: str | None) -> Any:
    return torch.div(x, by, rounding_mode=rounding_mode)


def _raise_number(x: Any, number: float) -> Any:
    return number**x


def _call_with_number(x: Any, call: Callable[..., Any], number: float) -> Any:
    return call(x, number)


def _call_number_first(x: Any, call: Callable[..., Any], number: float) -> Any:
    return call(number, x)


def _elements() -> Iterator[Call]:
    x, y = ([one * 3 for one in random_inputs((3, 4))], random_inputs((3, 4), (3, 4)))
    bounds: list[Any] = [None, -1, 0.1, 1.5, float("nan"), float("inf")]
    for low, high in itertools.product(bounds, bounds):
        if low is not None or high is not None:
            yield torch.clamp, x, {"min": low, "max": high}
    yield from product(torch.div, y, rounding_mode=[None, "floor", "trunc"])
    yield from product(_divide, x, by=[0.3, -2, 0.0], rounding_mode=[None, "floor", "trunc"])
    exponents: list[Any] = [-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.0, 3, 3.0]
    yield from product(torch.pow, x, exponent=exponents)
    yield from product(_raise_number, x, number=[0, 1, 2, 0.5, -1.0])
    yield from product(torch.round, x, decimals=[-1, 0, 1, 3])
    yield from product(torch.nan_to_num, x, nan=[None, 1.0], posinf=[None, 2.0], neginf=[None, -3.0])
    yield from product(torch.xlogy, y)
    for call in (torch.remainder, torch.fmod, torch.floor_divide, torch.true_divide, torch.copysign, torch.eq, torch.lt, torch.ge):
        yield from product(_call_with_number, x, call=[call], number=[-2, 0.7, 3])
    for call in (operator.add, operator.sub, operator.mul, operator.truediv):  # a device may replace them by simpler calls for some numbers
        for place in (_call_with_number, _call_number_first):
            yield from product(place, x, call=[call], number=[0, 1, 2, -1, True, 0.5, 1.0, 2.0, -1.0, float("inf"), float("nan")])
    for call in (torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2, torch.hypot, torch.logaddexp, torch.nextafter):
        yield call, y, {}
    yield from product(torch.isclose, y, rtol=[0.0, 0.5], atol=[0.0, 0.1], equal_nan=[True, False])
    yield from product(torch.heaviside, y)
    yield from product(_call_number_first, [x[0].abs() + 0.1], call=[torch.polygamma], number=[0, 1, 2, 3, 10, 20])
    yield from product(torch.where, (y[0] > 0, *y))
    yield from product(torch.masked_fill, (x[0], x[0] > 0), value=[-1, 0.5, float("nan")])


def _close_numbers() -> Iterator[Call]:
    """Yield calls in which a number differs from the number in the previous call by 4e-7 or less (``eps`` of normalizations: by 1e-5 or
    less). All results except those of normalizations are multiplied by 2**20, so that the difference is larger than the permitted error."""
    zeros, ones = torch.zeros(3, 4), torch.ones(3, 4)
    functions: dict[str, Callable[..., Any]] = {
        "clamp": lambda x, _, n: (x.clamp(min=n), x.clamp(max=-n), x.clamp(n, 1.0), x.clamp_min(n), x.clone().clamp_(n, 1.0)),
        "add": lambda x, y, n: (x + n, x - n, n - x, x.clone().add_(n), torch.add(x, y, alpha=n), torch.sub(x, y, alpha=n)),
        "mul": lambda _, y, n: (y * n, y / (1 + 2**20 * n), n / y, y.clone().mul_(n)),
        "addcmul": lambda x, y, n: (torch.addcmul(x, y, y, value=n), torch.addcdiv(x, y, y, value=n), torch.lerp(x, y, n)),
        "fill": lambda x, _, n: (x.clone().fill_(n), torch.full_like(x, n), x.masked_fill(x == 0, n), torch.where(x == 0, n, x)),
        "pad": lambda x, _, n: F.pad(x, (1, 1), value=n),
        "threshold": lambda x, y, n: (F.threshold(x, 0.5, n), F.hardtanh(x, n, 1.0), F.leaky_relu(-y, n), F.elu(-y, n)),
        "shrink": lambda x, _, n: (F.softshrink(x + 4e-7, n), F.hardshrink(x + 2.5e-7, n)),
        "compare": lambda x, _, n: (x + 2e-7 > n, x + 2e-7 < n, x + 3e-7 == n, torch.isclose(x, x + 2e-7, rtol=0.0, atol=n)),
        "addmm": lambda x, y, n: (torch.addmm(x, y[:, :1], y[:1], alpha=n), torch.addmm(y, x[:, :1], y[:1], beta=n)),
    }
    for name, function in functions.items():

        def scaled(x: Any, y: Any, number: float, function: Callable[..., Any] = function) -> Any:
            results = function(x, y, number)
            results = results if isinstance(results, tuple) else (results,)
            return [one if one.dtype is torch.bool else one * 2.0**20 for one in results]

        scaled.__name__ = name
        yield from product(scaled, (zeros, ones), number=[0.0, 1e-7, 3e-7, 4e-7, 0.0])
    x = torch.tensor([[1.0, -1.0, 1.0, -1.0]]).expand(3, 4) * 1e-4
    for norm in (F.layer_norm, F.rms_norm):
        yield from product(norm, (x,), normalized_shape=[(4,)], eps=[1e-5, 1e-8, 1e-12])
    yield from product(F.normalize, (x * 1e-3,), eps=[1e-5, 1e-8, 1e-12])


FUNCTIONS_OF_NUMBERS: Mapping[str, Callable[[], Iterator[Call]]] = {"elements": _elements, "close_numbers": _close_numbers}
"""Groups of functions by name. Each yields calls."""
