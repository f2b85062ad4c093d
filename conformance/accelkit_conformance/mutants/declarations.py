"""Plugins whose declarations, probes or methods are wrong."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from accelkit import Availability, Capabilities
from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken

_DECLARED = Broken.declared_capabilities


@mutant("capabilities", "claims")
class ClaimsGraphs(Broken):
    """The capability ``graphs`` is declared, but the device cannot capture and replay work."""

    declared_capabilities: ClassVar[Capabilities] = _DECLARED.updated({"graphs": "native"})


@mutant("capabilities", "claims")
class ClaimsADtype(Broken):
    """uint16 is declared, but tensors of that dtype cannot be added."""

    declared_capabilities: ClassVar[Capabilities] = _DECLARED.updated({"dtype.uint16": "native"})


@mutant("capabilities", "claims")
class HidesStreams(Broken):
    """Streams and float64 are declared as not supported, but work."""

    declared_capabilities: ClassVar[Capabilities] = _DECLARED.updated({"streams": "none", "dtype.float64": "none"})


@mutant("contract", "declarations")
class DeclaresNonsense(Broken):
    """A dtype that torch does not have is declared."""

    declared_capabilities: ClassVar[Capabilities] = _DECLARED.updated({"dtype.bfloat61": "native"})


@mutant("contract", "probes")
class ProbesWithTorch(Broken):
    """The probe imports torch."""

    @classmethod
    def probe(cls) -> Availability:
        import torch

        return Availability.usable(torch.__version__)


@mutant("contract", "probes")
class ProbeSaysTrue(Broken):
    """The probe returns a bool."""

    @classmethod
    def probe(cls) -> Any:
        return True


@mutant("contract", "probes")
class ProbeKnowsItsProcess(Broken):
    """The probe works in the process that first calls it, but aborts a forked child process that calls it."""

    home: ClassVar[int] = 0

    @classmethod
    def probe(cls) -> Availability:
        cls.home = cls.home or os.getpid()
        if os.getpid() != cls.home:
            os.abort()
        return Availability.usable("here")


@mutant("contract", "methods")
class ParsesAnything(Broken):
    """``parse_devices`` returns device 0 for every argument."""

    def parse_devices(self, devices: Any) -> list[int]:
        return [0]


@mutant("contract", "methods")
class ChangesASignature(Broken):
    """``memory_stats`` has no parameter for the device."""

    def memory_stats(self) -> dict[str, float]:  # type: ignore[override]
        return {"memory.allocated.bytes": 0.0}


@mutant("device", "indices")
class CountsOneTooMany(Broken):
    """``auto_device_count`` returns one more than the number of devices."""

    def get_parallel_devices(self, devices: Any) -> list[Any]:
        return [self.device(min(index, 1)) for index in devices]

    def auto_device_count(self) -> int:
        return super().auto_device_count() + 1


@mutant("device", "indices")
class DeviceIsAlwaysTheFirst(Broken):
    """``device()`` ignores the index and returns the first device."""

    def device(self, index: int) -> Any:
        return super().device(0)


@mutant("device", "indices")
class NeverBecomesCurrent(Broken):
    """``setup_device`` does not make the device current."""

    def setup_device(self, device: Any) -> None:
        pass


@mutant("device", "silent fallback")
class TrainsOnTheCPU(Broken):
    """Every device that the accelerator returns is the CPU."""

    def device(self, index: int) -> Any:
        import torch

        return torch.device("cpu")

    def setup_device(self, device: Any) -> None:
        pass


@mutant("device", "the current device")
class StaysOnTheDeviceAfterAnError(Broken):
    """The device context does not restore the previous device if an error is raised inside it."""

    def install(self) -> None:
        original: Any = self.device_module.device

        class Stays(original):
            def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
                return None if kind is not None else super().__exit__(kind, error, trace)

        self.device_module.device = Stays  # type: ignore[attr-defined]
