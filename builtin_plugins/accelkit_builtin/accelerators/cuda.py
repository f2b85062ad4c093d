"""NVIDIA GPUs, or AMD GPUs if the installed torch is a build for ROCm.

The probe and the device count read NVML for NVIDIA GPUs, and files of the Linux kernel (sysfs) for AMD GPUs. Neither creates a context on a
device, so ``fork`` still works afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit import Accelerator, Availability, Capabilities
from accelkit_builtin.accelerators import amd_gpus
from accelkit_builtin.accelerators.visible_devices import visible_indices

if TYPE_CHECKING:
    import torch

_SUCCESS = 0
_MESSAGES = {
    2: "NVML received an invalid argument",
    4: "no permission to use the driver",
    9: "the NVIDIA driver is not loaded",
    12: "the NVIDIA driver's shared library is missing",
    15: "a GPU is inaccessible, for example because it has fallen off the bus",
    18: "the versions of the NVIDIA driver and its library differ",
}
_FLOAT8_ARCHITECTURES = ("gfx94", "gfx95", "gfx120")  # families on which torch tests float8 products with ROCm
_DRIVER_HINT = "run nvidia-smi; if a driver was installed since the last boot, reboot to load it"


class NVMLError(Exception):
    """An NVML error, described by its return code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{_MESSAGES.get(code, 'NVML failed')} (NVML error {code})")


class NVML:
    """A ctypes binding for the five NVML functions that a probe needs. NVML is NVIDIA's management library.

    As a context manager, it initialises the library at the start of the block and shuts it down at the end. Source:
    https://docs.nvidia.com/deploy/nvml-api/ (nvmlInit_v2, nvmlShutdown, nvmlDeviceGetCount_v2, nvmlDeviceGetHandleByIndex_v2,
    nvmlDeviceGetUUID).

    The probe does not use ``pynvml``, because the probe must also work without the ``cuda`` extra, which installs ``pynvml``. ``pynvml``
    would not be safer than this class: it calls the same library through ctypes. Version 13.615 of ``pynvml`` has 8,020 lines and takes 28
    ms to import. A probe runs in a new child process, so each probe would have to import ``pynvml`` again. In contrast, ``board_stats``
    needs ``pynvml``, because it calls torch functions that read NVML through ``pynvml``.
    """

    soname = "libnvidia-ml.so.1"

    def __enter__(self) -> NVML:
        self._library = ctypes.CDLL(self.soname if os.name == "posix" else "nvml.dll")
        self._call("nvmlInit_v2")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._library.nvmlShutdown()

    def uuids(self) -> list[str]:
        """Return the UUID of each GPU on the machine, in PCI bus order.

        Raises:
            NVMLError: If a call to the library fails, for example because a GPU is inaccessible.
        """
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            text = ctypes.create_string_buffer(96)
            self._call("nvmlDeviceGetUUID", self._handle(index), text, ctypes.c_uint(96))
            found.append(text.value.decode())
        return found

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _call(self, function: str, *arguments: Any) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code != _SUCCESS:
            raise NVMLError(code)


class CUDAAccelerator(Accelerator):
    """NVIDIA GPUs through CUDA, and AMD GPUs through ROCm. In torch, the device type of AMD GPUs is also cuda."""

    device_type = "cuda"
    process_group_backend = "nccl"
    visible_devices_variable = "CUDA_VISIBLE_DEVICES"  # on an AMD machine, the result of amd_gpus.limiting_variable
    declared_capabilities = Capabilities.declare(
        native=[
            "dtype.float32",
            "dtype.float64",
            "dtype.float16",
            "dtype.uint8",
            "dtype.int8",
            "dtype.int16",
            "dtype.int32",
            "dtype.int64",
            "dtype.bool",
            "dtype.complex64",
            "dtype.complex128",
            "autocast.float16",
            "autocast.bfloat16",
            "autocast_float32_list",
            "streams",
            "events",
            "memory_statistics",
            "memory_limit",
            "numbered_devices",
            "subnormals",
            "deterministic",
            "pinned_memory",
            "random_state",
            "generator_offset",
            "process_group",
            "compile",
            "graphs",
        ],
    )

    def __init__(self) -> None:
        super().__init__()
        if _torch_build() == "hip":
            vars(self)["visible_devices_variable"] = amd_gpus.limiting_variable(os.environ)

    @classmethod
    def probe(cls) -> Availability:
        """Return whether GPUs can be used. Creates no context on a device and does not import torch.

        If torch was built for ROCm, the method reads files of the Linux kernel (sysfs). Otherwise, it queries NVML and, if there is no
        NVIDIA driver, also reads sysfs to detect AMD GPUs that this build of torch cannot use.
        """
        build = _torch_build()
        if build == "hip":
            return amd_gpus.probe()
        try:
            with NVML() as nvml:
                uuids = nvml.uuids()
        except OSError as error:
            if others := amd_gpus.uuids():
                return Availability.broken(
                    f"this machine has {len(others)} AMD GPU(s), but the installed torch was not built for ROCm", amd_gpus.INSTALL_HINT
                )
            return Availability.absent(f"no NVIDIA driver was found ({error})", "if this machine has an NVIDIA GPU, install its driver")
        except NVMLError as error:
            return Availability.broken(str(error), _DRIVER_HINT)
        if not uuids:
            return Availability.absent(
                "the NVIDIA driver is loaded, but finds no GPU", "run nvidia-smi, and check which GPUs the container has"
            )
        visible = visible_indices(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        if not visible:
            shown = os.environ.get("CUDA_VISIBLE_DEVICES")
            return Availability.absent(
                f"CUDA_VISIBLE_DEVICES={shown!r} hides the {len(uuids)} GPU(s) of this machine", "unset it, or set it to the index of a GPU"
            )
        if build == "":
            hint = "install a torch build for CUDA (see https://pytorch.org/get-started/locally/)"
            return Availability.broken("the installed torch was built without CUDA", hint)
        return Availability.usable(f"{len(visible)} GPU(s)")

    def auto_device_count(self) -> int:
        """Return the number of GPUs that this process may use. Creates no context on a device.

        The number is read from NVML or, if torch was built for ROCm, from the Linux kernel. It is 0 if NVML is missing or fails.
        """
        if _torch_build() == "hip":
            return len(amd_gpus.visible(os.environ))
        try:
            with NVML() as nvml:
                return len(visible_indices(os.environ.get("CUDA_VISIBLE_DEVICES"), nvml.uuids()))
        except (OSError, NVMLError):
            return 0

    def capabilities(self, device: torch.device | None = None) -> Capabilities:
        """Return ``declared_capabilities`` and, if ``device`` is not None, also the capabilities of the device's architecture.

        If ``device`` is not None, the method initialises CUDA.

        On NVIDIA GPUs, bfloat16 is native with compute capability 8.0 or higher, and emulated on older GPUs; float8 and Transformer Engine
        are native with compute capability 8.9 or higher. On AMD GPUs, bfloat16 is native, float8 is native in the families gfx94, gfx95 and
        gfx120, and Transformer Engine is not supported.
        """
        if device is None:
            return self.declared_capabilities
        import torch

        if torch.version.hip is not None:
            architecture = torch.cuda.get_device_properties(device).gcnArchName
            return self.declared_capabilities.updated(
                {
                    "dtype.bfloat16": "native",
                    "fp8": "native" if architecture.startswith(_FLOAT8_ARCHITECTURES) else "none",
                    "transformer_engine": "none",
                }
            )
        version = torch.cuda.get_device_capability(device)
        has_float8 = version >= (8, 9)
        return self.declared_capabilities.updated(
            {
                "dtype.bfloat16": "native" if version >= (8, 0) else "emulated",
                "fp8": "native" if has_float8 else "none",
                "transformer_engine": "native" if has_float8 else "none",
            }
        )

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return torch's memory statistics for this process.

        With the extra ``cuda``, the result also has the board's memory, utilisation, temperature and power.
        """
        return {**self.memory_stats(device), **board_stats(device)}


def board_stats(device: torch.device) -> dict[str, float]:
    """Return NVML's readings for the whole board, under keys such as ``board.power.watts``. Creates no CUDA context.

    Quantities that the board does not measure are left out. The result is empty if NVML does not find the board, if
    the board is an AMD GPU, or if ``nvidia-ml-py`` is not installed (the extra ``cuda`` installs it).
    """
    try:
        import pynvml
    except ImportError:
        return {}
    import torch

    if torch.version.hip is not None:
        return {}
    readings: dict[str, Callable[[torch.device], float]] = {
        "board.memory.used.bytes": torch.cuda.device_memory_used,
        "board.utilization.percent": torch.cuda.utilization,
        "board.temperature.celsius": torch.cuda.temperature,
        "board.power.watts": lambda board: torch.cuda.power_draw(board) / 1000,
    }
    found: dict[str, float] = {}
    for name, read in readings.items():
        with contextlib.suppress(pynvml.NVMLError, RuntimeError):  # torch raises RuntimeError if there is no driver
            found[name] = float(read(device))
    return found


def _torch_build() -> str | None:
    """Return the platform for which the installed torch was built: ``cuda`` or ``hip``, an empty string if neither, or None if unknown.

    Reads torch's ``version.py`` without importing torch.
    """
    specification = importlib.util.find_spec("torch")
    if specification is None or specification.origin is None:
        return None
    try:
        text = Path(specification.origin).with_name("version.py").read_text("utf-8")
    except OSError:
        return None
    versions: list[tuple[str, str]] = re.findall(r"^(cuda|hip)\b[^=]*=\s*(?:'([^']*)'|None)", text, re.MULTILINE)
    return next((platform for platform, version in versions if version), "" if versions else None)
