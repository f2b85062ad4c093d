"""Calls on views with more than 2**31 elements that overlap in memory, so that they need little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch.utils._pytree import tree_leaves

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.sample_transfer import has_memory
from accelkit_conformance.oracle.tolerance import check_result
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_ROWS, _COLUMNS = 70_000, 40_000


def _view(device: Any) -> torch.Tensor:
    """Return a matrix of 2.8e9 elements. The element in row i and column j is i + j. Elements with the same sum i + j share memory."""
    return torch.arange(_ROWS + _COLUMNS, dtype=torch.int32, device="cpu").to(device).as_strided((_ROWS, _COLUMNS), (1, 1))


def _indices(device: Any) -> torch.Tensor:
    """Return the numbers of four rows. Three of them begin after element 2**31 of the matrix, counted by rows."""
    return torch.tensor([0, 60_000, 53_688, 69_999]).to(device)


def _written(device: Any) -> torch.Tensor:
    """Write into a few elements of a view, and return the elements of its base that may have changed."""
    base = torch.zeros(_ROWS + _COLUMNS, device=device)
    x = base.as_strided((_ROWS, _COLUMNS), (1, 1))
    x[60_000, ::20_000] = 3
    x[69_999].narrow(0, 39_000, 7).copy_(torch.arange(7.0).to(device))
    x[55_000:55_002, 39_999].fill_(5)
    return base


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "amax_of_a_part": lambda x, i: x[60_000:60_003, 39_000:].amax(1),
    "clone_of_a_part": lambda x, i: x[60_000:60_020, 39_990:].clone(),
    "diagonal": lambda x, i: x.diagonal(-59_999)[::9_000].clone(),
    "embedding": lambda x, i: F.embedding(i, x)[:, ::13_001],
    "gather": lambda x, i: x.gather(1, i.view(1, -1) % _COLUMNS)[:, 1:],
    "gather_of_rows": lambda x, i: x.gather(0, i.view(-1, 1)),
    "getitem": lambda x, i: x[i][:, ::13_001],
    "getitem_of_columns": lambda x, i: x[:, i % _COLUMNS][::20_001],
    "getitem_of_two_dimensions": lambda x, i: x[i, i // 2],
    "index_select": lambda x, i: x.index_select(0, i)[:, ::13_001],
    "index_select_of_columns": lambda x, i: x[-9:].index_select(1, i % _COLUMNS),
    "select": lambda x, i: (x[-1, -1].clone(), x[60_000, ::13_001].clone(), x[::20_001, 39_999].clone()),
    "sum_of_a_part": lambda x, i: x[::10_000, 39_999].sum(),
    "take_along_dim": lambda x, i: x.take_along_dim(i.view(-1, 1), 0),
    "to_the_cpu": lambda x, i: (x[69_000:69_003, 39_990:].cpu(), x[60_000:, 0].cpu()[::2_000]),
    "writing": lambda x, i: _written(x.device),
}
"""Functions by name. Each takes a matrix of more than 2**31 elements and the numbers of some rows, and returns small tensors."""


def check_huge_views(subject: Subject, name: str) -> None:
    """Compare the results of ``CALLS[name]`` on the device with those on the CPU.

    Raises:
        AssertionError: If a result differs.
        NotSupported: If the device lacks a dtype that the call needs, or if its tensors have no storage with an address. The device may
            then copy the elements of a view.
    """
    if not has_memory(torch.ones(1, device=subject.device)):
        raise NotSupported("tensors of the device have no storage with an address")
    call, cpu = CALLS[name], torch.device("cpu")
    require_dtypes(subject, lambda: call(_view(cpu), _indices(cpu)))
    found, expected = (tree_leaves(call(_view(device), _indices(device))) for device in (subject.device, cpu))
    for mine, theirs in zip(found, expected, strict=True):
        check_result(mine, theirs, None, cpu if name == "to_the_cpu" else subject.device)
