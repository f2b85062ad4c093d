"""Reductions, scans, sorts and poolings whose right result differs from that of a kernel which fills its last block with zeros.

A kernel that processes blocks of 32 or 1,024 elements must fill the last block with the neutral element of the operation, or leave it out.
The neutral element of ``amax``, for example, is the lowest number of the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.known_differences import may_be_missing
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.tolerance import check_form, check_places, check_result
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTHS = (1, 31, 33, 100, 257, 1025, 5000)
_MANY = 300_007
"""A number of elements that many devices reduce in several blocks."""

_WHOLE: dict[str, Callable[..., Any]] = {
    "all": lambda x, *dim: x.all(*dim),
    "amax": lambda x, *dim: x.amax(*dim),
    "amin": lambda x, *dim: x.amin(*dim),
    "aminmax": lambda x, *dim: torch.aminmax(x, dim=dim[0] if dim else None),
    "any": lambda x, *dim: x.any(*dim),
    "argmax": lambda x, *dim: x.argmax(*dim),
    "argmin": lambda x, *dim: x.argmin(*dim),
    "count_nonzero": lambda x, *dim: x.count_nonzero(*dim),
    "linalg.vector_norm": lambda x, *dim: torch.linalg.vector_norm(x, -math.inf, dim or None),
    "logsumexp": lambda x, *dim: x.logsumexp(*(dim or ((*range(x.ndim),),))),
    "max.reduction_with_dim": lambda x, *dim: x.max(*dim),
    "mean": lambda x, *dim: _signs(x).mean(*dim),
    "median": lambda x, *dim: x.median(*dim),
    "min.reduction_with_dim": lambda x, *dim: x.min(*dim),
    "nanmean": lambda x, *dim: x.sign().nanmean(*dim),
    "nanmedian": lambda x, *dim: x.nanmedian(*dim),
    "nansum": lambda x, *dim: x.sign().nansum(*dim),
    "norm": lambda x, *dim: _signs(x).norm(2, *dim),
    "prod": lambda x, *dim: _signs(x).prod(*dim),
    "std": lambda x, *dim: _steps(x).std(*dim),
    "sum": lambda x, *dim: _signs(x).sum(*dim),
}
_ALONG_A_DIMENSION: dict[str, Callable[..., Any]] = {
    "argsort": lambda x, dim: x.argsort(dim, descending=True),
    "cummax": lambda x, dim: x.cummax(dim),
    "cummin": lambda x, dim: x.cummin(dim),
    "index_reduce.amax": lambda x, dim: _index_reduced(x, dim, "amax"),
    "index_reduce.amin": lambda x, dim: _index_reduced(x, dim, "amin"),
    "kthvalue": lambda x, dim: x.kthvalue((x.shape[dim] + 1) // 2, dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "mode": lambda x, dim: _signs(x).mode(dim).values,
    "nn.functional.adaptive_max_pool1d": lambda x, dim: F.adaptive_max_pool1d(x.movedim(dim, -1), 1),
    "nn.functional.max_pool1d": lambda x, dim: F.max_pool1d(x.movedim(dim, -1), 3, padding=1),
    "nn.functional.max_pool2d": lambda x, dim: F.max_pool2d(x.movedim(dim, -1)[None], (1, 3), padding=(0, 1)),
    "scatter_reduce.amax": lambda x, dim: _scatter_reduced(x, dim, "amax"),
    "scatter_reduce.amin": lambda x, dim: _scatter_reduced(x, dim, "amin"),
    "scatter_reduce.prod": lambda x, dim: _scatter_reduced(_signs(x), dim, "prod"),
    "softmax": lambda x, dim: x.softmax(dim),
    "sort": lambda x, dim: x.sort(dim),
    "topk": lambda x, dim: [x.topk(min(3, x.shape[dim]), dim, largest=largest) for largest in (True, False)],
}
CALLS = {**_WHOLE, **_ALONG_A_DIMENSION}
"""Calls, by the names of their operators in torch's ``op_db``. Each takes a tensor and a dimension. Those in ``_WHOLE`` can also be called
without a dimension."""


def _signs(x: torch.Tensor) -> torch.Tensor:
    """Return 1 or -1 for each element, and 0 for NaN, whose sign is not defined."""
    return (x.nan_to_num(0.0) if x.is_floating_point() else x).sign()


def _steps(x: torch.Tensor) -> torch.Tensor:
    """Return the elements divided by 1,000, and 0 for infinities and NaN."""
    return x.nan_to_num(0.0, 0.0, 0.0) / 1000


def _index_reduced(x: torch.Tensor, dim: int, how: str) -> torch.Tensor:
    index = torch.zeros(x.shape[dim], dtype=torch.int64, device=x.device)
    return torch.zeros_like(x.narrow(dim, 0, 1)).index_reduce(dim, index, x, how, include_self=False)


def _scatter_reduced(x: torch.Tensor, dim: int, how: str) -> torch.Tensor:
    index = torch.zeros_like(x, dtype=torch.int64)
    return torch.zeros_like(x.narrow(dim, 0, 1)).scatter_reduce(dim, index, x, how, include_self=False)


def _rows(dtype: torch.dtype, length: int) -> torch.Tensor:
    """Return rows of negative numbers, of positive numbers, and of equal numbers at the limits of the dtype.

    A bool tensor has one row of False and one of True. A floating-point tensor also has a row of NaN, and its limits are infinities.
    """
    if dtype is torch.bool:
        return torch.tensor([[False], [True]]).repeat(1, length)
    steps = torch.arange(length) % 7 + 1
    if dtype.is_floating_point:
        limits, steps = [-math.inf, math.inf, math.nan], steps * 1000
    else:
        limits = [torch.iinfo(dtype).min, torch.iinfo(dtype).max]
    signs = [1] if dtype is torch.uint8 else [-1, 1]
    return torch.stack([*((steps * sign).to(dtype) for sign in signs), *(torch.full((length,), limit, dtype=dtype) for limit in limits)])


def _arguments(name: str, rows: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    yield rows, -1
    yield rows.t().contiguous(), 0
    if name in _WHOLE:
        yield from ((row,) for row in rows)


def _parts(name: str, result: Any) -> Iterator[tuple[torch.Tensor, bool]]:
    """Yield each tensor of a result, and whether its elements are indices into the tensor with which the call was made."""
    if isinstance(result, torch.Tensor):
        yield result, name.startswith("arg")
    elif hasattr(result, "indices"):
        yield from ((result.values, False), (result.indices, True))
    else:
        for one in result:
            yield from _parts(name, one)


def check_neutral_elements(subject: Subject, name: str) -> None:
    """Compare the results of ``CALLS[name]`` on the device with the results of the same call on the CPU.

    The call is made along the last and the first dimension of matrices and, if it can be called without a dimension, for each row of a
    matrix. All dtypes are tested that the device has and for which the CPU implements the call. Indices may differ from those of the CPU if
    they refer to equal elements. Differences are recorded in the subject.
    """
    call = CALLS[name]
    for dtype in DTYPES:
        if dtype.startswith("complex") or lacking_dtypes(subject, lambda dtype=dtype: _results(call, _rows(getattr(torch, dtype), 1), -1)):  # type: ignore[misc]
            continue
        for length in (*_LENGTHS, _MANY) if name in _WHOLE else _LENGTHS:
            for x, *dim in _arguments(name, _rows(getattr(torch, dtype), length)):
                with subject.sample(f"{name} of {dtype}, shape {list(x.shape)}, {dim}", {"dtype": dtype, "length": length}):
                    _check(subject, name, x, dim)


def _results(call: Callable[..., Any], x: torch.Tensor, *dim: int) -> Any:
    """Return the result of a call on the CPU, or None if the CPU rejects it."""
    try:
        return x, call(x, *dim)
    except (RuntimeError, NotImplementedError):
        return None


def _check(subject: Subject, name: str, x: torch.Tensor, dim: list[int]) -> None:
    call = CALLS[name]
    reference = _results(call, x, *dim)
    if reference is None:
        return
    true = call(x.double(), *dim) if x.is_floating_point() else reference[1]
    with may_be_missing(opdb.operators()[name], x):
        found = call(x.to(subject.device), *dim)
    for (mine, is_index), (theirs, _), (exact, _) in zip(*(_parts(name, one) for one in (found, reference[1], true)), strict=True):
        if not is_index:
            truth = exact if theirs.is_floating_point() else None
            check_result(mine, theirs, truth, subject.device, cancels=True, num_terms=max(x.shape))
            continue
        check_form(mine, theirs, subject.device)
        rows = x.movedim(dim[0], -1) if dim else x
        indices = [one.cpu().unsqueeze(-1) if one.ndim < x.ndim else one.cpu().movedim(dim[0], -1) for one in (mine, theirs)]
        check_places(torch.nan_to_num(rows, nan=1.0), *indices, num_dims=1)
