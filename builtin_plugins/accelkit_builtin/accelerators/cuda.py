"""NVIDIA GPUs. What is asked before training is asked of NVML, which creates no CUDA context: ``fork`` works afterwards."""

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

if TYPE_CHECKING:
    import torch

_SUCCESS = 0
_SAY = {
    2: "NVML was given an invalid argument",
    4: "no permission to use the driver",
    9: "the NVIDIA driver is not loaded",
    12: "the NVIDIA driver's shared library is missing",
    15: "a GPU has fallen off the bus, or is otherwise inaccessible",
    18: "the driver and its library are of different versions",
}
_DRIVER_HINT = "check nvidia-smi; a reboot loads the driver that was installed last"


class NVMLError(Exception):
    """NVML's return code, in words."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{_SAY.get(code, 'NVML failed')} (NVML error {code})")


class NVML:
    """The three calls of NVIDIA's management library that a probe needs, by ctypes: probing must work without the extra ``cuda``.

    A context manager: init and shutdown. Source: https://docs.nvidia.com/deploy/nvml-api/ (nvmlInit_v2,
    nvmlDeviceGetCount_v2, nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetUUID).
    """

    soname = "libnvidia-ml.so.1"

    def __enter__(self) -> NVML:
        self._library = ctypes.CDLL(self.soname if os.name == "posix" else "nvml.dll")
        self._call("nvmlInit_v2")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._library.nvmlShutdown()

    def uuids(self) -> list[str]:
        """The UUID of each GPU of the machine, in PCI bus order."""
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
    """NVIDIA GPUs, through CUDA."""

    device_type = "cuda"
    process_group_backend = "nccl"
    visible_devices_variable = "CUDA_VISIBLE_DEVICES"
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

    @classmethod
    def probe(cls) -> Availability:
        """Asks NVML. Creates no CUDA context and imports no torch."""
        try:
            with NVML() as nvml:
                uuids = nvml.uuids()
        except OSError as error:
            return Availability.absent(f"there is no NVIDIA driver here ({error})", "on a machine with an NVIDIA GPU, install its driver")
        except NVMLError as error:
            return Availability.broken(str(error), _DRIVER_HINT)
        if not uuids:
            return Availability.absent(
                "the NVIDIA driver is loaded, but it sees no GPU", "check nvidia-smi, and what the container was given"
            )
        visible = visible_indices(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        if not visible:
            shown = os.environ.get("CUDA_VISIBLE_DEVICES")
            return Availability.absent(
                f"CUDA_VISIBLE_DEVICES={shown!r} hides the {len(uuids)} GPU(s) of this machine", "unset it, or name one"
            )
        if _torch_build() == "":
            hint = "install torch with CUDA, as https://pytorch.org/get-started/locally/ says for this platform"
            return Availability.broken("the installed torch was built without CUDA", hint)
        return Availability.usable(f"{len(visible)} GPU(s)")

    def auto_device_count(self) -> int:
        """How many GPUs this process may use, from NVML: no CUDA context is created."""
        try:
            with NVML() as nvml:
                return len(visible_indices(os.environ.get("CUDA_VISIBLE_DEVICES"), nvml.uuids()))
        except (OSError, NVMLError):
            return 0

    def capabilities(self, device: torch.device | None = None) -> Capabilities:
        """With ``device``, refined by its compute capability: bfloat16 is native from 8.0 on, float8 from 8.9 on. Initialises CUDA."""
        if device is None:
            return self.declared_capabilities
        import torch

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
        """torch's memory of this process; with the extra ``cuda`` also the board's memory, utilisation, temperature and power."""
        return {**self.memory_stats(device), **board_stats(device)}


def board_stats(device: torch.device) -> dict[str, float]:
    """What NVML says of the whole board, by quantity and unit; what the board does not measure is left out. Creates no CUDA context.

    Empty without ``nvidia-ml-py`` (the extra ``cuda``), or where NVML cannot see the board.
    """
    try:
        import pynvml
    except ImportError:
        return {}
    import torch

    readings: dict[str, Callable[[torch.device], float]] = {
        "board.memory.used.bytes": torch.cuda.device_memory_used,
        "board.utilization.percent": torch.cuda.utilization,
        "board.temperature.celsius": torch.cuda.temperature,
        "board.power.watts": lambda board: torch.cuda.power_draw(board) / 1000,
    }
    found: dict[str, float] = {}
    for name, read in readings.items():
        with contextlib.suppress(pynvml.NVMLError, RuntimeError):  # torch says RuntimeError where there is no driver
            found[name] = float(read(device))
    return found


def visible_indices(variable: str | None, uuids: list[str]) -> list[int]:
    """The machine's GPUs that CUDA would show, in its order: indices, UUIDs or their prefixes, MIG slices.

    What follows an entry that names nothing is hidden, as CUDA hides it.
    Source: CUDA C++ Programming Guide, 'CUDA Environment Variables', CUDA_VISIBLE_DEVICES.
    """
    if variable is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in variable.split(",")):
        if re.fullmatch(r"\d+", entry):
            matches = [int(entry)] if int(entry) < len(uuids) else []
        elif entry.startswith("MIG-"):
            matches = [index for index, uuid in enumerate(uuids) if uuid in entry] or [0]
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        found += matches
    return found


def _torch_build() -> str | None:
    """The CUDA version that torch was built for, or ROCm's; '' if neither; None if unknown. Reads a file, imports nothing."""
    specification = importlib.util.find_spec("torch")
    if specification is None or specification.origin is None:
        return None
    try:
        text = Path(specification.origin).with_name("version.py").read_text("utf-8")
    except OSError:
        return None
    versions = re.findall(r"^(?:cuda|hip)\b[^=]*=\s*(?:'([^']*)'|None)", text, re.MULTILINE)
    return next((version for version in versions if version), "" if versions else None)
