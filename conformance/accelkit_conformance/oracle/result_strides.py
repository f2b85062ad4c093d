"""Strides of the results of pointwise operators, and calls with expanded arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.layouts import channels_last, permuted_tensors
from accelkit_conformance.oracle.recorded_calls import recorded_call
from accelkit_conformance.oracle.sample_transfer import to_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_result_strides(subject: Subject, name: str) -> None:
    """Compare the results of a pointwise operator, and their strides, with those on the CPU, for operands in several memory layouts.

    Differences are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the operator needs.
    """
    op = opdb.operators()[name]
    kwargs = next(opdb.samples(op, "float32", 1)).kwargs
    for description, operands in _operands(opdb.num_arguments(op)):
        require_dtypes(subject, lambda: op(*operands, **kwargs))  # noqa: B023
        with subject.sample(f"{name}, {description}", {"name": name, "layout": description}):
            compare_call(subject, lambda *given: op(*given, **to_device(kwargs, given[0].device)), operands, strides=True)


def _operands(count: int) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    """Yield pairs of a description and a tuple of ``count`` operands (1 or 2).

    The operands have several memory layouts, which the descriptions name. The values are between 0.2 and 0.9, which is in the domain of
    most pointwise operators.
    """
    for layout, numbers in permuted_tensors(torch.float32):
        one = numbers.mul(0.7 / 120).add(0.2)
        other = one.flip(0) if count == 2 else one
        if count == 1:
            yield layout, (one,)
            continue
        yield f"{layout}, both", (one, torch.empty_strided(one.shape, one.stride()).copy_(other))
        yield f"{layout} and contiguous", (one, other.contiguous())
        yield f"contiguous and {layout}", (other.contiguous(), one)
        yield f"{layout} and a row", (one, one[..., :1, :].contiguous())
    images = channels_last(torch.linspace(0.2, 0.9, 120).view(2, 3, 4, 5))
    if count == 2:
        yield "channels_last and one number per channel", (images, torch.tensor([0.3, 0.5, 0.7]).view(3, 1, 1))
        yield "expanded and channels_last", (torch.tensor([0.3, 0.5]).view(2, 1, 1, 1).expand(2, 3, 4, 5), images)
    else:
        yield "sliced", (images[:, 1:, ::2],)


def check_expanded_arguments(subject: Subject, overload: str) -> None:
    """Repeat the recorded call to an overload (see ``recorded_calls``) with an argument whose first or last dimension is expanded from one
    element.

    In each call, one floating-point tensor is expanded. The results are compared with those on the CPU. Calls that the CPU rejects are left
    out. Differences are recorded in the subject. Does nothing for linear algebra, ``_embedding_bag`` and ``_scaled_mm``.

    Raises:
        NotSupported: If the device lacks a dtype that the recorded call needs, or if no call was recorded (see ``recorded_call``).
    """
    _, func, args, kwargs = recorded_call(overload)
    require_dtypes(subject, lambda: func(*args, **kwargs))
    if overload.startswith(("linalg", "_linalg", "cholesky", "triangular", "geqrf", "ormqr", "lu_", "_embedding_bag", "_scaled_mm")):
        return  # expanded matrices are singular; the last two kernels do not check the layout of their arguments
    for description, given in _expanded(args, kwargs):
        with subject.sample(f"{overload}, {description}", {"name": overload}):
            compare_call(subject, lambda args, kwargs: func(*args, **kwargs), given, num_terms=16)


def _expanded(args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    every: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, every.append, (args, kwargs))
    for number, chosen in enumerate(every):
        if chosen.layout is not torch.strided or not chosen.is_floating_point():
            continue
        for dim in {0, chosen.ndim - 1}:
            if chosen.ndim and chosen.shape[dim] > 1:
                wide = chosen.narrow(dim, 0, 1).expand(chosen.shape)
                yield (
                    f"argument {number} expanded along dimension {dim}",
                    tree_map_only(torch.Tensor, lambda one, chosen=chosen, wide=wide: wide if one is chosen else one, (args, kwargs)),
                )
