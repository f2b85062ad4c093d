"""Calls to the operators of torch's ``op_db`` with inputs that are not contiguous."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import possible_samples
from accelkit_conformance.oracle.layouts import all_arranged
from accelkit_conformance.oracle.op_compare import compare_forward
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LAYOUTS = (
    "strided", "offset", "transposed", "narrowed", "others narrowed", "indexed", "channels_last offset", "channels_last slice",
)  # fmt: skip
_OTHER_DTYPES = ("int64", "int16", "bool", "bfloat16", "complex64")
_IN_OTHER_DTYPES = ("strided", "others narrowed")


def check_noncontiguous(subject: Subject, name: str) -> None:
    """Compare the results of an operator for inputs in several memory layouts with the results on the CPU.

    In float32, up to four samples are used, the first one in more layouts than the others. In other dtypes, one sample is used, unless the
    results are wrong for contiguous inputs too. Differences are recorded in the subject.
    """
    op = opdb.operators()[name]
    for dtype in ("float32", *_OTHER_DTYPES):
        if not opdb.supports(op, dtype) or subject.lacks(dtype):
            continue
        for given, layouts in _cases(subject, op, dtype):
            if dtype != "float32" and not _is_right(subject, op, given):
                continue
            for layout in layouts:
                changed = _arranged(given, dtype, layout)
                with subject.sample(f"{layout} {describe_sample(changed)}", facts_of(changed, dtype)):
                    compare_forward(subject, op, changed, is_variant=True, inputs_stay=True)


def check_in_inference_mode(subject: Subject, name: str) -> None:
    """Compare the results of an operator under ``inference_mode``, for transposed inputs that were made outside of it, with the results on
    the CPU. Up to four samples are used. Differences are recorded in the subject."""
    op = opdb.operators()[name]

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode():
            return op(*args, **kwargs)

    for given, _ in _cases(subject, op, "float32"):
        changed = _arranged(given, "float32", "transposed")
        with subject.sample(describe_sample(changed), facts_of(changed, "float32")):
            compare_forward(subject, op, changed, call)


def _arranged(given: Any, dtype: str, layout: str) -> Any:
    """Return the sample with the tensors of this dtype in another memory layout."""
    movable = _movable(given, dtype)
    arranged = iter(all_arranged(movable, layout))
    return tree_map(lambda one: next(arranged) if any(one is it for it in movable) else one, given)


def _is_right(subject: Subject, op: Any, given: Any) -> bool:
    """Return whether the operator gives the right results for contiguous inputs. If not, a test of ``operators/forward`` reports it."""
    try:
        compare_forward(subject, op, given, is_variant=True)
    except Exception:
        return False
    return True


def _cases(subject: Subject, op: Any, dtype: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield samples of the operator, each with the layouts of its inputs.

    In float32, these are the first two samples and, among those with the most dimensions, the first one and the first one that has no
    arguments other than its input. A sample that fits several of these descriptions is yielded once. In other dtypes, only the first sample
    with the most dimensions is yielded.
    """
    every = possible_samples(subject, op, opdb.samples(op, dtype, 24))
    samples = [(one.input, one.args, one.kwargs) for one in every]
    samples = [one for one in samples if any(leaf.numel() > 1 for leaf in _movable(one, dtype))]
    most = max((_ndim(one, dtype) for one in samples), default=0)
    large = [one for one in samples if _ndim(one, dtype) == most]
    if dtype != "float32":
        yield from ((one, _IN_OTHER_DTYPES) for one in large[:1])
        return
    plain = [one for one in large if not one[1] and not one[2]]
    chosen = {id(one): one for one in (*samples[:2], *large[:1], *plain[:1])}
    for number, one in enumerate(chosen.values()):
        yield one, _LAYOUTS[: 3 if number else None]


def _movable(given: Any, dtype: str) -> list[torch.Tensor]:
    """Return the tensors of a sample that have this dtype and whose memory layout can be changed."""
    return [
        one
        for one in tensors(given)
        if one.layout is torch.strided and one.numel() and not one.is_conj() and not one.is_neg() and one.dtype is getattr(torch, dtype)
    ]


def _ndim(given: Any, dtype: str) -> int:
    return max(one.ndim for one in _movable(given, dtype))
