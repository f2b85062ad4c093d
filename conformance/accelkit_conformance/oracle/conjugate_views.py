"""Comparison of calls on the device with the same calls on the CPU, for tensors that have the conjugate or the negative bit set.

torch conjugates or negates the elements of such a tensor only when it reads them.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from accelkit_conformance.oracle import conjugate_calls, conjugate_writes
from accelkit_conformance.oracle.conjugate_calls import CPU, Call, numbers
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.oracle.tolerance import check_form

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_View = Callable[[torch.Tensor], torch.Tensor]

_VIEWS: dict[str, _View] = {
    "conj()": lambda x: x.conj(),
    "t().conj()": lambda x: x.t().conj(),
    "mH": lambda x: x.mH,
    "[1:, 1:].conj()": lambda x: x[1:, 1:].conj(),
    "[::2, ::2].conj()": lambda x: x[::2, ::2].conj(),
    "[1].conj()": lambda x: x[1].conj(),
    "[2, 1].conj()": lambda x: x[2, 1].conj(),
    "[:0].conj()": lambda x: x[:0].conj(),
    "conj().conj()": lambda x: x.conj().conj(),
    "conj().imag": lambda x: x.conj().imag,
    "t().conj()[1:, 1:].imag": lambda x: x.t().conj()[1:, 1:].imag,
    "[1].conj().imag": lambda x: x[1].conj().imag,
}
"""Views of a complex tensor of shape (4, 4). All but ``conj().conj()`` have the conjugate or the negative bit set."""
CALLS: Mapping[str, Mapping[str, Call]] = {
    "resolving": conjugate_calls.RESOLVING,
    "reading": conjugate_calls.READING,
    "converting": conjugate_calls.CONVERTING,
    "copying": conjugate_calls.COPYING,
    "indexing": conjugate_writes.INDEXING,
    "writing": conjugate_writes.WRITING,
    "products": conjugate_writes.PRODUCTS,
    "saving": conjugate_calls.SAVING,
    "gradients": conjugate_calls.GRADIENTS,
}
"""Groups of calls by name."""
_MUST_RESOLVE = ("resolve_conj", "resolve_neg", "conj_physical")


def check_conjugate_views(subject: Subject, group: str) -> None:
    """Make calls with views on the device and on the CPU, and compare the results, the views and their bases after the calls.

    The numbers are small integers, so the results must be equal. A call is left out if the CPU rejects it, or if it needs a dtype that the
    device lacks. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        group: The name of the calls in ``CALLS``.
    """
    dtypes = ("complex64", "complex128") if subject.capabilities.can("dtype.complex128") else ("complex64",)
    for dtype, (view_name, view), (name, call) in itertools.product(dtypes, _VIEWS.items(), CALLS[group].items()):
        program = functools.partial(_results, call, view, getattr(torch, dtype), is_differentiated=group == "gradients")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # conversions to real dtypes discard the imaginary part
            try:
                expected = program(CPU)
            except (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
                continue
            if lacking_dtypes(subject, functools.partial(program, CPU)) or not _has_dtypes(subject, expected):
                continue
            with subject.sample(f"{name} of x.{view_name}, {dtype}", {"name": name, "view": view_name, "dtype": dtype}):
                _compare(subject, name, program(subject.device), expected)


def _has_dtypes(subject: Subject, results: list[Any]) -> bool:
    """Return whether the accelerator declares the dtypes of all results. Dtypes that the check itself requires count as declared."""
    names = {str(one.dtype).removeprefix("torch.") for one in tensors(results)} - {"complex64", "float32"}
    return all(subject.capabilities.can(f"dtype.{name}") for name in names)


def _results(call: Call, view: _View, dtype: torch.dtype, device: torch.device, *, is_differentiated: bool) -> list[Any]:
    """Create a complex tensor (the base), and call ``call`` with a view of it.

    Returns:
        The leaves of the results, the view after the call, and the base after the call. If ``is_differentiated`` is True, the gradient of a
        weighted sum of the results takes the place of the base.
    """
    base = numbers(torch.empty(4, 4, dtype=dtype)).to(device).requires_grad_(is_differentiated)
    v = view(base)
    results = tree_leaves(call(v))
    if not is_differentiated:
        return [*results, v, base]
    loss = torch.stack([(one * numbers(one.detach())).sum() for one in results]).sum()
    return [*results, v, *torch.autograd.grad(loss.real, base)]


def _compare(subject: Subject, name: str, found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected), f"gave {len(found) - 2} results, not {len(expected) - 2}"
    parts = [*(["the result"] * (len(found) - 2)), "the view after the call", "the base after the call"]
    for part, mine, theirs in zip(parts, found, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert mine == theirs, f"{part} is {mine!r}, not {theirs!r}"
            continue
        check_form(mine, theirs, subject.device)
        here = mine.detach().cpu()
        assert torch.equal(here, theirs.detach()), f"{part} is {here.tolist()}, not {theirs.tolist()}"
        if part == "the result" and name.removeprefix("torch.") in _MUST_RESOLVE:
            assert max(mine.is_conj(), torch.is_conj(mine)) <= theirs.is_conj(), f"the conjugate bit of {part} is set"
            assert max(mine.is_neg(), torch.is_neg(mine)) <= theirs.is_neg(), f"the negative bit of {part} is set"
