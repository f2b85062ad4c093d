"""Facts about devices, available without importing torch or a plugin.

To add a vendor's device that has no plugin yet, add a row to ``VENDORS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOST = "cpu"
"""The name of the accelerator for the CPU. ``auto`` selects it if no other accelerator is available."""

RESERVED = frozenset(("auto", "gpu", "tpu", "torch", "cpu", "cuda", "mps", "xla"))
"""The accelerator names that no third party may use."""

VISIBLE_DEVICES_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
"""The environment variables that limit which devices of the built-in accelerators a process sees."""

ALIASES: Mapping[str, Mapping[str, Any]] = {
    "gpu": {
        "candidates": ("cuda", "mps", "xpu"),
        "description": "the GPU that is available on this machine: NVIDIA, AMD, Apple or Intel",
    },
    "tpu": {
        "candidates": ("torch_tpu", "xla"),
        "description": "Google TPUs through torch_tpu if it is installed, otherwise through XLA",
    },
}
"""Names that stand for other accelerators. If exactly one candidate of an alias is usable on this machine, the alias stands for
this candidate. Otherwise, the alias cannot be used.
"""

RETIRED: Mapping[str, Mapping[str, Any]] = {
    "ipu": {
        "reason": (
            "Graphcore no longer develops PopTorch, its PyTorch package for IPUs, and Lightning and Accelerate no longer support them"
        ),
        "hint": "use the framework versions that PopTorch supports, or use another device",
    },
}
"""The names of accelerators that no longer exist, each with the reason and a hint on what to use instead."""

VENDORS: Mapping[str, Mapping[str, Any]] = {
    # in torch itself since 2.5: docs.pytorch.org/docs/stable/notes/get_start_xpu.html
    # end of IPEX: github.com/intel/intel-extension-for-pytorch/issues/867
    "xpu": {
        "description": "Intel GPUs, which torch itself supports",
        "device_type": "xpu",
        "process_group_backend": "xccl",
        "visible_devices_variable": "ZE_AFFINITY_MASK",
        "library": "libze_loader.so.1",
        "is_privateuse1": False,
        "hint": (
            "install Intel's GPU driver with Level Zero, and a torch build for XPU (docs.pytorch.org, 'Getting "
            "Started on Intel GPU'); intel_extension_for_pytorch, which ended with 2.8, is not needed"
        ),
    },
    # github.com/Ascend/pytorch; the variable: hiascend.com, 'ASCEND_RT_VISIBLE_DEVICES' (envref_07_0028)
    "npu": {
        "description": "Huawei Ascend NPUs through torch_npu",
        "device_type": "npu",
        "torch_package": "torch_npu",
        "process_group_backend": "hccl",
        "visible_devices_variable": "ASCEND_RT_VISIBLE_DEVICES",
        "library": "libhccl.so",
        "is_privateuse1": True,
        "hint": "install CANN and source its set_env.sh, then install the version of torch_npu that matches the installed torch",
    },
    # docs.habana.ai; it has its own dispatch key in torch
    "hpu": {
        "description": "Intel Gaudi HPUs through habana_frameworks",
        "device_type": "hpu",
        "torch_package": "habana_frameworks.torch",
        "process_group_backend": "hccl",
        "visible_devices_variable": "HABANA_VISIBLE_MODULES",
        "is_privateuse1": False,
        "hint": "install the Intel Gaudi software, which includes its own torch (docs.habana.ai, 'Installation Guide')",
    },
    # github.com/MooreThreads/torch_musa
    "musa": {
        "description": "Moore Threads GPUs through torch_musa",
        "device_type": "musa",
        "torch_package": "torch_musa",
        "process_group_backend": "mccl",
        "visible_devices_variable": "MUSA_VISIBLE_DEVICES",
        "is_privateuse1": True,
        "hint": "install the MUSA SDK, then torch_musa (see github.com/MooreThreads/torch_musa)",
    },
    # github.com/Cambricon/torch_mlu
    "mlu": {
        "description": "Cambricon MLUs through torch_mlu",
        "device_type": "mlu",
        "torch_package": "torch_mlu",
        "process_group_backend": "cncl",
        "visible_devices_variable": "MLU_VISIBLE_DEVICES",
        "is_privateuse1": True,
        "hint": "install Cambricon Neuware, then torch_mlu (see github.com/Cambricon/torch_mlu)",
    },
    # support.enflame-tech.com
    "gcu": {
        "description": "Enflame GCUs through torch_gcu",
        "device_type": "gcu",
        "torch_package": "torch_gcu",
        "process_group_backend": "eccl",
        "visible_devices_variable": "TOPS_VISIBLE_DEVICES",
        "is_privateuse1": True,
        "hint": "install Enflame TopsRider, which contains torch_gcu",
    },
    # pypi.org/project/torch_tpu
    "torch_tpu": {
        "description": "Google TPUs through torch_tpu",
        "device_type": "tpu",
        "torch_package": "torch_tpu",
        "process_group_backend": "tpu_dist",
        "is_privateuse1": True,
        "hint": "on a TPU VM: pip install torch_tpu",
    },
    # pypi.org/project/torch-rbln, docs.rbln.ai/latest/software/rbln_pytorch/overview.html
    "rbln": {
        "description": "Rebellions NPUs through torch_rbln",
        "device_type": "rbln",
        "torch_package": "torch_rbln",
        "process_group_backend": "rbln-ccl",
        "is_privateuse1": True,
        "hint": "pip install torch-rbln, and install rebel-compiler from Rebellions' package index (see docs.rbln.ai)",
    },
    # gabrieldemarmiesse.github.io/torch-mojo-backend/nightly/accelerator_api
    "mojo": {
        "description": "GPUs through torch_mojo_backend, which compiles kernels written in Mojo",
        "device_type": "mojo",
        "torch_package": "torch_mojo_backend",
        "register": "register_mojo_devices",
        "first_call_timeout": 600,
        "is_privateuse1": True,
        "hint": "pip install torch-mojo-backend",
    },
    # github.com/artyom-beilis/pytorch_dlprim, python/pytorch_ocl/__init__.py
    "ocl": {
        "description": "OpenCL devices through pytorch_ocl (dlprimitives)",
        "device_type": "ocl",
        "torch_package": "pytorch_ocl",
        "is_privateuse1": True,
        "hint": "install the wheel for this Python and torch from the releases of github.com/artyom-beilis/pytorch_dlprim",
    },
    # github.com/jmaczan/torch-webgpu
    "webgpu": {
        "description": "GPUs through torch_webgpu and Dawn (experimental)",
        "device_type": "webgpu",
        "torch_package": "torch_webgpu",
        "is_privateuse1": True,
        "hint": "build it as github.com/jmaczan/torch-webgpu describes",
    },
    # pypi.org/project/rgpu, 0.1.1: METADATA and rgpu/__init__.py
    "rgpu": {
        "description": "A GPU on another machine through rgpu",
        "device_type": "rgpu",
        "torch_package": "rgpu",
        "is_privateuse1": True,
        "hint": (
            "pip install rgpu, start rgpu-opserver on the GPU's machine, and set RGPU_OPSERVER=host:port "
            "(127.0.0.1:9720 by default, an SSH tunnel)"
        ),
    },
    # github.com/pytorch/pytorch, test/cpp_extensions/open_registration_extension/torch_openreg
    "openreg": {
        "description": "PyTorch's example of an out-of-tree device, simulated on the CPU",
        "device_type": "openreg",
        "torch_package": "torch_openreg",
        "is_simulated": True,
        "is_privateuse1": True,
        "hint": "pip install --no-build-isolation . in torch_openreg of PyTorch's source",
    },
}
"""The devices whose vendors offer no plugin, keyed by accelerator name. A row is used only if no plugin with that name is installed.

- ``device_type``: the argument of ``torch.device``.
- ``torch_package``: the package that adds the device to torch. If there is none, torch itself supports the device.
- ``register``: the function of ``torch_package`` that adds the device, if importing the package does not add it.
- ``library``: a shared library of the driver.
- ``first_call_timeout``, ``is_simulated``, ``process_group_backend``, ``visible_devices_variable``: as in ``Accelerator``.
- ``is_privateuse1``: whether the package uses torch's only slot for out-of-tree devices.
- ``hint``: what to install.
"""
