"""``cuda`` with a build of torch for ROCm, in a mount namespace whose /sys/class is like that of a machine with AMD GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CPU = "cpu_cores_count 64\nsimd_count 0\nunique_id 0\n"
GPU = "cpu_cores_count 0\nsimd_count 304\nunique_id {}\ngfx_target_version 90402\n"
NODES = (CPU, GPU.format(0xA1), GPU.format(0xB2))
VERSION = "from typing import Optional\n__version__ = '2.13.0'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
SEEN = """
import json, os, sys
from accelkit_builtin.accelerators.cuda import CUDAAccelerator
found, cuda = CUDAAccelerator.probe(), CUDAAccelerator()
seen = [found.status, found.reason, found.hint, cuda.auto_device_count(), cuda.visible_devices_variable, "torch" in sys.modules]
print(json.dumps(seen))
"""
# The tree becomes /sys/class, and /dev has nothing but what a subprocess needs, and perhaps the kernel driver's device.
MACHINE = """
set -e
for name in null urandom; do touch {dev}/$name; mount --bind /dev/$name {dev}/$name; done
if [ {kfd} = yes ]; then touch {dev}/kfd; fi
mount --bind {sys} /sys/class
mount --rbind {dev} /dev
exec "$@"
"""


@pytest.fixture
def machine(tmp_path):
    """Run a command on a machine with these KFD nodes, and with a build of torch for ROCm (its version file)."""
    if subprocess.run(["unshare", "--mount", "--map-root-user", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel or container allows no mount namespace, in which alone /sys can be replaced")

    def run(*command: str, nodes=NODES, kfd="yes", cuda=None, hip="6.4.43482", **environ: str) -> str:
        tree, dev, packages = tmp_path / "sys", tmp_path / "dev", tmp_path / "packages"
        for path in (tree, dev, packages / "torch"):
            path.mkdir(parents=True, exist_ok=True)
        for index, properties in enumerate(nodes):
            node = tree / "kfd" / "kfd" / "topology" / "nodes" / str(index)
            node.mkdir(parents=True, exist_ok=True)
            (node / "properties").write_text(properties)
        (packages / "torch" / "__init__.py").write_text("raise ImportError('nobody asked for torch')")
        (packages / "torch" / "version.py").write_text(VERSION.format(cuda=repr(cuda), hip=repr(hip)))
        kept = {name: value for name, value in os.environ.items() if not name.endswith("VISIBLE_DEVICES")}
        env = (
            kept
            | {"PYTHONPATH": str(packages), "ACCELKIT_CACHE": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
            | environ
        )
        script = MACHINE.format(dev=dev, sys=tree, kfd=kfd)
        done = subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *command],
            capture_output=True,
            text=True,
            env=env,
            check=False,
        )
        assert not done.stderr, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("given", "status", "words", "count"),
    [
        ({}, "usable", ["2 AMD GPU(s)"], 2),
        ({"nodes": (CPU,)}, "absent", ["no AMD GPU", "/sys/class/kfd", "--device=/dev/kfd"], 0),
        ({"nodes": ()}, "absent", ["no AMD GPU"], 0),
        ({"nodes": ("", "nonsense", "simd_count x\n", GPU.format(1))}, "usable", ["1 AMD GPU(s)"], 1),
        ({"kfd": "no"}, "broken", ["2 AMD GPU(s)", "/dev/kfd", "--device=/dev/dri"], 2),
        ({"HIP_VISIBLE_DEVICES": ""}, "absent", ["HIP_VISIBLE_DEVICES=''", "2 GPU(s)"], 0),
        ({"ROCR_VISIBLE_DEVICES": "1"}, "usable", ["1 AMD GPU(s)"], 1),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000b2"}, "usable", ["1 AMD GPU(s)"], 1),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, "usable", ["1 AMD GPU(s)"], 1),
        (
            {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"},
            "absent",
            ["ROCR_VISIBLE_DEVICES='1' and HIP_VISIBLE_DEVICES='1' together hide the 2 GPU(s)", "unset them"],
            0,
        ),
        ({"ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "-1"}, "absent", ["CUDA_VISIBLE_DEVICES='-1' together hide"], 0),
        ({"ROCR_VISIBLE_DEVICES": "MIG-1234", "nodes": (CPU,)}, "absent", ["no AMD GPU"], 0),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0"}, "usable", ["2 AMD GPU(s)"], 2),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "usable", ["1 AMD GPU(s)"], 1),
        ({"cuda": "12.8", "hip": None}, "broken", ["2 AMD GPU(s)", "torch build for ROCm"], 0),
        ({"hip": None}, "broken", ["2 AMD GPU(s)", "torch build for ROCm"], 0),
    ],
)
def test_the_kernels_files_are_read_where_torch_was_built_for_rocm(machine, given, status, words, count):
    found, reason, hint, devices, _, has_torch = json.loads(machine(sys.executable, "-c", SEEN, **given))
    assert (found, devices, has_torch) == (status, count, False), (reason, hint)
    assert all(word in f"{reason} {hint}" for word in words), (reason, hint)


def test_the_variable_that_gives_each_process_a_device_is_rocms(machine):
    assert json.loads(machine(sys.executable, "-c", SEEN, ROCR_VISIBLE_DEVICES="1"))[4] == "ROCR_VISIBLE_DEVICES"
    assert json.loads(machine(sys.executable, "-c", SEEN))[4] == "HIP_VISIBLE_DEVICES"


def test_auto_chooses_an_amd_gpu(machine):
    accelkit = Path(sys.executable).with_name("accelkit")
    (cuda,) = [row for row in json.loads(machine(str(accelkit), "list", "--json"))["plugins"] if row["name"] == "cuda"]
    assert (cuda["status"], cuda["reason"]) == ("available", "2 AMD GPU(s)")
    answer = json.loads(machine(str(accelkit), "why", "--json"))
    assert answer["chosen"] == "cuda"
