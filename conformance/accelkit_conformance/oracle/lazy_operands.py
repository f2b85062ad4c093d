"""Operands that torch conjugates or negates only when they are read, such as the results of ``conj()`` and ``conj().imag``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import possible_samples
from accelkit_conformance.oracle.op_compare import compare_forward
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

NOT_CONJUGATED = (
    "to_sparse",
    "sparse.sampled_addmm",
    "sparse.mm",
    "to",
    "view_as_real",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "is_set_to",
)
"""Operators that are not called with lazy operands, because they reject such operands, because their results depend on the memory of an
operand, or because their results are uninitialised."""


def check_lazy_operands(subject: Subject, name: str, dtype: str) -> None:
    """Compare an operator's results on the device with those on the CPU, for operands with the conjugate or negative bit set.

    The bit is the conjugate bit if the dtype is complex, and the negative bit otherwise. It is set on all strided operands of the dtype. If
    there are several such operands, the operator is called again with the bit set on only the last of them.

    One sample is used, or two if the dtype is complex. A sample is skipped if none of its strided operands of the dtype has more than one
    element. Differences are recorded in the subject.
    """
    op, num_seen = opdb.operators()[name], 0
    for sample in possible_samples(subject, op, opdb.samples(op, dtype, 12)):
        given = (sample.input, sample.args, sample.kwargs)
        operands = [one for one in tensors(given) if _is_operand(one, dtype)]
        if not any(one.numel() > 1 for one in operands):
            continue
        num_seen += 1
        if num_seen > (2 if getattr(torch, dtype).is_complex else 1):
            return
        for which, chosen in {"all operands": operands, "the last operand": operands[-1:]}.items():
            if which != "all operands" and len(operands) < 2:
                continue

            def change(one: Any, chosen: list[torch.Tensor] = chosen) -> Any:
                return lazy(one) if any(one is operand for operand in chosen) else one

            changed = tree_map(change, given)
            with subject.sample(f"{which}, {describe_sample(given)}", facts_of(given, dtype)):
                compare_forward(subject, op, changed, is_variant=True)


def lazy(one: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is equal to ``one`` and has the conjugate or negative bit set.

    The bit is the conjugate bit if ``one`` is complex, and the negative bit otherwise. The memory of the returned tensor contains the
    conjugated or negated values. torch conjugates or negates them again when it reads the tensor.
    """
    if one.is_complex():
        return one.conj().resolve_conj().conj()
    return torch.complex(torch.zeros_like(one), -one).conj().imag


def _is_operand(one: torch.Tensor, dtype: str) -> bool:
    return one.layout is torch.strided and one.dtype is getattr(torch, dtype) and not one.is_conj() and not one.is_neg()
