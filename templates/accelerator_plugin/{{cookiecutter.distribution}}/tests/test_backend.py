"""The device that this package adds to torch. accelkit's conformance suite tests it thoroughly; this file is for tests of your kernels."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import {{ cookiecutter.__package }}.torch_backend
import torch

x = torch.arange(6.0, device="{{ cookiecutter.accelerator }}").reshape(2, 3)
y = x.t().contiguous()
assert torch.equal((x @ y + x @ y).cpu(), 2 * (x.cpu() @ y.cpu()))

scalar = x[1, 2]  # even with a 0-d tensor, the dtype of a Python number does not affect the dtype of the result
for result in (1.0 - scalar, torch.xlogy(2.0, scalar), scalar - 1.0):
    assert (result.dtype, result.device) == (scalar.dtype, scalar.device)
assert all(each.device == x.device for each in torch._foreach_mul([x, y], torch.tensor(2.0)))

again = torch.empty(0, device=x.device).set_(x)
assert again.is_set_to(x)
assert not x.clone().is_set_to(x)
"""


@pytest.mark.skipif("{{ cookiecutter.accelerator.upper() }}_FAULT" in os.environ, reason="a fault is injected")
def test_a_program_computes_on_the_device(device_status: str) -> None:
    if device_status != "usable":
        pytest.skip(f"the device is {device_status}")
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
