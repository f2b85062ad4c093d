"""Check which results of an operator require a gradient and have a ``grad_fn``, in each gradient mode."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.known_differences import may_be_missing
from accelkit_conformance.oracle.lacking_dtypes import possible_samples
from accelkit_conformance.oracle.op_compare import place
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors, to_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SAMPLES = 2
_MODES: dict[str, Any] = {"recording": contextlib.nullcontext, "no_grad": torch.no_grad}


def check_graphs(subject: Subject, name: str) -> None:
    """Check that the autograd attributes of an operator's results are the same on the device as on the CPU.

    Each result must have the same ``requires_grad`` on the device as on the CPU. It must have a ``grad_fn`` on the device if, and only if,
    it has one on the CPU. This is checked in the default grad mode and under ``torch.no_grad``. Differences are recorded in the subject.
    """
    op = opdb.operators()[name]

    def flags(given: Any, mode: Any) -> list[tuple[bool, bool]]:
        with mode():
            results = tensors(op(given[0], *given[1], **given[2]))
        return [(one.requires_grad, one.grad_fn is not None) for one in results]

    for sample in possible_samples(subject, op, opdb.samples(op, "float32", _SAMPLES, requires_grad=True)):
        given = (sample.input, sample.args, sample.kwargs)
        with subject.sample(describe_sample(given), facts_of(given, "float32")):
            for text, mode in _MODES.items():
                expected = flags(to_device(given, torch.device("cpu")), mode)
                with may_be_missing(op, given):
                    found = flags(place(op, given, subject.device), mode)
                assert found == expected, f"in the mode {text}, (requires_grad, has a grad_fn) are {found}, not {expected}"
