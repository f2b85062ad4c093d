"""Calls along one dimension of a tensor, with tensors of six and eleven dimensions and with matrices that contain NaN."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

ALONG_A_DIMENSION: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "sum": lambda x, dim: x.sum(dim),
    "nansum": lambda x, dim: x.nansum(dim),
    "mean": lambda x, dim: x.mean(dim),
    "prod": lambda x, dim: x.prod(dim),
    "var": lambda x, dim: x.var(dim, correction=0),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "amax": lambda x, dim: x.amax(dim),
    "amin": lambda x, dim: x.amin(dim),
    "max": lambda x, dim: x.max(dim),
    "min": lambda x, dim: x.min(dim),
    "argmax": lambda x, dim: x.argmax(dim),
    "argmin": lambda x, dim: x.argmin(dim),
    "median": lambda x, dim: x.median(dim).values,
    "nanmedian": lambda x, dim: x.nanmedian(dim).values,
    "kthvalue": lambda x, dim: x.kthvalue(1, dim).values,
    "topk": lambda x, dim: x.topk(1, dim).values,
    "sort": lambda x, dim: x.sort(dim).values,
    "sort_descending": lambda x, dim: x.sort(dim, descending=True).values,
    "argsort": lambda x, dim: x.argsort(dim),
    "any": lambda x, dim: (x > 1).any(dim),
    "cumsum": lambda x, dim: x.cumsum(dim),
    "cumprod": lambda x, dim: x.cumprod(dim),
    "cummax": lambda x, dim: x.cummax(dim).values,
    "cummin": lambda x, dim: x.cummin(dim).values,
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "flip": lambda x, dim: x.flip(dim),
    "roll": lambda x, dim: x.roll(1, dim),
    "cat": lambda x, dim: torch.cat([x, x * 2], dim),
    "stack": lambda x, dim: torch.stack([x, x * 2], dim),
    "gather": lambda x, dim: x.gather(dim, torch.zeros_like(x, dtype=torch.int64)),
    "index_select": lambda x, dim: x.index_select(dim, torch.tensor([0, 0], device=x.device)),
    "index_add": lambda x, dim: x.index_add(dim, torch.arange(x.shape[dim], device=x.device), x.flip(dim), alpha=2),
    "scatter_add": lambda x, dim: x.scatter_add(dim, torch.zeros_like(x, dtype=torch.int64), x),
    "repeat_interleave": lambda x, dim: x.repeat_interleave(2, dim),
    "unfold": lambda x, dim: x.unfold(dim, 1, 1).contiguous(),
    "copy": lambda x, dim: x.movedim(dim, -1).contiguous(),
}
"""The calls, by name. Each takes a tensor and a dimension, and returns one tensor or several."""


def check_along_dimensions(subject: Subject, name: str) -> None:
    """Make calls along one dimension of a tensor, on the device and on the CPU, and compare the results.

    There is a call for each dimension of a tensor with six dimensions, for two dimensions of a tensor with eleven dimensions, for the rows
    or the columns of matrices that contain a NaN and, if the CPU accepts it, for a 0-d tensor. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the call in ``ALONG_A_DIMENSION``.

    Raises:
        NotSupported: If the device lacks a dtype that the call needs.
    """
    call = ALONG_A_DIMENSION[name]
    require_dtypes(subject, lambda: call(torch.ones(2, 2), 0))
    for description, here, dim in (*_of_many_dimensions(), *_with_nan(), *_of_no_dimension(call)):
        length = here.shape[dim] if here.ndim else 1
        with subject.sample(f"{name}, {description}", {"dim": dim, "length": length, "has_nan": bool(here.isnan().any())}):
            truth = tree_leaves(call(here.double(), dim))
            found, expected = tree_leaves(call(here.to(subject.device), dim)), tree_leaves(call(here, dim))
            for mine, theirs, true in zip(found, expected, truth, strict=True):
                check_result(mine, theirs, true, subject.device, cancels=True, num_terms=length)


def _of_many_dimensions() -> Iterator[tuple[str, torch.Tensor, int]]:
    values = torch.linspace(-2, 2, 72)[torch.randperm(72, generator=torch.Generator().manual_seed(6))]
    for dim in (*range(6), -1, -6):
        yield f"dimension {dim} of six", values.view(2, 3, 1, 2, 3, 2), dim
    for dim in (0, 7):
        yield f"dimension {dim} of eleven", values.view(3, 1, 2, 1, 1, 2, 1, 3, 1, 2, 1), dim


def _of_no_dimension(call: Callable[[Any, int], Any]) -> Iterator[tuple[str, torch.Tensor, int]]:
    one = torch.tensor(0.5)
    for dim in (0, -1):
        with contextlib.suppress(RuntimeError, IndexError):  # the call does not accept 0-d tensors
            call(one, dim)
            yield f"dimension {dim} of a 0-d tensor", one, dim


def _with_nan() -> Iterator[tuple[str, torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(6)
    for length in (2, 33, 300):
        for place in (0, length // 2, length - 1):
            rows = torch.randn(3, length, generator=generator)
            rows[1, place] = float("nan")
            for dim, given in ((1, rows), (0, rows.t().contiguous())):
                yield f"dimension {dim} of length {length}, NaN at {place}", given, dim
