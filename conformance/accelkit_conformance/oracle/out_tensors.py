"""Operators that write their results into tensors of the same dtype, which are passed as ``out=``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle import opdb, used_memory
from accelkit_conformance.oracle.lacking_dtypes import possible_samples
from accelkit_conformance.oracle.op_compare import compare_forward, place
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_out_tensors(subject: Subject, name: str, dtype: str) -> None:
    """Call an operator with ``out=`` tensors, and compare these tensors with the results on the CPU.

    For each sample, the operator is called twice: with tensors that have the shapes of the results and hold NaN or another number, and with
    empty tensors. In addition, the operator is called with an int64 tensor for each floating-point result (see :func:`_check_refusal`).
    Failures are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the operator in torch's ``op_db``.
        dtype: The dtype of its operands.

    Raises:
        NotSupported: If each sample needs a dtype that the device lacks.
    """
    op = opdb.operators()[name]
    for sample in possible_samples(subject, op, opdb.samples(op, dtype, min(subject.most_samples, 8))):
        given = (sample.input, sample.args, sample.kwargs)
        shapes = op(sample.input, *sample.args, **sample.kwargs)
        if not tensors(shapes):
            continue

        def call(first: Any, *args: Any, make: Callable[[Any], Any], shapes: Any = shapes, **kwargs: Any) -> Any:
            place = next((leaf.device for leaf in tensors((first, args, kwargs))), kwargs.get("device"))
            target = tree_map(lambda one: make(one.to(place)) if isinstance(one, torch.Tensor) else one, shapes)
            result = op(first, *args, out=target, **kwargs)
            assert all(mine is given for mine, given in zip(tensors(result), tensors(target), strict=True)), "out= was not returned"
            return target

        with subject.sample(describe_sample(given), facts_of(given, dtype)):
            for make in (lambda one: torch.full_like(one, used_memory.unwritten(one.dtype)), lambda one: one.new_empty(0)):
                compare_forward(subject, op, given, functools.partial(call, make=make))
            if not opdb.is_skipped(op, "test_out") and not subject.lacks("int64"):
                _check_refusal(subject, op, given, tree_map(_as_integers, shapes))


def _as_integers(result: Any) -> Any:
    is_float = isinstance(result, torch.Tensor) and result.is_floating_point()
    return torch.zeros_like(result, dtype=torch.int64) if is_float else result


def _check_refusal(subject: Subject, op: Any, given: Any, targets: Any) -> None:
    """Check that an operator refuses to write floating-point results into integer tensors, if the CPU refuses it too.

    A call that the CPU refuses only because it does not implement a dtype is not made.

    Raises:
        AssertionError: If the call raises no error on the device.
    """

    def call(device: torch.device) -> None:
        first, args, kwargs = place(op, given, device)
        op(first, *args, out=tree_map(lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, targets), **kwargs)

    try:
        call(torch.device("cpu"))
    except (RuntimeError, TypeError) as error:
        if isinstance(error, NotImplementedError) or "not implemented for" in str(error):
            return
        with raises(subject, RuntimeError, TypeError, doing="out= of int64 for results of a floating-point dtype"):
            call(subject.device)
