"""The order of equal elements after a stable sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.known_differences import may_be_missing

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

STABLE: dict[str, Callable[[torch.Tensor, int, bool], torch.Tensor]] = {
    "sort": lambda x, dim, descending: torch.sort(x, dim=dim, descending=descending, stable=True).indices,
    "argsort": lambda x, dim, descending: torch.argsort(x, dim=dim, descending=descending, stable=True),
    "out": lambda x, dim, descending: (
        torch.sort(
            x, dim=dim, descending=descending, stable=True, out=(torch.empty_like(x), torch.empty_like(x, dtype=torch.int64))
        ).indices
    ),
}
"""Stable sorts, by name. Each takes a tensor, a dimension and a flag for descending order, and returns the indices of the elements."""


def check_stable_order(subject: Subject, name: str, dtype: str) -> None:
    """Stably sort tensors with many equal elements, and compare the indices that the device returns with the CPU's.

    Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the sort in ``STABLE``.
        dtype: The dtype of the elements.
    """
    sort = STABLE[name]
    for here in _tensors(getattr(torch, dtype)):
        has_negative_nan = here.is_floating_point() and bool((here.isnan() & here.signbit()).any())
        for dim in range(here.ndim):
            for descending in (False, True):
                order = "descending" if descending else "ascending"
                facts = {"dim": dim, "length": len(here), "dtype": dtype, "descending": descending, "has_negative_nan": has_negative_nan}
                with subject.sample(f"{name}, shape {list(here.shape)}, dimension {dim}, {order}", facts):
                    with may_be_missing(opdb.operators()["sort"], here):
                        found = sort(here.to(subject.device), dim, descending)
                    subject.assert_on_device(found)
                    num_wrong = int((found.cpu() != sort(here, dim, descending)).sum())
                    assert not num_wrong, f"{num_wrong} of {found.numel()} indices are wrong"


def _tensors(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    for length in (2, 5, 33, 300, 5000):
        values = torch.randint(0, 4, (length, 3), generator=generator)
        yield values.to(dtype)
        if dtype.is_floating_point:
            with_nan = values.to(dtype).masked_fill(values == 1, float("nan"))
            yield with_nan
            yield with_nan.where(values != 2, with_nan.new_tensor(float("nan")).neg())  # NaN with the sign bit, as 0/0 gives it on x86
