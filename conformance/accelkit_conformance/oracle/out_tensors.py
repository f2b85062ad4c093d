"""Operators that write their results into tensors of the same dtype, which are passed as ``out=``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from accelkit_conformance.oracle import opdb, used_memory
from accelkit_conformance.oracle.lacking_dtypes import possible_samples
from accelkit_conformance.oracle.op_compare import compare_forward
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_out_tensors(subject: Subject, name: str, dtype: str) -> None:
    """Call an operator with ``out=`` tensors, and compare these tensors with the results on the CPU.

    For each sample, the operator is called twice: with tensors that have the shapes of the results and hold NaN or another number, and with
    empty tensors. Differences are recorded in the subject.

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
