"""Devices that work in a plain training loop, but not with Lightning or Accelerate."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("bridges", "life of a device")
class CannotComeBack(Broken):
    """The device cannot be set up again after teardown, so the second fit in a process fails."""

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
    """``device()`` returns a device without an index, which means the current device."""

    def device(self, index: int) -> Any:
        import torch

        return torch.device(self.device_type)
