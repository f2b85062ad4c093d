"""The built-in accelerators: their probes on this machine, and the methods that Lightning names."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import accelkit
from accelkit.discovery import device_table
from accelkit.specs.static_checks.rules import find_mistakes
from accelkit_builtin.accelerators import known_vendor
from accelkit_builtin.accelerators.cpu import CPUAccelerator
from accelkit_builtin.accelerators.cuda import CUDAAccelerator, board_stats
from accelkit_builtin.accelerators.mps import MPSAccelerator
from accelkit_builtin.accelerators.torch_device import TorchDeviceAccelerator
from accelkit_builtin.accelerators.visible_devices import visible_indices

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]

NVML_SOURCE = r"""
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
static int env(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
int nvmlInit_v2(void) { return env("FAKE_NVML_INIT", 0); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = env("FAKE_NVML_COUNT", 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { snprintf(text, size, "GPU-%04zu", (size_t)handle); return 0; }
"""


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory):
    """A folder with a real shared library that answers as NVML does on a machine with GPUs."""
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML_SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"], check=True)
    return folder


def probe_cuda(folder, **environ):
    code = (
        "import os, sys; from accelkit_builtin.accelerators.cuda import CUDAAccelerator as C; print(C.probe());"
        "print(C().auto_device_count());"
        "pid = os.fork(); os._exit(0) if pid == 0 else os.waitpid(pid, 0); print('torch' in sys.modules)"
    )
    import os

    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | {"LD_LIBRARY_PATH": str(folder)} | environ
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout.splitlines()


@pytest.mark.parametrize(
    ("environ", "status", "reason", "count"),
    [
        ({"FAKE_NVML_INIT": "9"}, "broken", "the NVIDIA driver is not loaded (NVML error 9)", "0"),
        ({"FAKE_NVML_INIT": "18"}, "broken", "the versions of the NVIDIA driver and its library differ", "0"),
        ({"FAKE_NVML_INIT": "99"}, "broken", "NVML failed (NVML error 99)", "0"),
        ({"FAKE_NVML_COUNT": "0"}, "absent", "finds no GPU", "0"),
        ({"FAKE_NVML_COUNT": "0", "CUDA_VISIBLE_DEVICES": "MIG-1234"}, "absent", "finds no GPU", "0"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "absent", "hides the 2 GPU(s)", "0"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None, "", "1"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0002,GPU-0001"}, None, "", "2"),
        ({}, None, "", "2"),
    ],
)
def test_cuda_asks_nvml_and_nothing_else(nvml_folder, environ, status, reason, count):
    answer, devices, has_torch = probe_cuda(nvml_folder, **environ)
    if status is None:  # the GPUs are there; whether this torch can use them depends on its build
        built = torch.version.cuda is not None
        status, reason = ("usable", "GPU(s)") if built else ("broken", "the installed torch was built without CUDA")
    assert f"status={status!r}" in answer
    assert reason in answer
    assert devices == count
    assert has_torch == "False"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("0,2", [0, 2]),
        ("2, 0", [2, 0]),
        ("0,7,1", [0]),
        ("GPU-cccc", [2]),
        ("GPU-aa", []),
        ("GPU-aaaa-1,GPU-cccc-3", [0, 2]),
        ("NoDevFiles", []),
        ("MIG-GPU-aabb-2/1/0", [1]),
        ("MIG-GPU-aabb-2/1/0,MIG-GPU-aabb-2/2/0", [1]),
        ("MIG-1234", [0]),
        ("0,MIG-1234", [0, 1]),
        ("0,1,2,MIG-1234", [0, 1, 2]),
        ("0,MIG-GPU-aaaa-1/1/0", []),
        ("0,0", []),
        ("0,1,GPU-aaaa", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(variable, expected):
    assert visible_indices(variable, UUIDS) == expected


def test_a_mig_slice_is_not_a_gpu_of_a_machine_without_gpus():
    assert visible_indices("MIG-1234", []) == []


def test_without_the_hardware_each_says_why():
    if sys.platform == "linux" and not torch.cuda.is_available():
        answer = CUDAAccelerator.probe()
        assert answer.status in ("absent", "broken")
        assert answer.reason
        assert answer.hint
    if sys.platform == "linux":
        assert MPSAccelerator.probe() == accelkit.Availability.absent(
            "Metal is only available on macOS, and this system is Linux", "use a Mac with Apple silicon"
        )


def test_probing_imports_no_torch():
    modules = ", ".join(f"{name} as m{index}" for index, name in enumerate(["cpu", "cuda", "mps", "torch_device", "known_vendor"]))
    code = (
        f"import sys; from accelkit_builtin.accelerators import {modules}; m0.CPUAccelerator.probe(); m1.CUDAAccelerator.probe();"
        "m2.MPSAccelerator.probe(); m3.TorchDeviceAccelerator.probe(); m4.npu.probe(); m4.xpu.probe(); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_what_lightning_asks_of_an_accelerator():
    cpu = accelkit.select("cpu").accelerator
    assert cpu.auto_device_count() == 1
    assert cpu.parse_devices("auto") == [0]
    assert cpu.get_parallel_devices([0]) == [torch.ones(1).device]
    assert cpu.setup_device(torch.device("cpu")) is None
    stats = cpu.get_device_stats(torch.device("cpu"))
    assert stats["memory.total.bytes"] > stats["memory.resident.bytes"] > 0
    assert stats["threads.intraop"] == torch.get_num_threads()
    assert cpu.teardown() is None
    assert cpu.parse_devices(2) == cpu.parse_devices("2") == [0, 1], "processes, which all compute on the one CPU"
    for none in (0, "0,1", "two", True):
        with pytest.raises(accelkit.DevicesError):
            cpu.parse_devices(none)


def test_cuda_statistics_need_no_context():
    stats = board_stats(torch.device("cuda", 0))
    assert not torch.cuda.is_initialized()
    assert all(name.startswith("board.") and isinstance(value, float) for name, value in stats.items())


def test_cpu_random_state_round_trip():
    cpu, device = CPUAccelerator(), torch.device("cpu")
    cpu.manual_seed(3)
    state = cpu.get_rng_state(device)
    first = torch.rand(3)
    cpu.set_rng_state(state, device)
    assert torch.equal(torch.rand(3), first)


def test_any_torch_device(error_text):
    assert TorchDeviceAccelerator.for_device_type("meta").probe().status == "absent"
    assert not find_mistakes("accelerator", TorchDeviceAccelerator.for_device_type("meta"))
    unknown = TorchDeviceAccelerator.for_device_type("nosuchthing")()
    assert unknown.check().status == "broken"
    assert "nosuchthing" in unknown.check().reason
    with pytest.raises(accelkit.UnavailableError) as caught:
        accelkit.Runtime(accelerator="torch:nosuchthing")
    assert "'nosuchthing'" in caught.value.what
    assert caught.value == error_text
    rt = accelkit.Runtime(accelerator="torch:cpu")
    assert (rt.device, rt.state.accelerator) == (torch.device("cpu"), "torch:cpu")
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime(accelerator="torch")
    assert "device_type" in caught.value.why
    assert caught.value == error_text


@pytest.mark.parametrize("name", device_table.vendors())
def test_the_table_of_vendors(name):
    row = device_table.vendors()[name]
    cls = getattr(known_vendor, name)
    assert issubclass(cls, accelkit.Accelerator)
    assert (cls.device_type, cls.process_group_backend) == (row["device_type"], row.get("process_group_backend"))
    assert cls.__doc__ == row["description"]
    answer = cls.probe()
    assert (answer.status, bool(answer.reason), answer.hint) == ("absent", True, row["hint"])
    with pytest.raises(accelkit.UnavailableError) as caught:
        accelkit.select(name)
    assert row["hint"] in caught.value.hint
    assert isinstance(row["is_privateuse1"], bool)


def test_a_vendors_package_that_is_there_is_selected_with_a_note(plugin_site, error_text):
    (plugin_site.folder / "torch_musa.py").write_text("")
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        accelkit.select("musa")
    assert "'musa'" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(AttributeError):
        _ = known_vendor.nobody


def test_retired_names_explain_themselves(error_text):
    with pytest.raises(accelkit.UnavailableError, match="Graphcore"):
        accelkit.select("ipu")
    with pytest.raises(accelkit.UnavailableError) as caught:
        accelkit.select("tpu")
    assert "tpu" in caught.value.what
    assert "torch_xla" in caught.value.why
    assert "pip install torch_tpu" in caught.value.hint
    assert caught.value == error_text
