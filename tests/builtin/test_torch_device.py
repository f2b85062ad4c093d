"""``torch:<device_type>`` for a device that a package adds when it is imported, in child processes that do not use torch's autoload."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("forked_interpreters")

REGISTERED = "import accelkit_fake_xpu.torch_backend\n"


def accelkit(*arguments, **variables):
    command = [sys.executable, "-m", "accelkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)


def test_the_package_that_is_named_is_imported(plugin_site):
    plugin_site.install("vendor-xpu", REGISTERED, entry_points="[none]")
    named = accelkit("probe", "torch:fake_xpu", "--import", "vendor_xpu")
    assert named.returncode == 0, named.stderr
    assert "[0, 1, 2, 3] + 1 is correct on fake_xpu" in named.stdout
    by_variable = accelkit("doctor", "torch:fake_xpu", ACCELKIT_IMPORT="vendor_xpu")
    assert "torch:fake_xpu" in by_variable.stdout
    assert "broken" not in by_variable.stdout
    without = accelkit("probe", "torch:fake_xpu")
    assert without.returncode == 4
    assert "--import MODULE" in without.stderr


def test_the_entry_point_of_torch_s_autoload_is_used_unless_the_policy_forbids_it(plugin_site):
    source = "def _autoload():\n    import accelkit_fake_xpu.torch_backend\n"
    plugin_site.install("vendor-xpu", source, entry_points="[torch.backends]\nfake_xpu = vendor_xpu:_autoload")
    assert accelkit("probe", "torch:fake_xpu").returncode == 0
    assert accelkit("probe", "torch:fake_xpu", ACCELKIT_DISABLE_PLUGINS="vendor-xpu").returncode == 4


def test_the_entry_point_is_used_for_a_name_that_torch_reserves_for_others(plugin_site):
    plugin_site.install("vendor-cl", "raise OSError('no OpenCL here')\n", entry_points="[torch.backends]\nopencl = vendor_cl:_autoload")
    probed = accelkit("probe", "torch:opencl")
    assert probed.returncode == 3
    assert "no OpenCL here" in probed.stderr, probed.stderr


ABSENT = "cuda" if sys.platform == "darwin" else "mps"
PROGRAM = f"""
import accelkit

try:
    accelkit.Runtime("torch:{ABSENT}")
except accelkit.UnavailableError as error:
    raise SystemExit(f"{{error}}; exit code {{error.exit_code}}")
"""


@pytest.mark.parametrize("command", [["why"], ["probe"], ["launch", "--accelerator"]])
def test_a_device_that_torch_does_not_have_on_this_machine_is_unavailable(command, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")
    result = accelkit(*command, f"torch:{ABSENT}", *([str(script)] if "launch" in command else []))
    assert f"torch has no usable device of type '{ABSENT}' on this machine" in result.stderr, result.stderr
    assert f"torch.{ABSENT}.device_count() is 0" in result.stderr
    assert result.returncode == 4


def test_a_runtime_on_a_device_that_torch_does_not_have_on_this_machine():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert f"torch has no usable device of type '{ABSENT}' on this machine" in result.stderr, result.stderr
    assert "exit code 4" in result.stderr


def test_a_device_of_which_torch_knows_only_the_name_is_unavailable(error_text):
    result = accelkit("probe", "torch:vulkan")
    assert result.returncode == 4
    assert "--import MODULE" in result.stderr
    assert result.stderr == error_text


CHECKS = """
from accelkit import Accelerator, Availability

class Bits(Accelerator):
    "A device that cannot add."
    device_type = "cpu"

    def auto_device_count(self):
        return 1

    def check(self):
        return Availability.usable("x xor x is 0")
"""


def test_what_a_plugin_s_own_check_found_is_shown(plugin_site):
    plugin_site.install("vendor-bits", CHECKS, accelerators={"bits": "Bits"})
    probed = accelkit("probe", "bits")
    assert probed.stdout.startswith("bits (vendor-bits==1.0): x xor x is 0; 1 device"), probed


@pytest.mark.parametrize("source", ["vendor_xpu", "vendor_xpu:register_devices", "vendor_xpu:no_such_function", "no such module"])
def test_a_package_that_registers_its_device_in_a_function(plugin_site, source, error_text):
    text = f"def register_devices():\n    {REGISTERED}"
    plugin_site.install("vendor-xpu", text, entry_points="[none]")
    result = accelkit("probe", "torch:fake_xpu", "--import", source)
    if source == "vendor_xpu:register_devices":
        assert result.returncode == 0, result.stderr
        return
    assert result.returncode != 0
    assert result.stderr == error_text
    if source == "vendor_xpu":
        assert "importing vendor_xpu registered no device 'fake_xpu'" in result.stderr
        assert "vendor_xpu:register_devices" in result.stderr
        assert "load()" in result.stderr


def test_a_package_that_registers_a_device_of_another_name(plugin_site, error_text):
    plugin_site.install("vendor-xpu", REGISTERED, entry_points="[none]")
    result = accelkit("probe", "torch:acme", "--import", "vendor_xpu")
    assert result.returncode != 0
    assert "registered no device 'acme'" in result.stderr
    assert "the device that is registered is 'fake_xpu'" in result.stderr
    assert "torch:fake_xpu" in result.stderr
    assert result.stderr == error_text
