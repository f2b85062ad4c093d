"""Comparison of the results of pointwise operators with those on the CPU, for special values such as NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.op_compare import compare_forward
from accelkit_conformance.oracle.reproducer import facts_of, program

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e30, -1e30, 1e-30, 3.0, 88.0, -104.0, 1e4)


def check_special_values(subject: Subject, name: str, dtype: str) -> None:
    """Compare the results of a pointwise operator for special values with the results on the CPU. An operator with two arguments is called
    with every pair of special values. Differences are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the operator needs.
    """
    op = opdb.operators()[name]
    values = torch.tensor(_SPECIAL, dtype=torch.float32).to(opdb.dtype_of(dtype))
    keywords = next(opdb.samples(op, dtype, 1)).kwargs if op.variant_test_name else {}  # such as rounding_mode="floor"
    given: Any = (values, (), keywords)
    if opdb.num_arguments(op) == 2:
        given = (values.repeat_interleave(len(values)), (values.repeat(len(values)),), keywords)
    require_dtypes(subject, lambda: op(given[0], *given[1], **given[2]))
    with subject.sample("special values", facts_of(given, dtype), lambda: program(subject, name, given, dtype=dtype)):
        compare_forward(subject, op, given, is_variant=True)
