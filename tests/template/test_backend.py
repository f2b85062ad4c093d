"""The facet ``backend``: a package that adds a device to torch, compiled and run with the simulated driver."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from baking import FAKE_XPU, ROOT, build_wheel, check_sources, names, run

pytestmark = pytest.mark.timeout(900)

TEMPLATE = ROOT / "templates" / "accelerator_plugin" / "{{cookiecutter.distribution}}" / "src" / "{{cookiecutter.__package}}" / "csrc"
SHARED = (
    "autocast.cpp",
    "generator.cpp",
    "generator.h",
    "guard.cpp",
    "hooks.cpp",
    "layers.cpp",
    "pinned.cpp",
    "pinned.h",
    "remaining_operators.cpp",
    "statistics.cpp",
    "statistics.h",
    "timer.cpp",
)
"""What does not depend on the driver is the same in the fake XPU."""
PROGRAM = """
import accelkit_acme.torch_backend
import torch

torch.ones(2, device="acme")"""


@pytest.mark.parametrize("name", SHARED)
def test_what_does_not_depend_on_the_driver_is_the_fake_xpus(name):
    assert (TEMPLATE / name).read_text() == (FAKE_XPU / "src" / "accelkit_fake_xpu" / "csrc" / name).read_text()


def test_the_skeleton_of_a_driver_has_every_function_of_the_header():
    functions = re.findall(r"^(?:driver_status|const char\*) (driver_\w+)\(", (TEMPLATE / "driver.h").read_text(), re.MULTILINE)
    assert len(functions) > 20
    for name in ("driver_simulated.cpp", "driver_{{cookiecutter.accelerator}}.cpp"):
        written = re.findall(r"^(?:driver_status|const char\*) (driver_\w+)\(", (TEMPLATE / name).read_text(), re.MULTILINE)
        assert written == functions


@pytest.fixture(scope="module")
def package(clean, tmp_path_factory):
    """The baked package, installed in the clean environment and compiled."""
    folder = tmp_path_factory.mktemp("backend")
    package = clean.new(folder, facets="accelerator,backend")
    clean.install(build_wheel(package, package / "dist"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACME_CACHE_DIR", str(folder / "cache"))
        clean.accelkit("probe", "acme")
        yield package
    clean.pip("uninstall", "--yes", "accelkit-acme")


def test_it_passes_smoke_and_its_own_tests(clean, package, tmp_path):
    report_path = tmp_path / "report.json"
    clean.accelkit("conformance", "run", "acme", "--profile", "smoke", "-n", "2", "--json", report_path)
    kinds = json.loads(report_path.read_text())["summary"]["kinds"]
    assert kinds["pass"] > 400
    assert set(kinds) <= {"pass", "unsupported"}
    assert clean.offered("accelkit-acme") == names("accelerator")
    files = ["tests/test_backend.py", "tests/test_probe.py", "tests/test_contract.py", "tests/test_metadata.py"]
    tested = run(clean.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, cwd=package).stdout
    assert "absent" not in tested
    check_sources(package, clean)


def test_memory_of_the_simulated_device_cannot_be_read_by_the_host(clean, package):
    code = "import accelkit_acme.torch_backend, ctypes, torch; x = torch.ones(4, device='acme'); ctypes.string_at(x.data_ptr(), 4)"
    result = subprocess.run([clean.python, "-c", code], capture_output=True, check=False)
    assert result.returncode == -11


@pytest.mark.parametrize(
    ("fault", "error"),
    [("oom@1", "OutOfMemoryError: acme out of memory. Tried to allocate 8 bytes"), ("lost@1", "acme error: the device was lost")],
)
def test_errors_of_the_driver_reach_the_program(clean, package, fault, error):
    result = subprocess.run(
        [clean.python, "-c", PROGRAM], capture_output=True, text=True, check=False, env=os.environ | {"ACME_FAULT": fault}
    )
    assert result.returncode == 1
    assert error in result.stderr


@pytest.mark.parametrize("function", ["driver_initialize", "driver_copy_to_host", "driver_allocate"])
def test_a_function_that_is_not_written_is_named(clean, package, function):
    environ = os.environ | {"ACME_FAULT": f"missing@{function}"}
    code = f"{PROGRAM}.cpu()"
    result = subprocess.run([clean.python, "-c", code], capture_output=True, text=True, check=False, env=environ)
    assert result.returncode == 1
    assert f"acme error: {function} is not implemented yet in the driver of acme ({function})" in result.stderr


@pytest.mark.soak
def test_it_passes_distributed_and_trains(clean, package):
    clean.accelkit("conformance", "run", "acme", "--profile", "distributed", "-n", "2")
    digits = [ROOT / "examples" / "digits.py", "--accelerator", "acme"]
    assert "held-out digits are right" in run(clean.python, *digits).stdout
    for strategy in ("ddp", "fsdp"):
        clean.accelkit("launch", "--accelerator", "acme", "--devices", "2", "--strategy", strategy, *digits)
