"""Devices that a plain loop can use, and a framework cannot."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("bridges", "life of a device")
class CannotComeBack(Broken):
    """What teardown gave back cannot be set up again: the second fit of a process fails."""

    is_gone = False

    def setup_device(self, device: Any) -> None:
        if self.is_gone:
            raise RuntimeError("the context of this process was destroyed")
        super().setup_device(device)

    def teardown(self) -> None:
        super().teardown()
        self.is_gone = True


@mutant("bridges", "life of a device")
class ForgetsTheIndex(Broken):
    """A device comes without its index, and is whichever is the current one."""

    def device(self, index: int) -> Any:
        import torch

        return torch.device(self.device_type)
