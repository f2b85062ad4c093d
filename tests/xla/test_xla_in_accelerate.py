"""Accelerate where torch_xla is installed: it takes every device for one of torch_xla's, so the bridge refuses all of them."""

import pytest

PROGRAM = """
from accelkit.bridges.accelerate import accelerator

accelerator({name!r})
"""


@pytest.mark.parametrize("name", ["cpu", "fake_xpu"])
def test_another_device_is_refused(run, name):
    printed = run(PROGRAM.format(name=name), code=1)
    assert f"UnsupportedError: Accelerate cannot drive {name} where torch_xla is installed" in printed
    assert "what to do: use an environment without torch_xla" in printed


def test_xla_itself_is_accelerates_own(run):
    printed = run(PROGRAM.format(name="xla"), code=1)
    assert "UnsupportedError: the bridge into Accelerate cannot drive xla" in printed
    assert "Accelerate without the bridge where torch_xla is installed" in printed
