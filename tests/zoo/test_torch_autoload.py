"""torch's own autoload: a vendor's package that makes ``import torch`` fail, and two that claim the same slot."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .conftest import make_environment

pytestmark = pytest.mark.timeout(600)

CAUSE = "libhccl.so: cannot open shared object file"


@pytest.fixture(scope="module")
def with_torch_npu(tmp_path_factory):
    """The package as published, on a machine without its driver."""
    folder = tmp_path_factory.mktemp("npu")
    environment = make_environment(folder / "venv")
    install = [sys.executable, "-m", "pip", "--python", environment.python, "install", "--quiet", "--no-deps", "torch_npu==2.13.0"]
    result = subprocess.run(install, capture_output=True, text=True, check=False)
    if "No matching distribution" in result.stderr:
        pytest.skip("torch_npu 2.13.0 is published for Linux on x86-64 and aarch64, Python 3.10 to 3.13, only")
    assert result.returncode == 0, result.stderr
    broken = environment.run("-c", "import torch")
    assert broken.returncode != 0
    assert CAUSE in broken.stderr, "the package breaks torch here, or these tests show nothing"
    return environment


def test_doctor_names_it_with_the_true_cause_and_the_way_out(with_torch_npu):
    result = with_torch_npu.run("-m", "accelkit", "doctor", "--json")
    assert result.returncode == 1
    check = json.loads(result.stdout)["checks"]["torch import"]
    assert check["status"] == "broken"
    assert "torch_npu==2.13.0" in check["reason"]
    assert CAUSE in check["reason"]
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in check["hint"]
    assert "pip uninstall torch_npu" in check["hint"]
    rows = {row["name"]: row["status"] for row in json.loads(result.stdout)["plugins"]}
    assert rows["cpu"] == "available", "the others are tried all the same"


def test_list_and_why_still_work_and_name_it(with_torch_npu):
    listing = with_torch_npu.run("-m", "accelkit", "list", "--json")
    assert listing.returncode == 0
    row = next(row for row in json.loads(listing.stdout)["plugins"] if row["name"] == "npu")
    assert row["status"] in ("unavailable", "broken")
    assert CAUSE in row["reason"]
    why = with_torch_npu.run("-m", "accelkit", "why")
    assert why.returncode == 0, why.stderr
    assert "accelerator cpu" in why.stdout
    assert CAUSE in why.stdout + why.stderr
    named = with_torch_npu.run("-m", "accelkit", "why", "npu")
    assert named.returncode in (3, 4)
    assert CAUSE in named.stderr


def test_the_runtime_says_whose_fault_it_is_and_what_helps(with_torch_npu):
    code = "import accelkit\ntry:\n    accelkit.Runtime(accelerator='cpu')\nexcept accelkit.AccelkitError as error:\n    print(error)"
    text = with_torch_npu.run("-c", code).stdout
    assert "import torch failed" in text
    assert "torch_npu==2.13.0" in text
    assert CAUSE in text
    helped = with_torch_npu.run(
        "-c", "import accelkit; print(accelkit.Runtime(accelerator='cpu').device)", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert helped.stdout.strip() == "cpu"


def test_two_claimants_of_one_slot_are_reported_before_torch_is_imported(plugin_site):
    plugin_site.install("vendor-one", entry_points="[torch.backends]\none = vendor_one:_autoload")
    plugin_site.install("vendor-two", entry_points="[torch.backends]\ntwo = vendor_two:_autoload")
    result = subprocess.run([sys.executable, "-m", "accelkit", "doctor", "--json"], capture_output=True, text=True, check=False)
    check = json.loads(result.stdout)["checks"]["PrivateUse1 backends"]
    assert result.returncode == 1
    assert "vendor-one==1.0 and vendor-two==1.0 both claim PrivateUse1" in check["reason"]
