"""The CPU of the machine that runs Python. It is always available, and ``auto`` selects it if no other device can be used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accelkit import Accelerator, Availability, Capabilities, parse_devices

if TYPE_CHECKING:
    import torch


class CPUAccelerator(Accelerator):
    """The CPU, which is always available."""

    device_type = "cpu"
    process_group_backend = "gloo"
    visible_devices_variable = None
    declared_capabilities = Capabilities.declare(
        native=[
            *("dtype.float32", "dtype.float64", "dtype.complex64", "dtype.complex128", "dtype.bool"),
            *("dtype.uint8", "dtype.int8", "dtype.int16", "dtype.int32", "dtype.int64"),
            *("autocast.bfloat16", "autocast.float16"),
            *("random_state", "process_group", "compile", "subnormals", "deterministic", "profiler_memory"),
        ],
        emulated=["dtype.bfloat16", "dtype.float16", "events", "fp8"],
        none=[
            *("streams", "memory_statistics", "memory_limit", "numbered_devices", "pinned_memory", "graphs", "generator_offset"),
            *("transformer_engine", "profiler"),
            *("autocast_float32_list", "dtype.uint16", "dtype.uint32", "dtype.uint64"),
        ],
    )

    @classmethod
    def probe(cls) -> Availability:
        return Availability.usable(f"{os.cpu_count()} logical cores")

    def device(self, index: int) -> torch.device:
        """Return ``torch.device("cpu")`` for any index, because the device of a CPU tensor has no index."""
        import torch

        return torch.device("cpu")

    def setup_device(self, device: torch.device) -> None:
        """Do nothing: there is only one CPU, and torch already uses it."""

    def auto_device_count(self) -> int:
        """Return 1: a single process uses all cores, because torch runs several threads."""
        return 1

    def parse_devices(self, devices: int | str | Sequence[int]) -> list[int]:
        """Return one index for each process that ``devices`` requests. All processes compute on the same CPU.

        A number ``n`` requests ``n`` processes, which have the indices 0 to n - 1. ``-1``, ``"auto"`` and ``[0]`` request one process.

        Raises:
            DevicesError: If ``devices`` cannot be parsed, is a number that is neither positive nor -1, or is a list other than ``[0]``.
        """
        return parse_devices(devices, self.auto_device_count(), self.name or self.device_type, counts_processes=True)

    def synchronize(self, device: torch.device) -> None:
        """Do nothing: operations on the CPU are complete when they return."""

    def empty_cache(self) -> None:
        """Do nothing: torch keeps no cache of CPU memory."""

    def memory_stats(self, device: torch.device) -> dict[str, float]:
        """Return the resident memory of this process, and the machine's total and available memory, in bytes."""
        import psutil

        machine = psutil.virtual_memory()
        return {
            "memory.resident.bytes": float(psutil.Process().memory_info().rss),
            "memory.available.bytes": float(machine.available),
            "memory.total.bytes": float(machine.total),
        }

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return memory statistics, torch's thread counts, and the machine's load average over one minute."""
        import psutil
        import torch

        stats: dict[str, Any] = dict(self.memory_stats(device))
        stats["threads.intraop"] = torch.get_num_threads()
        stats["threads.interop"] = torch.get_num_interop_threads()
        stats["load.1min"] = psutil.getloadavg()[0]
        return stats

    def manual_seed(self, seed: int) -> None:
        import torch

        torch.default_generator.manual_seed(seed)

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        import torch

        return torch.default_generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        import torch

        torch.default_generator.set_state(state)
