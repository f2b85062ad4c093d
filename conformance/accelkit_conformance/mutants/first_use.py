"""Faults that show only at the first use of the device, or if several threads use it at the same time."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("device", "first calls")
class CountsMemoryAfterInit(Broken):
    """``memory_allocated`` of the device's module raises KeyError until the device has been used."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.memory_allocated

        def memory_allocated(device: Any = None) -> int:
            if not module.is_initialized():
                raise KeyError("allocated_bytes.all.current")
            return original(device)  # type: ignore[no-any-return]

        module.memory_allocated = memory_allocated


@mutant("device", "first calls")
class PinsAfterInit(Broken):
    """Until the device has been used, ``pin_memory`` of a tensor returns a copy that is not pinned."""

    def install(self) -> None:
        import torch

        module: Any = self.device_module
        original = torch.Tensor.pin_memory

        def pin_memory(tensor: Any, *args: Any) -> Any:
            return original(tensor, *args) if module.is_initialized() else tensor.clone()

        torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign]


@mutant("device", "first calls")
class CompilesWithoutALock(Broken):
    """``softmax`` raises an error while another thread calls it for the first time."""

    is_compiled: ClassVar[bool | None] = None

    def install(self) -> None:
        import torch

        original = torch.Tensor.softmax

        def softmax(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.device.type == "fake_xpu" and self.is_compiled is None:
                type(self).is_compiled = False
                time.sleep(0.2)
                type(self).is_compiled = True
            if tensor.device.type == "fake_xpu" and not self.is_compiled:
                raise RuntimeError("the kernel is not compiled")
            return original(tensor, *args, **kwargs)

        torch.Tensor.softmax = softmax  # type: ignore[method-assign]


@mutant("device", "first calls of operators", check="first_calls")
class CompilesIntoAnotherEntry(Broken):
    """If two of the operators ``rsqrt``, ``reciprocal``, ``expm1`` and ``log10`` are called for the first time at the same time, one of
    them gets the kernel of the other."""

    def install(self) -> None:
        import torch

        kernels: dict[str, Any] = {}
        compiled: list[Any] = []
        for name in ("rsqrt", "reciprocal", "expm1", "log10"):
            original = getattr(torch.Tensor, name)

            def operator(tensor: Any, name: str = name, original: Any = original) -> Any:
                if tensor.device.type != "fake_xpu":
                    return original(tensor)
                if name not in kernels:
                    compiled.append(original)
                    time.sleep(0.05)
                    kernels[name] = compiled[-1]
                return kernels[name](tensor)

            setattr(torch.Tensor, name, operator)


@mutant("device", "threads at the same time")
class SharesTheIndexBuffer(Broken):
    """``nonzero`` keeps its result in one buffer for all threads."""

    found: ClassVar[Any] = None

    def install(self) -> None:
        import torch

        original = torch.Tensor.nonzero

        def nonzero(tensor: Any, **kwargs: Any) -> Any:
            if tensor.device.type != "fake_xpu":
                return original(tensor, **kwargs)
            type(self).found = original(tensor, **kwargs)
            time.sleep(0.0005)
            return self.found

        torch.Tensor.nonzero = nonzero  # type: ignore[method-assign]
