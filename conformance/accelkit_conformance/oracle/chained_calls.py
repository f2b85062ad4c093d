"""Pairs of calls of which the second uses the result of the first, which nothing else reads.

A device that delays its work, or that fuses operators, may compute such a pair with one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.compared_calls import compare_call

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_ROWS, _COLUMNS = 6, 12
_LIMIT = 0.815
"""A number that is not close to an element of a result in ``FIRST``."""
_DTYPES = (torch.float32, torch.bfloat16)


def _labels(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[0], device=x.device) % x.shape[1]


FIRST: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (_COLUMNS,)),
    "product_with_a_number": lambda x: x * 0.3,
    "clamp": lambda x: x.clamp(min=-1, max=100),
    "cat": lambda x: torch.cat([x, -x]),
    "transpose": lambda x: x.t(),
    "index": lambda x: x[:, torch.arange(_COLUMNS - 1, -1, -1, device=x.device)],
    "part": lambda x: x[1:, 2:-1],
    "cumsum": lambda x: x[:, :3].cumsum(-1),
    "linear": lambda x: F.linear(x, torch.eye(_COLUMNS, dtype=x.dtype, device=x.device).flip(0)),
    "conversion": lambda x: x.to(torch.float16 if x.dtype is torch.float32 else torch.float32),
    "expand": lambda x: x + x[:, :1].expand(-1, _COLUMNS),
    "in_place": lambda x: x.clone().mul_(2).sub_(1),
    "pooling": lambda x: F.adaptive_avg_pool2d(x.view(2, 3, 3, 4).repeat(1, 11, 3, 1), 7).flatten(1),
}
"""Functions of a matrix that give a matrix, by name."""
_ORDERED: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "argmax": lambda y: y.argmax(-1),
    "argmin": lambda y: y.argmin(-1),
    "max": lambda y: y.max(-1),
    "topk": lambda y: y.topk(3),
    "sort": lambda y: y.sort(-1),
}
_OTHERS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda y: (y.sum(-1), y.sum(0), y.sum()),
    "mean": lambda y: (y.mean(-1), y.var(-1)),
    "any": lambda y: (y > _LIMIT).any(-1),
    "nonzero": lambda y: (y > _LIMIT).nonzero(),
    "matmul": lambda y: y @ y.mT,
    "nll_loss": lambda y: F.nll_loss(y, _labels(y)),
    "cross_entropy": lambda y: F.cross_entropy(y, _labels(y), reduction="none"),
    "gather": lambda y: y.gather(1, _labels(y)[:, None]),
    "where": lambda y: torch.where(y > _LIMIT, y, y.new_zeros(())),
}


def seconds(name: str) -> Mapping[str, Callable[[torch.Tensor], Any]]:
    """Return functions of the result of ``FIRST[name]``, by name. If the result has equal elements, functions that depend on the order of
    the elements are left out."""
    return _OTHERS if name == "pooling" else {**_ORDERED, **_OTHERS}


def matrix() -> torch.Tensor:
    """Return a float32 matrix with the numbers from 0.25 to 18 in steps of 0.25. The elements of a result then differ so much that their
    order does not depend on the precision of the dtype."""
    numbers = torch.randperm(_ROWS * _COLUMNS, generator=torch.Generator().manual_seed(3))
    return (numbers.view(_ROWS, _COLUMNS) + 1) * 0.25


def check_chained_calls(subject: Subject, name: str) -> None:
    """Apply each function in ``seconds(name)`` to the result of ``FIRST[name]``, and compare with the CPU. Differences are recorded in the
    subject."""
    first = FIRST[name]
    for what, second in seconds(name).items():
        for dtype in _DTYPES:
            with subject.sample(f"{what} of the result of {name}, {dtype}", {"name": what, "dtype": str(dtype).removeprefix("torch.")}):
                compare_call(subject, lambda x, second=second: second(first(x)), (matrix().to(dtype),), num_stages=4)
