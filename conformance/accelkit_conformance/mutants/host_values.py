"""Faults in copies, dtype conversions, pinned memory, and the exchange of values with Python and NumPy."""

from __future__ import annotations

import copy
import threading
import time
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("interchange", "rounding")
class TruncatesToBFloat16(Broken):
    """A copy from float32 to bfloat16 truncates instead of rounding."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        source = args[1] if name == "copy_" else args[0]
        if name in ("copy_", "_to_copy") and result.dtype is torch.bfloat16 and source.dtype is torch.float32 and result.numel():
            bits = (source.detach().cpu().contiguous().view(torch.int32) >> 16).to(torch.int16)
            result.copy_(bits.view(torch.bfloat16).expand(result.shape))
        return result


@mutant("interchange", "rounding")
class LosesNegativeZero(Broken):
    """A copy between floating-point dtypes makes negative zero positive."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        source = args[1] if name == "copy_" else args[0]
        is_conversion = name in ("copy_", "_to_copy") and result.dtype != source.dtype
        return result.add_(0.0) if is_conversion and result.is_floating_point() and not result.requires_grad else result


@mutant("interchange", "single elements")
class WritesOneElementLate(Broken):
    """If one write sets an element, and the next write sets the next element in memory, both elements get the value of the second write."""

    last: Any = None

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("copy_", "fill_.Scalar", "fill_.Tensor") and args[0].ndim == 0:
            last, type(self).last = self.last, args[0]
            if last is not None and last.device == args[0].device and last.storage_offset() + 1 == args[0].storage_offset():
                last.copy_(args[0])
        return result


@mutant("interchange", "single elements")
class ReadsTheFirstElement(Broken):
    """``item`` of a one-byte element at an odd offset returns the element before it."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        one = args[0] if args else None
        if name == "_local_scalar_dense" and one.element_size() == 1 and one.storage_offset() % 2:
            return func(one.as_strided((), (), one.storage_offset() - 1))
        return call()


@mutant("interchange", "pinned tensors")
class PinsCopiesOnly(Broken):
    """``pin_memory`` is correct for contiguous tensors only. For other tensors, it returns a copy that is not pinned."""

    def install(self) -> None:
        import torch

        original = torch.Tensor.pin_memory
        torch.Tensor.pin_memory = lambda self, *args: original(self, *args) if self.is_contiguous() else self.clone()  # type: ignore[method-assign]


@mutant("interchange", "sources of copies")
class ReadsSmallSourcesLate(Broken):
    """A non-blocking copy of up to 64 elements of pageable memory reads its source only after the call has returned."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        is_late = kwargs.get("non_blocking") if name == "_to_copy" else name == "copy_" and len(args) > 2 and args[2]
        source = args[0] if name == "_to_copy" else args[1] if name == "copy_" else None
        if is_late and source.device.type == "cpu" and source.numel() <= 64 and not source.is_pinned() and result.device.type == "fake_xpu":

            def later() -> None:
                time.sleep(0.002)
                with torch.no_grad():
                    result.copy_(source)

            threading.Thread(target=later).start()
        return result


@mutant("interchange", "aliases")
class CopiesShallowlyToTheHost(Broken):
    """``copy.copy`` of a tensor returns a tensor on the CPU."""

    def install(self) -> None:
        import torch

        def shallow(tensor: Any) -> Any:
            return tensor.cpu() if tensor.device.type == "fake_xpu" else tensor.detach()

        copy._copy_dispatch[torch.Tensor] = shallow  # type: ignore[attr-defined]


@mutant("interchange", "aliases")
class ReturnsItselfInsteadOfACopy(Broken):
    """If ``to`` with ``copy=True`` changes neither the dtype nor the device, its result shares memory with the original tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "_to_copy" and result.device == args[0].device and result.dtype == args[0].dtype:
            return args[0].detach()
        return result


@mutant("transfer", "sources of copies")
class ConvertsInPlace(Broken):
    """If a copy to the host converts a contiguous float32 tensor to a narrower dtype, it changes the tensor's first element."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        source = args[1] if name == "copy_" else args[0]
        is_conversion = name in ("copy_", "_to_copy") and result.device.type == "cpu" and result.element_size() < 4
        if is_conversion and source.dtype is torch.float32 and source.ndim and source.numel():
            with torch.no_grad():
                source.view(-1)[:1].add_(1) if source.is_contiguous() else None
        return result


@mutant("interchange", "results of copies")
class DetachesQueuedCopies(Broken):
    """``to`` with ``non_blocking=True`` detaches its result from the autograd graph."""

    def install(self) -> None:
        import torch

        original = torch.Tensor.to

        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            return result.detach() if kwargs.get("non_blocking") and result.device.type == "fake_xpu" else result

        torch.Tensor.to = to  # type: ignore[assignment,method-assign]


@mutant("interchange", "results of copies")
class ReadsFortranArraysInMemoryOrder(Broken):
    """``as_tensor`` of a NumPy array in Fortran order reads the values in memory order, so they end up in the wrong places."""

    def install(self) -> None:
        import torch

        original = torch.as_tensor

        def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
            if getattr(getattr(data, "flags", None), "fnc", False):
                data = data.ravel("K").reshape(data.shape)
            return original(data, dtype=dtype, device=device)

        torch.as_tensor = as_tensor  # type: ignore[assignment]


@mutant("interchange", "copies by DLPack")
class ImportsWithoutCopying(Broken):
    """``torch.from_dlpack`` ignores the argument ``copy``."""

    def install(self) -> None:
        super().install()
        import torch

        original = torch.from_dlpack

        def from_dlpack(exported: Any, *, copy: bool | None = None, **kwargs: Any) -> Any:
            return original(exported, **kwargs)

        torch.from_dlpack = from_dlpack
