"""Functions that change abruptly at certain numbers, called with these numbers and the closest numbers on both sides."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.known_differences import may_be_missing
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Function = Callable[..., Any]
_DISTANCES = (1, 2, 8, 64)
"""Distances from a limit. The unit is the distance between neighbouring numbers of the dtype."""

_MANY_EDGES = torch.arange(8193) / 2048 - 1


def _with_edges(function: _Function, edges: Sequence[float]) -> _Function:
    return lambda x: function(x, torch.tensor(edges, dtype=x.dtype, device=x.device))


FUNCTIONS: Mapping[str, tuple[_Function, Sequence[float]]] = {
    "histogram_of_edges": (
        lambda x: [torch.histogram(x, edges.to(x)) for edges in (torch.tensor([-1.0, 0.5, 2.0, 3.0]), _MANY_EDGES)], (-1.0, 0.5, 2.0, 3.0),
    ),
    "histogram_of_a_range": (
        lambda x: [torch.histogram(x, bins, range=(-1.0, 3.0)) for bins in (4, 8192)], (-1.0, 3.0),
    ),
    "histogramdd": (
        lambda x: [torch.histogramdd(x[:, None], [bins], range=[-1.0, 3.0])[0] for bins in (2, 8192)], (-1.0, 3.0),
    ),
    "histc": (lambda x: torch.histc(x, 4, -1.0, 3.0), (-1.0, 3.0)),
    "bucketize": (_with_edges(torch.bucketize, [-1.0, 0.5, 2.0]), (-1.0, 0.5, 2.0)),
    "bucketize_right": (_with_edges(lambda x, edges: torch.bucketize(x, edges, right=True), [-1.0, 0.5, 2.0]), (-1.0, 0.5, 2.0)),
    "searchsorted": (_with_edges(lambda x, edges: torch.searchsorted(edges, x), [-1.0, 0.5, 2.0]), (-1.0, 0.5, 2.0)),
    "isin": (_with_edges(torch.isin, [-1.0, 0.5, 2.0]), (-1.0, 0.5, 2.0)),
    "compare": (lambda x: (x > 0.5, x >= 0.5, x < 0.5, x <= 0.5, x == 0.5, x != 0.5), (0.5,)),
    "compare_tensors": (_with_edges(lambda x, y: (x > y[0], x >= y, x < y, x <= y, x == y, x != y), [0.5]), (0.5,)),
    "maximum": (_with_edges(lambda x, y: (x.maximum(y), x.minimum(y), x.fmax(y), x.fmin(y)), [0.5]), (0.5,)),
    "max": (lambda x: (x.max(), x.argmax(), x.min(), x.argmin(), x.aminmax()), (1.5,)),
    "sort": (lambda x: (x.sort(stable=True), x.topk(5).values, x.unique()), (1.5, -0.75)),
    "clamp": (lambda x: x.clamp(-0.75, 1.5), (-0.75, 1.5)),
    "relu": (F.relu, (0.0,)),
    "relu6": (F.relu6, (0.0, 6.0)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.75, 1.5), (-0.75, 1.5)),
    "hardsigmoid": (F.hardsigmoid, (-3.0, 3.0)),
    "hardswish": (F.hardswish, (-3.0, 3.0)),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), (-0.5, 0.5)),
    "softshrink": (lambda x: F.softshrink(x, 0.5), (-0.5, 0.5)),
    "threshold": (lambda x: F.threshold(x, 0.5, 20.0), (0.5,)),
    "heaviside": (lambda x: torch.heaviside(x, torch.full_like(x, 0.25)), (0.0,)),
    "sign": (lambda x: (x.sign(), x.sgn(), x.signbit()), (0.0,)),
    "rounding": (lambda x: (x.floor(), x.ceil(), x.trunc(), x.round()), (-2.0, -0.5, 0.5, 1.0, 1.5, 2.5, 3.0)),
    "to_integers": (lambda x: (x.int(), x.long(), x.to(torch.int8)), (-2.0, -1.0, 1.0, 3.0)),
    "to_bool": (lambda x: (x.bool(), x.logical_not(), x.nonzero()), (0.0,)),
    "remainder": (lambda x: (x.remainder(0.5), x.fmod(0.5), x.div(0.5, rounding_mode="floor")), (-1.0, 0.5, 1.0, 2.0)),
    "isclose": (lambda x: torch.isclose(x, torch.ones_like(x), rtol=0.0, atol=0.25), (0.75, 1.25)),
    "domains": (lambda x: [f(x).isnan() for f in (torch.asin, torch.acos, torch.atanh, torch.acosh, torch.log1p)], (-1.0, 1.0)),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.5), (-0.5, 0.5)),
    "huber_loss": (lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=0.5), (-0.5, 0.5)),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, -torch.ones_like(x), reduction="none"), (1.0,)),
    "margin_ranking_loss": (lambda x: F.margin_ranking_loss(x, 0 * x, torch.ones_like(x), 0.5, reduction="none"), (0.5,)),
    "where": (lambda x: (torch.where(x > 0.5, x, -x), x.masked_fill(x >= 0.5, 7.0), x.masked_select(x > 0.5)), (0.5,)),
    "logit": (lambda x: torch.logit(x, eps=0.25), (0.25, 0.75)),
    "nextafter": (
        _with_edges(lambda x, ends: [x.nextafter(end) for end in (*ends, x, x.flip(0))], [math.inf, -math.inf]),
        (1.0, -1.0, 2.0, -2.0, 100.0),
    ),
    "nextafter_of_zero": (_with_edges(lambda x, ends: [x.nextafter(end) for end in (*ends, -x)], [1.0, -1.0]), (0.0,)),
    "frexp": (torch.frexp, (0.0, 0.5, 1.0, -2.0)),
    "powers_of_two": (lambda x: (x * 0.5, x * -4.0, x / 8.0, x / -0.5), (1.0, -2.0)),
    "signs": (lambda x: (x.neg(), x.abs(), x.copysign(-x.flip(0)), x.signbit()), (0.0, 1.0, -2.0)),
    "signs_of_zeros": (
        _with_edges(
            lambda x, zeros: [
                one.signbit() for one in (
                    zeros.neg(), zeros.abs(), zeros.clone(), zeros * 2, zeros / -2, zeros.copysign(-1),
                    torch.ones_like(zeros).copysign(zeros), zeros.flip(0), zeros[1:], torch.cat([zeros, zeros]),
                    torch.where(zeros == 0, zeros, 1),
                    torch.full_like(zeros, -0.0),
                )
            ],
            [0.0, -0.0],
        ),
        (1.0,),
    ),
}  # fmt: skip
"""Functions by name, each with its limits."""
_EXACT = (
    "maximum", "max", "sort", "clamp", "relu", "relu6", "hardtanh", "hardshrink", "threshold", "heaviside", "sign", "rounding", "where",
    "nextafter", "nextafter_of_zero", "frexp", "powers_of_two", "signs",
)  # fmt: skip
"""The names of functions whose results are exact. Most of them return numbers that they were given."""


def check_near_limits(subject: Subject, name: str, dtype: str) -> None:
    """Compare the results of ``FUNCTIONS[name]`` on the device with those on the CPU, for numbers near its limits.

    Each limit is passed in a call of its own, together with the numbers at ``_DISTANCES`` on both sides. The results of the functions in
    ``_EXACT`` must be equal to those on the CPU. Differences are recorded in the subject.

    Raises:
        NotSupported: If the results of the function are subnormal, and the device does not declare the capability ``subnormals``.
    """
    function, limits = FUNCTIONS[name]
    if name == "nextafter_of_zero" and not subject.capabilities.can("subnormals"):
        raise NotSupported("subnormals: not declared")
    op = opdb.operators().get(name.partition("_")[0])
    for limit in limits:
        x = _around(limit, getattr(torch, dtype))
        with subject.sample(f"{name} near {limit}", {"name": name, "dtype": dtype}), may_be_missing(op, x):
            compare_call(subject, function, (x,), is_exact=name in _EXACT)


def cases() -> Iterator[tuple[str, str]]:
    """Yield the name of each function with each dtype for which the CPU implements the function."""
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        for name, (function, limits) in FUNCTIONS.items():
            with contextlib.suppress(NotImplementedError, RuntimeError):
                function(_around(limits[0], getattr(torch, dtype)))
                yield name, dtype


def _around(limit: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the limit and the numbers of ``dtype`` near it. The numbers near 0 are the smallest normal number and multiples of it."""
    info = torch.finfo(dtype)
    step = info.eps * 2.0 ** math.floor(math.log2(abs(limit))) if limit else info.tiny
    return torch.tensor([limit + steps * step for steps in (*(-one for one in _DISTANCES), 0, *_DISTANCES)], dtype=dtype)
