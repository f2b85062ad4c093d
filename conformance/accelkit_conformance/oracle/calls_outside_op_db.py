"""Comparison of the results on the device with those on the CPU, for the calls in ``extra_ops``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from accelkit_conformance.oracle.extra_ops import FUNCTIONS
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.overloads import calls_of, check_overloads
from accelkit_conformance.oracle.recorded_calls import Nameless
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_calls(subject: Subject, name: str) -> None:
    """Check that ``extra_ops.FUNCTIONS[name]`` gives the same results on the device as on the CPU.

    The ATen overloads that the function calls are checked in the same way. Differences are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the function needs.
    """
    function = FUNCTIONS[name]
    require_dtypes(subject, lambda: function(torch.device("cpu")))
    with subject.sample(name, {}):
        found, expected = tree_leaves(function(subject.device)), tree_leaves(function(torch.device("cpu")))
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            check_result(mine, theirs, None, subject.device, cancels=True)
    check_overloads(subject, Nameless(), calls_of([lambda: function(torch.device("cpu"))]))
