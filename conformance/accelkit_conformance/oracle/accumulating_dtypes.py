"""Reductions, scans and norms with ``dtype=``, which convert their input to another dtype before they add or multiply its elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.compared_calls import compare_call

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_REAL = ("float32", "bfloat16", "float64", "int64", "complex64")
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "float16": _REAL,
    "bfloat16": ("float32", "float16", "float64", "int64", "complex64"),
    "float32": ("bfloat16", "float16", "float64", "int64", "complex128"),
    "int8": _REAL,
    "int32": _REAL,
    "bool": _REAL,
    "complex64": ("complex64", "complex128"),
}
"""The dtypes of inputs, each with the values of ``dtype=``."""

_WITHOUT_DIMENSION: Mapping[str, Callable[..., torch.Tensor]] = {
    "sum": lambda x, dtype, *dim: x.sum(*dim, dtype=dtype),
    "nansum": lambda x, dtype, *dim: x.nansum(*dim, dtype=dtype),
    "mean": lambda x, dtype, *dim: x.mean(*dim, dtype=dtype),
    "nanmean": lambda x, dtype, *dim: x.nanmean(*dim, dtype=dtype),
    "prod": lambda x, dtype, *dim: x[:2, :2].prod(*dim, dtype=dtype),
    "vector_norm": lambda x, dtype, *dim: torch.linalg.vector_norm(x, 2, *(dim or (None,)), dtype=dtype),
    "vector_norm_of_order_1": lambda x, dtype, *dim: torch.linalg.vector_norm(x, 1, *(dim or (None,)), dtype=dtype),
    "norm": lambda x, dtype, *dim: torch.norm(x, 2, *(dim or (None,)), dtype=dtype),
}
_ALONG_A_DIMENSION: Mapping[str, Callable[..., torch.Tensor]] = {
    "cumsum": lambda x, dtype, dim, *_: x.cumsum(dim, dtype=dtype),
    "cumprod": lambda x, dtype, dim, *_: x[:2, :2].cumprod(dim, dtype=dtype),
    "softmax": lambda x, dtype, dim, *_: (x % 7).softmax(dim, dtype=dtype),
    "log_softmax": lambda x, dtype, dim, *_: (x % 7).log_softmax(dim, dtype=dtype),
    "softmin": lambda x, dtype, dim, *_: torch.nn.functional.softmin(x % 7, dim, dtype=dtype),
}
_OF_MATRICES: Mapping[str, Callable[..., torch.Tensor]] = {
    "matrix_norm": lambda x, dtype, *_: torch.linalg.matrix_norm(x, dtype=dtype),
    "matrix_norm_of_order_1": lambda x, dtype, *_: torch.linalg.matrix_norm(x, 1, dtype=dtype),
    "norm_of_two_dimensions": lambda x, dtype, *_: torch.norm(x, 2, [0, 1], dtype=dtype),
}
CALLS = {**_WITHOUT_DIMENSION, **_ALONG_A_DIMENSION, **_OF_MATRICES}
"""Calls by name. Each takes a tensor and a dtype. Those of ``_WITHOUT_DIMENSION`` and ``_ALONG_A_DIMENSION`` also take a dimension and
``keepdim``. Those of ``_WITHOUT_DIMENSION`` can be called without a dimension."""


def _dimensions(name: str) -> Iterator[tuple[Any, ...]]:
    if name not in _ALONG_A_DIMENSION:
        yield ()
    if name not in _OF_MATRICES:
        yield from ((0,), (-1, True))


def _numbers(source: torch.dtype, target: torch.dtype) -> torch.Tensor:
    """Return a matrix with 3 rows of 80 numbers.

    If ``target`` is not float16, sums of rows and products exceed the range of ``source``, or the range of float16 if that is smaller.
    In that case, about half of the float32 numbers are not integers. If ``target`` is float16, sums and products are in its range.
    """
    numbers = torch.arange(3 * 80).view(3, 80) * 37 % 101
    if source is torch.bool:
        return numbers % 3 > 0
    if source is torch.int8 or target is torch.float16:
        return (numbers % 16 + (1 if target is torch.float16 else 100)).to(source)
    if source is torch.int32:
        return (numbers * 1_000_003 + 40_000).to(source)
    return ((numbers + 10) * (25.5 - 12j if source is torch.complex64 else 25.5)).to(source)


def check_accumulating_dtypes(subject: Subject, name: str) -> None:
    """Compare the results of ``CALLS[name]`` with those on the CPU, for all combinations of ``_SOURCES``. Differences are recorded in the
    subject."""
    for source, targets in _SOURCES.items():
        for target, dim in itertools.product(targets, _dimensions(name)):
            chosen = getattr(torch, target)
            x = _numbers(getattr(torch, source), chosen)
            with subject.sample(f"{name} of {source}, dtype={target}, {dim}", {"name": name, "dtype": source, "target": target}):
                compare_call(subject, lambda x, dtype, dim=dim: CALLS[name](x, dtype, *dim), (x, chosen), num_terms=x.numel())
