"""The calls with index expressions are calls that the CPU accepts; a call that the CPU rejects compares nothing."""

from __future__ import annotations

import pytest
import torch

from accelkit_conformance.oracle.index_expressions import INDICES, _calls


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
@pytest.mark.parametrize("name", INDICES)
def test_the_cpu_accepts_every_call(name, dtype):
    calls = _calls(INDICES[name], dtype)
    for call in calls.values():
        call(torch.arange(60).view(4, 5, 3).to(getattr(torch, dtype)))
    if dtype != "bool" and name in ("indices", "no_indices", "mask_and_indices", "mask_of_all_dimensions", "zero_dimensional_index"):
        assert "accumulate" in calls
    if name in ("number", "ellipsis", "new_dimensions", "True"):
        assert "assign another dtype" in calls
