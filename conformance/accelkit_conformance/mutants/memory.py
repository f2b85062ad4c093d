"""Wrong memory statistics, memory leaks, overlapping blocks of memory, and wrong out-of-memory errors."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken, is_pure


@mutant("memory", "statistics")
class CountsNothing(Broken):
    """``memory_stats`` always returns zero, both for the allocated bytes and for their peak."""

    def memory_stats(self, device: Any) -> dict[str, float]:
        return {"memory.allocated.bytes": 0.0, "memory.peak.bytes": 0.0}


@mutant("memory", "statistics")
class NeverResetsThePeak(Broken):
    """``reset_peak_memory_stats`` does nothing."""

    def reset_peak_memory_stats(self, device: Any) -> None:
        pass


@mutant("memory", "statistics")
class CountsAllDevicesTogether(Broken):
    """For every device, ``memory_stats`` returns the sums over all devices."""

    def memory_stats(self, device: Any) -> dict[str, float]:
        every = [super(CountsAllDevicesTogether, self).memory_stats(one) for one in self.get_parallel_devices([0, 1])]
        return {name: sum(stats[name] for stats in every) for name in every[0]}


@mutant("memory", "free memory")
class ReportsTheTotalAsFree(Broken):
    """``mem_get_info`` reports that all memory is free."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.mem_get_info
        module.mem_get_info = lambda device=None: (original(device)[1],) * 2


@mutant("memory", "free memory")
class ReportsFreeMemoryAsTotal(Broken):
    """``mem_get_info`` reports the free memory in place of the total memory."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.mem_get_info
        module.mem_get_info = lambda device=None: (original(device)[0],) * 2


@mutant("memory", "leaks")
class KeepsWorkspaces(Broken):
    """Each call to ``mm`` or ``addmm`` leaks a small workspace."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("mm", "addmm"):
            self.kept.append(args[0].new_empty(64))
        return call()


@mutant("memory", "leaks")
class KeepsLargeBlocks(Broken):
    """Blocks of 1 MiB and more are never freed."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if is_pure(func) and hasattr(result, "untyped_storage") and result.untyped_storage().nbytes() >= 1 << 20:
            self.kept.append(result.detach())
        return result


@mutant("memory", "wrong errors")
class SaysRuntimeErrorForMemory(Broken):
    """Running out of memory raises RuntimeError instead of torch.OutOfMemoryError."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        try:
            return call()
        except torch.OutOfMemoryError as error:
            raise RuntimeError(f"allocation failed: {error}") from None


@mutant("memory", "blocks overlap")
class GivesOneBlockTwice(Broken):
    """``torch.full`` creates a vector in memory that an earlier vector of about the same size still uses."""

    last: ClassVar[dict[int, Any]] = {}

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "full" and result.ndim == 1 and 300 < result.numel() < 3000:
            size = result.numel() // 64
            earlier = self.last.setdefault(size, result)
            if earlier is not result and earlier.numel() >= result.numel():
                earlier[: result.numel()].copy_(result)
                return earlier[: result.numel()]
        return result


@mutant("memory", "leaks of failed operators")
class LosesMemoryWhenItFails(Broken):
    """An operator that runs out of memory never frees its workspace of 64 KiB."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        try:
            return call()
        except torch.OutOfMemoryError:
            self.kept.append(torch.empty(1 << 14, device="fake_xpu"))
            raise


@mutant("memory", "leaks")
class KeepsBuffersOfSums(Broken):
    """Every cumulative sum leaks its temporary buffer."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith("cumsum"):
            self.kept.append(args[0].clone())
        return call()


@mutant("memory", "leaks of failed operators")
class KeepsArgumentsOfErrors(Broken):
    """A concatenation that fails never releases its arguments."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError:
            if name == "cat":
                self.kept.append(args)
            raise


@mutant("memory", "peaks")
class ForgetsHeldMemoryAtReset(Broken):
    """After a call to ``reset_peak_memory_stats``, the statistics leave out the memory that was allocated before the call."""

    held: ClassVar[dict[Any, float]] = {}

    def reset_peak_memory_stats(self, device: Any) -> None:
        super().reset_peak_memory_stats(device)
        self.held[device] = super().memory_stats(device)["memory.allocated.bytes"]

    def memory_stats(self, device: Any) -> dict[str, float]:
        return {name: max(value - self.held.get(device, 0.0), 0.0) for name, value in super().memory_stats(device).items()}


@mutant("memory", "peaks")
class ResetsEveryPeak(Broken):
    """``reset_peak_memory_stats`` resets the peaks of all devices, not only the peak of the given device."""

    def reset_peak_memory_stats(self, device: Any) -> None:
        for one in self.get_parallel_devices([0, 1]):
            super().reset_peak_memory_stats(one)


@mutant("memory", "leaks of failed operators")
class KeepsInputsWithoutMemory(Broken):
    """An operator that runs out of memory never releases its inputs."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        try:
            return call()
        except torch.OutOfMemoryError:
            self.kept.append([one.detach() for one in args if isinstance(one, torch.Tensor)])
            raise


@mutant("memory", "caches")
class KeepsAWorkspacePerShape(Broken):
    """Matrix products keep a workspace for each new shape of a result."""

    kept: ClassVar[dict[Any, Any]] = {}

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            self.kept.setdefault(result.shape, result.new_empty(result.shape))
        return result


@mutant("memory", "resized storages")
class ShrinksNoStorage(Broken):
    """If a storage is resized to 0 bytes, its memory stays allocated until the storage is resized again."""

    kept: ClassVar[dict[Any, Any]] = {}

    def install(self) -> None:
        import torch

        original = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            num_bytes = storage.nbytes()
            self.kept.pop(storage._cdata, None)
            result = original(storage, size)
            if size == 0 and storage.device.type == "fake_xpu":
                self.kept[storage._cdata] = torch.empty(num_bytes, dtype=torch.uint8, device=storage.device)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]


@mutant("memory", "peaks")
class CountsFailedAllocations(Broken):
    """After an allocation has failed, the peak of allocated memory is at least 1 TiB until it is reset."""

    failed: ClassVar[dict[Any, float]] = {}

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        try:
            return call()
        except torch.OutOfMemoryError:
            self.failed[kwargs.get("device")] = 1 << 40
            raise

    def memory_stats(self, device: Any) -> dict[str, float]:
        stats = super().memory_stats(device)
        return {**stats, "memory.peak.bytes": max(stats["memory.peak.bytes"], self.failed.get(device, 0.0))}

    def reset_peak_memory_stats(self, device: Any) -> None:
        super().reset_peak_memory_stats(device)
        self.failed.pop(device, None)


@mutant("memory", "threads")
class ThreadsFreeAtTheirEnd(Broken):
    """A tensor created with ``torch.ones`` outside the main thread keeps its memory until the thread ends."""

    def install(self) -> None:
        import torch

        original, kept = torch.ones, threading.local()

        def ones(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if threading.current_thread() is not threading.main_thread():
                kept.storages = [*getattr(kept, "storages", ()), result.untyped_storage()]
            return result

        torch.ones = ones  # type: ignore[assignment]


@mutant("memory", "leaks of backward passes")
class KeepsGraphsWithoutMemory(Broken):
    """A backward pass that runs out of memory never releases its graph."""

    kept: ClassVar[list[Any]] = []

    def install(self) -> None:
        import torch

        original = torch.Tensor.backward

        def backward(tensor: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]
            except torch.OutOfMemoryError:
                self.kept.append(tensor)
                raise

        torch.Tensor.backward = backward  # type: ignore[method-assign]


@mutant("memory", "memory that is not counted")
class LosesDriverMemory(Broken):
    """Each call to ``unique`` makes ``mem_get_info`` report 1 MiB less free memory, although no memory is allocated."""

    lost = 0

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        type(self).lost += (1 << 20) * ("unique" in name)
        return call()

    def install(self) -> None:
        super().install()
        module: Any = self.device_module
        original = module.mem_get_info

        def mem_get_info(device: Any = None) -> tuple[int, int]:
            free, total = original(device)
            return max(0, free - self.lost), total

        module.mem_get_info = mem_get_info
