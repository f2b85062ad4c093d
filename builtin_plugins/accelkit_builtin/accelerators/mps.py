"""Apple GPUs, through Metal Performance Shaders."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from accelkit import Accelerator, Availability, Capabilities

if TYPE_CHECKING:
    import torch

_OLDEST = (14, 0)


class MPSAccelerator(Accelerator):
    """Apple GPUs through Metal."""

    device_type = "mps"
    declared_capabilities = Capabilities.declare(
        native=[
            "dtype.float32",
            "dtype.float16",
            "dtype.int64",
            "dtype.bool",
            "autocast.float16",
            "autocast.bfloat16",
            "memory_statistics",
        ],
        none=["dtype.float64", "streams", "pinned_memory", "process_group", "graphs", "fp8", "transformer_engine"],
    )

    @classmethod
    def probe(cls) -> Availability:
        """Return whether this machine has Apple silicon and a version of macOS that torch's Metal backend supports.

        Does not import torch.
        """
        if platform.system() != "Darwin":
            return Availability.absent(
                f"Metal is only available on macOS, and this system is {platform.system()}", "use a Mac with Apple silicon"
            )
        if platform.machine() != "arm64":
            return Availability.absent("this Mac or its Python is not arm64", "use a Mac with Apple silicon and a Python built for arm64")
        release = tuple(int(part) for part in platform.mac_ver()[0].split(".")[:2])
        if release < _OLDEST:
            return Availability.absent(f"macOS {platform.mac_ver()[0]} is too old for torch's Metal backend", "update to macOS 14 or newer")
        return Availability.usable(f"Apple silicon, macOS {platform.mac_ver()[0]}")

    def device(self, index: int) -> torch.device:
        import torch

        return torch.device("mps", index)

    def setup_device(self, device: torch.device) -> None:
        """Do nothing: there is only one GPU."""

    def auto_device_count(self) -> int:
        return 1

    def synchronize(self, device: torch.device) -> None:
        self.device_module.synchronize()

    def memory_stats(self, device: torch.device) -> dict[str, float]:
        """Return how much memory tensors occupy and how much the Metal driver has allocated for this process, in bytes.

        The keys are ``memory.allocated.bytes`` and ``memory.driver.bytes``. There is no ``memory.peak.bytes``, because Metal records no
        peak.
        """
        module = self.device_module
        return {
            "memory.allocated.bytes": float(module.current_allocated_memory()),
            "memory.driver.bytes": float(module.driver_allocated_memory()),
        }

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        state: torch.Tensor = self.device_module.get_rng_state()
        return state

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        self.device_module.set_rng_state(state)
