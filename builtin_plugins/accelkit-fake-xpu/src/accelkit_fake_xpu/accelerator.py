"""The accelkit plugin for the simulated device. What is not defined here is inherited from ``accelkit.Accelerator``."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, ClassVar

from accelkit import Accelerator, Availability, Capabilities
from accelkit_fake_xpu import settings
from accelkit_fake_xpu.build import LIBRARY

if TYPE_CHECKING:
    import torch


class FakeXPUAccelerator(Accelerator):
    """A simulated XPU: a separate PyTorch device type that computes on the host."""

    device_type = "fake_xpu"
    torch_package = "accelkit_fake_xpu.torch_backend"
    process_group_backend = "fxccl"
    compile_backend = "aot_eager"
    visible_devices_variable = "FAKE_XPU_VISIBLE_DEVICES"
    is_simulated = True
    declared_capabilities: ClassVar[Capabilities] = Capabilities.declare(
        native=[
            *("streams", "events", "pinned_memory", "memory_statistics", "memory_limit", "numbered_devices", "random_state"),
            *("generator_offset", "process_group", "compile", "fp8", "subnormals", "deterministic", "profiler", "profiler_memory"),
            *(f"dtype.{name}" for name in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool")),
            *(f"dtype.{name}" for name in ("uint8", "int8", "int16", "int32", "int64")),
            *("autocast.float16", "autocast.bfloat16", "autocast_float32_list"),
        ],
        none=["graphs", "transformer_engine", "dtype.uint16", "dtype.uint32", "dtype.uint64"],
    )

    def capabilities(self, device: torch.device | None = None) -> Capabilities:
        """Return the declared capabilities, but with ``profiler`` ``none`` for torch 2.12 and earlier, which cannot record this device."""
        import torch

        return self.declared_capabilities if torch.__version__ >= "2.13" else self.declared_capabilities.updated({"profiler": "none"})

    @classmethod
    def probe(cls) -> Availability:
        """Return whether the device can be used, according to the FAKE_XPU_* variables and the compiled library.

        If the library is missing, the method compiles an empty function to find out whether the library can be compiled.
        """
        try:
            count = len(settings.read().devices)
            problem = LIBRARY.problem()
        except settings.SettingsError as error:
            return Availability.broken(str(error), error.hint)
        if problem is not None:
            return Availability.absent(*problem)
        if count == 0:
            return Availability.absent("no device is visible", "unset FAKE_XPU_VISIBLE_DEVICES, or set FAKE_XPU_DEVICES to 1 or more")
        return Availability.usable(f"{count} simulated device{'s' * (count != 1)}, with torch {metadata.version('torch')}")

    def build(self) -> None:
        LIBRARY.build()
