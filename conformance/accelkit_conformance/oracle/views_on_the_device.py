"""Recorded calls whose arguments are views that were made on the device by view operators, one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from accelkit_conformance.oracle.empty_arguments import UNCHECKED
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.layouts import GUARD, canary
from accelkit_conformance.oracle.op_compare import compare_forward
from accelkit_conformance.oracle.overloads import in_place_overload
from accelkit_conformance.oracle.recorded_calls import recorded_call
from accelkit_conformance.oracle.sample_transfer import tensors

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_View = Callable[[torch.Tensor], torch.Tensor]


def _row_of_a_matrix(one: torch.Tensor) -> tuple[torch.Tensor, _View]:
    """Return a matrix of two rows, and a function that reshapes its second row to the shape of ``one``."""
    base = torch.full((2, one.numel()), canary(one.dtype), dtype=one.dtype)
    base[1] = one.reshape(-1)
    return base, lambda base: base[1].reshape(one.shape)


def _first_elements(one: torch.Tensor) -> tuple[torch.Tensor, _View]:
    """Return a longer vector, and a function that gives its first elements the shape of ``one``."""
    base = torch.full((one.numel() + GUARD,), canary(one.dtype), dtype=one.dtype)
    base[: one.numel()] = one.reshape(-1)
    return base, lambda base: base[: one.numel()].view(one.shape)


def _slice_of_a_transposed_slice(one: torch.Tensor) -> tuple[torch.Tensor, _View]:
    """Return a larger tensor, and a function that returns a slice of a transposed slice of it."""
    turned = one.reshape(one.shape or (1,)).transpose(0, -1)
    base = torch.full([length + 3 for length in turned.shape], canary(one.dtype), dtype=one.dtype)

    def view(base: torch.Tensor) -> torch.Tensor:
        for dim in range(base.ndim - 1):
            base = base.narrow(dim, 1, turned.shape[dim])
        found = base[..., 1:].transpose(0, -1)[: turned.shape[-1]]
        if base.ndim == 1:
            found = base[1:][: turned.shape[0]]
        return found if one.ndim else found[0]

    view(base).copy_(one)
    return base, view


def _element(one: torch.Tensor) -> tuple[torch.Tensor, _View]:
    """Return a vector of seven elements, and a function that returns its element 3, a 0-d tensor with the first value of ``one``."""
    base = torch.full((7,), canary(one.dtype), dtype=one.dtype)
    base[3] = one.reshape(-1)[0]
    return base, lambda base: base[3]


VIEWS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, _View]]] = {
    "a row of a matrix": _row_of_a_matrix,
    "the first elements": _first_elements,
    "a slice of a transposed slice": _slice_of_a_transposed_slice,
    "an element": _element,
}
"""Functions by name. Each takes a tensor on the CPU. It returns a larger tensor, whose other elements are canaries, and a function that
returns the view of this tensor with the values of the given one."""


def check_views_on_the_device(subject: Subject, overload: str) -> None:
    """Repeat the recorded call to an overload, and its in-place form, with views of larger tensors that are made on the device.

    The results, and the larger tensors after the call, are compared with those on the CPU. Calls that the CPU rejects are left out,
    and so are all calls to an overload that ``UNCHECKED`` matches. Differences are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the recorded call needs.
    """
    op, func, *recorded = recorded_call(overload)
    require_dtypes(subject, lambda: func(*recorded[0], **recorded[1]))
    given = [one for one in tensors(recorded) if one.layout is torch.strided and one.numel()]
    if UNCHECKED.search(overload) or not given:
        return
    in_place = in_place_overload(func)
    for description, make in VIEWS.items():
        made = [make(one) for one in given]

        def call(bases: list[torch.Tensor], called: Any = func, made: Any = made) -> Any:
            views = {id(one): view(base) for one, base, (_, view) in zip(given, bases, made, strict=True)}
            args, kwargs = tree_map_only(
                torch.Tensor, lambda one: views[id(one)] if id(one) in views else one.to(bases[0].device), tuple(recorded)
            )
            return called(*args, **kwargs)

        bases: Any = ([base for base, _ in made], (), {})
        with subject.sample(f"{overload}, {description}", {"name": overload, "layout": description}):
            compare_forward(subject, op, bases, call, call, inputs_stay=True)
            if in_place is not None:

                def written(bases: list[torch.Tensor], call: Any = call) -> Any:
                    call(bases, in_place)
                    return bases

                compare_forward(subject, op, bases, written, written)
