"""Faults in pinned memory: memory that is reused too early, and results that are not pinned."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.ordering import Slow


@mutant("interchange", "sources in pinned memory")
class ForgetsSlicesOfPinnedMemory(Broken):
    """A copy with ``non_blocking=True`` from a pinned tensor that does not begin at the start of its storage reads the values of the tensor
    that is pinned next."""

    targets: ClassVar[list[Any]] = []

    def install(self) -> None:
        import torch

        copy, pin = torch.Tensor.to, torch.Tensor.pin_memory

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = copy(tensor, *args, **kwargs)
            if kwargs.get("non_blocking") and tensor.device.type == "cpu" and tensor.storage_offset() and tensor.is_pinned():
                self.targets.append(result)
            return result

        def pin_memory(tensor: Any, *args: Any) -> Any:
            while self.targets and tensor.numel():
                target = self.targets.pop()
                if not target.requires_grad:
                    target.fill_(tensor.flatten()[0])
            return pin(tensor, *args)

        torch.Tensor.to, torch.Tensor.pin_memory = to, pin_memory  # type: ignore[method-assign]


@mutant("memory", "storages without waiting")
class ReadsStoragesTooEarly(Slow):
    """``copy_`` of a storage with ``non_blocking=True`` reads zeros from pinned memory. To the CPU, it copies all bytes except the last
    four."""

    def install(self) -> None:
        super().install()
        import torch

        original = torch.UntypedStorage.copy_

        def copy_(storage: Any, source: Any, non_blocking: Any = None) -> Any:
            devices = storage.device.type, source.device.type
            if non_blocking and devices == ("fake_xpu", "cpu") and source.is_pinned():
                return storage.fill_(0)
            result = original(storage, source, non_blocking)
            if non_blocking and devices == ("cpu", "fake_xpu"):
                torch.accelerator.synchronize()
                for index in range(storage.nbytes() - 4, storage.nbytes()):
                    storage[index] = 0
            return result

        torch.UntypedStorage.copy_ = copy_  # type: ignore[method-assign]


@mutant("transfer", "memory in use")
class PinsMemoryThatIsWritten(Slow):
    """``pin_memory`` reuses the memory of a pinned tensor of at least 1 KiB as soon as this tensor has been freed, even if a copy to it is
    still queued."""

    blocks: ClassVar[list[Any]] = []

    def install(self) -> None:
        super().install()
        import torch

        pin = torch.Tensor.pin_memory

        def pin_memory(tensor: Any, *args: Any) -> Any:
            free = next((one for one in self.blocks if (one.shape, one.dtype) == (tensor.shape, tensor.dtype)), None)
            if free is not None:
                self.blocks[:] = [one for one in self.blocks if one is not free]
                return free.copy_(tensor)
            result = pin(tensor, *args)
            if 1 << 10 <= result.nbytes <= 1 << 20:
                weakref.finalize(result, self.blocks.append, result.detach())
            return result

        torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign]


@mutant("interchange", "results in pinned memory")
class ReturnsPageableMemory(Broken):
    """``to("cpu", non_blocking=True)`` returns a tensor that is not pinned."""

    def install(self) -> None:
        import torch

        original = torch.Tensor.to

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            is_copy = tensor.device.type == "fake_xpu" and result.device.type == "cpu" and kwargs.get("non_blocking")
            if not is_copy:
                return result
            self.device_module.synchronize()
            return result.clone()

        torch.Tensor.to = to  # type: ignore[method-assign]
