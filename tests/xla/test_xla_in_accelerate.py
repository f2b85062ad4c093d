"""With torch_xla, Accelerate treats every device as one of torch_xla, so the bridge refuses all devices."""

import pytest

PROGRAM = """
from accelkit.bridges.accelerate import accelerator

accelerator({name!r})
"""


@pytest.mark.parametrize("name", ["cpu", "fake_xpu"])
def test_another_device_is_refused(run, name):
    printed = run(PROGRAM.format(name=name), code=1)
    assert f"UnsupportedError: the bridge to Accelerate does not support {name} if torch_xla is installed" in printed
    assert "what to do: use an environment without torch_xla" in printed


def test_xla_itself_is_accelerates_own(run):
    printed = run(PROGRAM.format(name="xla"), code=1)
    assert "UnsupportedError: the bridge to Accelerate does not support xla" in printed
    assert "use Accelerate with torch_xla, without the bridge" in printed
