"""The component ``backend``: a package that adds a device to torch, compiled and run with the simulated driver, and with the driver in
remote_driver/, whose device is another process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from baking import FAKE_XPU, ROOT, build_wheel, check_sources, names, run

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("backend")]  # test_backend_tutorial.py uses what is compiled here

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
REMOTE_DRIVER = Path(__file__).parent / "remote_driver"
FUNCTIONS = re.findall(r"^driver_status (driver_\w+)\(", (TEMPLATE / "driver.h").read_text(), re.MULTILINE)
LOST = "acme error: the device was lost, because the process that runs it does not answer"
OPTIONAL = ["driver_launch"]
"""Without kernels, the CPU computes everything."""
PROGRAM = """
import accelkit_acme.torch_backend
import torch

torch.ones(2, device="acme")"""


@pytest.mark.parametrize("name", SHARED)
def test_what_does_not_depend_on_the_driver_is_the_fake_xpus(name):
    assert (TEMPLATE / name).read_text() == (FAKE_XPU / "src" / "accelkit_fake_xpu" / "csrc" / name).read_text()


def test_the_known_failures_are_those_of_the_fake_xpu():
    text = (TEMPLATE.parent / "expected_failures.toml").read_text()
    text = text.replace("{{ cookiecutter.accelerator }} supports", "fake_xpu supports")
    text = text.replace("{{ cookiecutter.distribution }}", "accelkit-fake-xpu")
    _, mine, _ = re.split("^{%.*\n", text, flags=re.MULTILINE)
    fake_xpu = (FAKE_XPU / "src" / "accelkit_fake_xpu" / "expected_failures.toml").read_text()
    assert mine.partition("[[expected_failure]]")[2] == fake_xpu.partition("[[expected_failure]]")[2]


def test_the_skeleton_of_a_driver_has_every_function_of_the_header():
    functions = re.findall(r"^(?:driver_status|const char\*) (driver_\w+)\(", (TEMPLATE / "driver.h").read_text(), re.MULTILINE)
    assert len(functions) > 20
    for name in ("driver_simulated.cpp", "driver_{{cookiecutter.accelerator}}.cpp"):
        written = re.findall(r"^(?:driver_status|const char\*) (driver_\w+)\(", (TEMPLATE / name).read_text(), re.MULTILINE)
        assert written == functions


@pytest.fixture(scope="module")
def package(clean, tmp_path_factory):
    """The baked package, installed in the clean environment and compiled."""
    package = clean.new(tmp_path_factory.mktemp("backend"), components="accelerator,backend")
    clean.install(build_wheel(package, package / "dist"))
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


@pytest.fixture
def wheel_with_library(package, tmp_path, monkeypatch):
    """The library in an unpacked wheel that is found before other packages. There is no compiler, and the cache is empty."""
    monkeypatch.setenv("HATCH_BUILD_HOOK_ENABLE_CUSTOM", "true")
    wheel = build_wheel(package, tmp_path / "dist")
    shutil.rmtree(package / "src" / "accelkit_acme" / "prebuilt")
    assert wheel.name.startswith("accelkit_acme-0.1.0-py3-none-linux_"), "for every Python, and one type of machine"
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    for name, value in {"PYTHONPATH": tmp_path / "site", "ACME_CACHE_DIR": tmp_path / "empty", "CXX": "no-compiler"}.items():
        monkeypatch.setenv(name, str(value))
    (library,) = (tmp_path / "site" / "accelkit_acme" / "prebuilt").iterdir()
    return library


def test_a_wheel_with_the_library_needs_no_compiler(clean, wheel_with_library, tmp_path):
    code = f"{PROGRAM}.cpu()\nfrom accelkit_acme.build import LIBRARY; print(LIBRARY.path)"
    result = run(clean.python, "-c", code)
    assert (result.stdout, result.stderr) == (f"{wheel_with_library}\n", "")
    assert not (tmp_path / "empty").exists()
    assert b"torch/lib" not in wheel_with_library.read_bytes(), "its torch may be in another folder than the one that it was compiled with"


def test_a_wheel_with_the_library_for_another_torch_says_so(clean, wheel_with_library, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELKIT_CACHE_DIR", str(tmp_path / "verdicts"))
    minor = ".".join(version("torch").split(".")[:2])
    wheel_with_library.rename(wheel_with_library.with_name(wheel_with_library.name.replace(f"torch{minor}", "torch2.8")))
    imported = subprocess.run([clean.python, "-c", PROGRAM], capture_output=True, text=True, check=False)
    probed = clean.accelkit("probe", "acme", ok=False)
    for result in (imported, probed):
        assert result.returncode != 0
        said = " ".join((result.stdout + result.stderr).split())
        assert f"its wheel contains no library for torch {version('torch')}, only for torch 2.8. The library cannot be compiled" in said
        assert f"install the acme wheel for torch {minor}, or install torch 2.8; to compile the library instead, " in said
        assert "to compile the library instead, install a C++ compiler" in said


def test_allocations_are_reported_to_the_profiler(clean, package):
    code = """
import accelkit_acme.torch_backend, torch
with torch.profiler.profile(profile_memory=True) as profiler:
    torch.empty(1000, dtype=torch.uint8, device="acme")
print([event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"])"""
    assert "[1000, -1000]" in run(clean.python, "-c", code).stdout


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


def check_that_next_names(clean, function, monkeypatch, tmp_path):
    monkeypatch.setenv("ACME_FAULT", f"missing@{function}")
    monkeypatch.setenv("ACCELKIT_CACHE_DIR", str(tmp_path))  # the device was usable with all functions
    result = clean.accelkit("conformance", "next", "acme", "-n", "2", ok=False)
    assert result.returncode in (1, 3)
    assert f"{function} is not implemented yet in the driver of acme" in " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize("function", ["driver_device_count", "driver_device_properties", "driver_free"])
def test_next_names_a_function_that_is_missing(clean, package, function, monkeypatch, tmp_path):
    check_that_next_names(clean, function, monkeypatch, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("function", [function for function in FUNCTIONS if function not in OPTIONAL])
def test_next_names_every_function_that_is_missing(clean, package, function, monkeypatch, tmp_path):
    check_that_next_names(clean, function, monkeypatch, tmp_path)


@pytest.mark.soak
def test_the_address_sanitizer_finds_nothing(clean, package, monkeypatch, tmp_path):
    monkeypatch.setenv("ACME_CXXFLAGS", "-g -fsanitize=address")
    run(clean.python, "-c", "from accelkit_acme.build import LIBRARY; LIBRARY.build()")
    monkeypatch.setenv("LD_PRELOAD", run("c++", "-print-file-name=libasan.so").stdout.strip())
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    run(clean.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_backend.py", cwd=package)


STABLE_KERNELS = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

using torch::stable::Tensor;

Tensor relu(const Tensor& self) { return torch::stable::fill_(torch::stable::empty_like(self), 7); }
Tensor add(const Tensor& self, const Tensor&, double) { return self; }

STABLE_TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("relu", TORCH_BOX(&relu));
  library.impl("add.Tensor", TORCH_BOX(&add));
}
"""


@pytest.mark.soak
def test_a_kernel_of_the_stable_abi_runs_on_the_device(clean, package, tmp_path):
    (tmp_path / "kernels.cpp").write_text(STABLE_KERNELS)
    folder = Path(torch.__file__).parent
    flags = ["-std=c++20", "-fPIC", "-shared", "-DTORCH_TARGET_VERSION=0x020a000000000000", f"-I{folder}/include", f"-L{folder}/lib"]
    run("c++", *flags, tmp_path / "kernels.cpp", "-ltorch_cpu", "-o", tmp_path / "kernels.so")
    code = f"""{PROGRAM}.cpu()
torch.ops.load_library("{tmp_path}/kernels.so")
x = torch.ones(2, device="acme:1", requires_grad=True)
y = torch.relu(x)
y.sum().backward()
print(y.device, y.tolist(), x.grad.tolist())
y + y"""
    result = subprocess.run([clean.python, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "acme:1 [7.0, 7.0] [1.0, 1.0]\n"
    assert "Not yet supported conversion from IValue to StableIValue for schema type: Scalar" in result.stderr


@pytest.mark.soak
def test_it_passes_distributed_and_trains(clean, package):
    clean.accelkit("conformance", "run", "acme", "--profile", "distributed", "-n", "2")
    digits = [ROOT / "examples" / "digits.py", "--accelerator", "acme"]
    assert "held-out digits are classified correctly" in run(clean.python, *digits).stdout
    for strategy in ("ddp", "fsdp"):
        clean.accelkit("launch", "--accelerator", "acme", "--devices", "2", "--strategy", strategy, *digits)


@pytest.fixture(scope="module")
def remote_build(clean, package, tmp_path_factory):
    """The folder of the package with another driver, compiled; and the program of its server."""
    folder = tmp_path_factory.mktemp("remote")
    shutil.copytree(package / "src", folder / "src")
    csrc = folder / "src" / "accelkit_acme" / "csrc"
    shutil.copy(REMOTE_DRIVER / "driver_remote.cpp", csrc / "driver_acme.cpp")
    run("c++", "-std=c++17", "-O1", f"-I{csrc}", REMOTE_DRIVER / "server.cpp", "-lpthread", "-o", folder / "server")
    return folder / "src", folder / "server"


@pytest.fixture
def server(clean, remote_build, monkeypatch):
    """The process that runs the device. Programs find it, and use its driver."""
    source, program = remote_build
    with tempfile.TemporaryDirectory() as folder:  # pytest's folders are too long for the path of a socket
        for name, value in {"PYTHONPATH": source, "ACME_DRIVER": "acme", "DEVICE_SERVER": f"{folder}/socket"}.items():
            monkeypatch.setenv(name, str(value))
        with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            yield process
            process.kill()


def test_another_process_computes(clean, server):
    code = f"""{PROGRAM}.cpu()
import os

x = torch.arange(6.0, device="acme").reshape(2, 3)
y = x.t().contiguous()
assert torch.equal((x @ y + x @ y).cpu(), 2 * (x.cpu() @ y.cpu()))
print(os.getpid(), torch.acme.get_device_name())"""
    host, name = run(clean.python, "-c", code).stdout.strip().split(" ", 1)
    assert name == f"remote acme in process {server.pid}"
    assert int(host) != server.pid


def test_memory_of_another_process_cannot_be_read_by_the_host(clean, server):
    code = "import accelkit_acme.torch_backend, ctypes, torch; x = torch.ones(4, device='acme'); ctypes.string_at(x.data_ptr(), 4)"
    assert subprocess.run([clean.python, "-c", code], capture_output=True, check=False).returncode == -signal.SIGSEGV


def test_without_the_other_process_the_error_says_so(clean, remote_build, server):
    server.kill()
    server.wait()
    result = subprocess.run([clean.python, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"AcceleratorError: {LOST}: there is none at " in result.stderr


@pytest.mark.parametrize("use", ["(x + x).cpu()", "torch.acme.synchronize()", "x + x; torch.zeros(8, device='acme')"])
def test_if_the_other_process_is_killed_the_device_is_lost(clean, server, use):
    """The process is stopped first, so that the program waits for it when it is killed."""
    code = f"{PROGRAM}\nx = torch.ones(4, device='acme')\nprint('ready', flush=True)\ninput()\nprint('using', flush=True)\n{use}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([clean.python, "-c", code], **pipes) as program:
        assert program.stdout.readline() == "ready\n"
        server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED)  # its threads may go on for a moment, and answer the program
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "using\n"
        server.kill()
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 1
    assert f"AcceleratorError: {LOST}: process {server.pid} ended" in errors


def check_conformance(clean, report_path, *selected):
    """Run tests of the profile smoke on the device of the other process, and return how many there are of each result."""
    clean.accelkit("conformance", "run", "acme", "--profile", "smoke", "-n", "2", "--json", report_path, *selected)
    report = json.loads(report_path.read_text())
    assert report["subject"]["device_names"][0].startswith("remote acme in process ")
    kinds = report["summary"]["kinds"]
    assert set(kinds) <= {"pass", "unsupported"}
    return kinds


def test_the_driver_of_another_process_passes_some_tests(clean, server, tmp_path):
    areas = ("memory/*", "transfer/*", "streams/*", "device/*", "autograd/*", "operators/forward[mm,*]", "operators/forward[add,*]")
    selected = [word for area in areas for word in ("--select", area)]
    assert check_conformance(clean, tmp_path / "report.json", *selected)["pass"] > 80


@pytest.mark.soak
def test_the_driver_of_another_process_passes_smoke(clean, server, tmp_path):
    assert check_conformance(clean, tmp_path / "report.json")["pass"] > 400
