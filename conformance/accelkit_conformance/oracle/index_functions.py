"""Functions that read or write by index, called with many kinds of index: 0-d, empty, repeated, or a row of a table of indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.compared_calls import compare_call

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

DTYPES = ("float32", "int64", "float16", "bool", "complex64")
_NUM_ROWS, _NUM_COLUMNS = 40, 3
_TABLE = (torch.arange(150) * 7 % _NUM_ROWS).view(3, 50)

_KINDS: dict[str, torch.Tensor] = {
    "0-d": torch.tensor(3),
    "one": torch.tensor([7]),
    "empty": torch.tensor([], dtype=torch.int64),
    "repeated": torch.arange(100) % 37,
    "descending": torch.arange(_NUM_ROWS).flip(0),
    "negative": -1 - torch.arange(_NUM_ROWS),
    "strided": torch.arange(2 * _NUM_ROWS)[::2] % _NUM_ROWS,
    "expanded": torch.tensor([5]).expand(33),
    "row 0 of a table": _TABLE[0],
    "row 1 of a table": _TABLE[1],
    "column of a table": _TABLE[:, 1],
}
"""Indices of the rows of a matrix, by name. Some are views of a longer tensor."""


def _values(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return a row of values for each index. Equal indices have equal rows, so that the order in which rows are written does not matter."""
    columns = torch.arange(_NUM_COLUMNS, device=x.device)
    return ((index.reshape(-1, 1) * 3 + columns) % 11).to(x.dtype)


def _wide(index: torch.Tensor) -> torch.Tensor:
    """Return a matrix whose columns are the given indices."""
    return index.reshape(-1, 1).expand(-1, _NUM_COLUMNS)


_Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_READING: dict[str, _Call] = {
    "embedding": lambda x, index: F.embedding(index, x),
    "gather": lambda x, index: x.gather(0, _wide(index)),
    "getitem": lambda x, index: x[index],
    "getitem_of_two_dimensions": lambda x, index: x[index, index % _NUM_COLUMNS],
    "index_select": lambda x, index: x.index_select(0, index),
    "index_select_of_columns": lambda x, index: x.t().index_select(1, index),
    "take": lambda x, index: x.take(index),
    "take_along_dim": lambda x, index: x.take_along_dim(_wide(index), 0),
}
_WRITING: dict[str, _Call] = {
    "index_add_": lambda x, index: x.index_add_(0, index, _values(x, index)),
    "index_add__of_columns": lambda x, index: x.t().index_add_(1, index, _values(x, index).t()),
    "index_copy_": lambda x, index: x.index_copy_(0, index, _values(x, index)),
    "index_fill_": lambda x, index: x.index_fill_(0, index, 1),
    "index_put_": lambda x, index: x.index_put_((index,), _values(x, index).view(*index.shape, _NUM_COLUMNS)),
    "index_put__accumulating": lambda x, index: x.index_put_((index,), _values(x, index).view(*index.shape, _NUM_COLUMNS), accumulate=True),
    "index_put__of_a_row": lambda x, index: x.index_put_((index,), x[0].clone(), accumulate=True),
    "index_reduce_": lambda x, index: x.index_reduce_(0, index, _values(x, index), "amax"),
    "put_": lambda x, index: x.put_(index, _values(x, index)[:, 0].reshape(index.shape)),
    "put__accumulating": lambda x, index: x.put_(index, _values(x, index)[:, 0].reshape(index.shape), accumulate=True),
    "scatter_": lambda x, index: x.scatter_(0, _wide(index), _values(x, index)),
    "scatter__of_a_number": lambda x, index: x.scatter_(0, _wide(index), 1),
    "scatter__of_one_column": lambda x, index: x.view(3, 40, 1).scatter_(1, index.reshape(1, -1, 1).expand(3, -1, 1), 1),
    "scatter_add_": lambda x, index: x.scatter_add_(0, _wide(index), _values(x, index)),
    "scatter_reduce_": lambda x, index: x.scatter_reduce_(0, _wide(index), _values(x, index), "amax"),
    "setitem": lambda x, index: x.__setitem__(index, 1) or x,  # type: ignore[func-returns-value]
}
CALLS: dict[str, _Call] = {**_READING, **_WRITING}
"""Functions by name. Each takes a matrix and the indices of some of its rows, and returns a tensor."""


def check_index_functions(subject: Subject, name: str) -> None:
    """Call ``CALLS[name]`` with each kind of index, and compare the results with those on the CPU.

    The indices are int64 and int32, and the matrix has each of ``DTYPES``. Calls that the CPU rejects, and calls that need a dtype which
    the device lacks, are left out. Differences are recorded in the subject.
    """
    numbers = torch.arange(_NUM_ROWS * _NUM_COLUMNS).view(_NUM_ROWS, _NUM_COLUMNS) * 5 % 13
    for dtype in DTYPES:
        if name in ("index_reduce_", "scatter_reduce_") and dtype in ("bool", "complex64"):
            continue  # CUDA has no kernels for these dtypes
        x = (numbers % 2 if dtype == "bool" else numbers).to(getattr(torch, dtype))
        for kind, index in _KINDS.items():
            for index_dtype in (torch.int64, torch.int32):
                is_table = kind.endswith("table")
                given = _as_int32(index) if index_dtype is torch.int32 and is_table else index.to(index_dtype)
                with subject.sample(f"{name}, {dtype}, {kind}, {index_dtype}", {"name": name, "dtype": dtype, "kind": kind}):
                    compare_call(subject, CALLS[name], (x, given), is_pure=name in _READING)


def _as_int32(view: torch.Tensor) -> torch.Tensor:
    """Return the view of ``_TABLE.int()`` that corresponds to a view of ``_TABLE``."""
    return _TABLE.to(torch.int32).as_strided(view.shape, view.stride(), view.storage_offset())
