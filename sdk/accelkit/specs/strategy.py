"""The strategy specification: how one program spans devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator


class Strategy:
    """How one program spans devices, selected by name. It receives the accelerator and never keeps it.

    Args:
        device: Set if the strategy was made for one device or device type; the runtime refuses a contradiction.
    """

    name: str = ""
    plugin: str = ""

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.requested_device = device

    def root_device(self, accelerator: Accelerator, devices: list[int], local_rank: int) -> torch.device:
        """The device of this process."""
        return accelerator.device(devices[local_rank])

    def wrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module as the training loop calls it: itself, or wrapped for communication."""
        return module

    def num_processes(self, devices: list[int], num_nodes: int) -> int:
        """How many processes the job needs."""
        return 1

    def __repr__(self) -> str:
        return f"<strategy {self.name or type(self).__name__}>"
