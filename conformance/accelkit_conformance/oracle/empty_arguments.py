"""Recorded calls in which a dimension of one argument, or of several arguments, has length 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.overloads import in_place_overload
from accelkit_conformance.oracle.recorded_calls import recorded_call
from accelkit_conformance.oracle.sample_transfer import tensors

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

# Calls that only torch itself is expected to make, so that their CPU kernels do not check the sizes of their arguments, and calls whose
# results for empty arguments are not defined.
UNCHECKED = re.compile(
    r"^_|_backward|segment_reduce|transformer|embedding_bag|batch_norm|_scaled_mm|unfold_backward|hash_tensor|linalg|cholesky|_solve|geqrf"
    r"|ormqr|lu_unpack|unique|hist|fractional|multilabel|multi_margin|is_set_to"
)


_NO_VALUE = "Expected reduction dim"
"""A part of the error text of reductions that have no value for no elements, such as the maximum. torch raises it for every device."""


def check_empty_arguments(subject: Subject, overload: str) -> None:
    """Repeat the recorded call to an overload with dimensions of its arguments shortened to length 0.

    Each dimension of each tensor is shortened alone. Each dimension of the first tensor is also shortened together with the corresponding
    dimensions (counted from the last) of the other tensors, if they have the same length.

    The results of each call, and of the in-place form of the call, are compared with those on the CPU. Reductions that have no value
    for no elements, such as the maximum, must raise an error. Other calls that the CPU rejects are left out, and so are all calls to an
    overload that ``UNCHECKED`` matches. Differences are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the recorded call needs.
    """
    _, func, args, kwargs = recorded_call(overload)
    require_dtypes(subject, lambda: func(*args, **kwargs))
    if UNCHECKED.search(overload):
        return
    in_place = in_place_overload(func)
    for description, given in _with_empty(args, kwargs):
        with subject.sample(f"{overload}, {description}", {"name": overload}):
            compare_call(subject, lambda args, kwargs: func(*args, **kwargs), given, must_raise=_NO_VALUE)
            if in_place is not None:
                compare_call(subject, lambda args, kwargs: in_place(*args, **kwargs), given, is_pure=False)


def _with_empty(args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    every = tensors((args, kwargs))
    for number, chosen in enumerate(every):
        if chosen.layout is not torch.strided or not chosen.numel():
            continue
        for dim, length in enumerate(chosen.shape):
            yield (
                f"dimension {dim} of argument {number} is empty",
                tree_map_only(
                    torch.Tensor, lambda one, chosen=chosen, dim=dim: one.narrow(dim, 0, 0) if one is chosen else one, (args, kwargs)
                ),
            )
            back = chosen.ndim - dim

            def shorten(one: torch.Tensor, back: int = back, length: int = length) -> torch.Tensor:
                has_length = one.layout is torch.strided and one.ndim >= back and one.shape[-back] == length
                return one.narrow(one.ndim - back, 0, 0) if has_length else one

            if number == 0 and len(every) > 1:
                yield f"dimension {dim} of several arguments is empty", tree_map_only(torch.Tensor, shorten, (args, kwargs))
