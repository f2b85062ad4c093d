"""Faults in copies, deep copies, pinned batches, saved files, pickled tensors and in-place foreach operators."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

from accelkit import tree_map
from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


def _is_to_host(name: str, args: Any, kwargs: Any) -> bool:
    if name == "_to_copy":
        return str(kwargs.get("device")) == "cpu"
    return name == "copy_" and args[0].device.type == "cpu"


@mutant("transfer", "bits")
class CanonicalisesNan(Broken):
    """A copy to the host replaces every NaN with the default quiet NaN."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if _is_to_host(name, args, kwargs) and result.is_floating_point():
            result[result.isnan()] = float("nan")
        return result


@mutant("transfer", "bits")
class RoundsThroughFloat(Broken):
    """Copying an int64 tensor to the host converts its values to float32 and back."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        return (
            result.float().to(torch.int64)
            if _is_to_host(name, args, kwargs) and name == "_to_copy" and result.dtype is torch.int64
            else result
        )


@mutant("transfer", "copies lose the layout")
class CopiesInStorageOrder(Broken):
    """When a transposed matrix is copied to the host, the values of the copy are in storage order."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        source = args[0]
        if (
            name == "_to_copy"
            and _is_to_host(name, args, kwargs)
            and source.ndim == 2
            and not source.is_contiguous()
            and source.t().is_contiguous()
        ):
            return torch.as_strided(result, result.shape, (result.shape[1], 1)).clone()
        return result


@mutant("transfer", "copies lose the layout")
class CopiesWithoutBroadcasting(Broken):
    """If ``copy_`` must broadcast a 1-D source to a 2-D target, it writes only the first row of the target."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "copy_" and args[0].ndim == 2 and args[1].ndim == 1:
            args[0][0].copy_(args[1])
            return args[0]
        return call()


@mutant("transfer", "copies lose the layout", check="every_kind_of_copy")
class CopiesTheGaps(Broken):
    """If both tensors have the same dtype and the same strides, with gaps, a copy to the host also copies what is in the gaps."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "copy_" or not _is_to_host(name, args, kwargs) or args[0].dtype != args[1].dtype:
            return call()
        if args[0].shape != args[1].shape or args[0].stride() != args[1].stride() or args[0].is_contiguous():
            return call()
        span = 1 + sum((length - 1) * step for length, step in zip(args[0].shape, args[0].stride(), strict=True))
        func(*(one.as_strided((span,), (1,)) for one in args[:2]), *args[2:], **kwargs)
        return args[0]


@mutant("transfer", "copies that convert")
class RoundsToIntegers(Broken):
    """``copy_`` from a floating-point dtype to int16 or int8 rounds instead of truncating."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name == "copy_" and args[0].dtype in (torch.int16, torch.int8) and args[1].is_floating_point():
            return func(args[0], (args[1].float() + 0.5).floor(), *args[2:], **kwargs)
        return call()


@mutant("transfer", "copies that convert")
class ConvertsOneBlock(Broken):
    """A copy between dtypes converts only the first 65,536 elements. The other elements of the result are 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        source = args[1] if name == "copy_" else args[0]
        if name in ("copy_", "_to_copy") and result.numel() > 65_536 and result.is_contiguous() and result.dtype != source.dtype:
            result.view(-1)[65_536:] = 0
        return result


@mutant("transfer", "copies that convert")
class ConvertsThroughFloat32(Broken):
    """If a copy between the host and the device changes the dtype, and neither dtype is complex, the values go through float32."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name != "copy_" or args[0].device.type == args[1].device.type or args[0].dtype == args[1].dtype:
            return call()
        is_complex = args[0].is_complex() or args[1].is_complex()
        return func(args[0], args[1] if is_complex else args[1].to(torch.float32), *args[2:], **kwargs)


@mutant("transfer", "copies are late")
class ReadsPageableMemoryLate(Broken):
    """A non-blocking copy from pageable memory reads the source only after the call has returned."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name == "_to_copy" and kwargs.get("non_blocking") and args[0].device.type == "cpu" and result.device.type == "fake_xpu":
            source = args[0]

            def later() -> None:
                time.sleep(0.002)
                with torch.no_grad():
                    result.copy_(source)

            thread = threading.Thread(target=later)
            thread.start()
            result.zero_()
        return result


@mutant("serialization", "files")
class LoadsToTheCPU(Broken):
    """``torch.load`` returns CPU tensors where it should return tensors on the device."""

    def install(self) -> None:
        import torch

        torch.serialization.register_package(
            -1, lambda thing: None, lambda thing, location: thing if location.startswith("fake_xpu") else None
        )


@mutant("serialization", "files")
class LoadsCopies(Broken):
    """``torch.load`` gives each tensor a storage of its own, even if the saved tensors shared a storage."""

    def install(self) -> None:
        import torch

        original = torch.load

        def separate(leaf: Any) -> Any:
            return leaf.clone() if type(leaf) is torch.Tensor and leaf.device.type == "fake_xpu" else leaf

        torch.load = lambda *args, **kwargs: tree_map(separate, original(*args, **kwargs))


@mutant("optimizers", "in-place lists")
class ForeachForgetsTheLast(Broken):
    """In-place operators on lists of tensors do not change the last tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith("_foreach_") and name.split(".", maxsplit=1)[0].endswith("_") and len(args[0]) > 1:
            kept = args[0][-1].clone()
            result = call()
            args[0][-1].copy_(kept)
            return result
        return call()


@mutant("serialization", "copies")
class DeepCopiesShareMemory(Broken):
    """A deep copy of a tensor that is not a parameter shares memory with the original."""

    def install(self) -> None:
        import torch

        original = torch.Tensor.__deepcopy__

        def deepcopy(tensor: Any, memo: Any) -> Any:
            is_plain = type(tensor) is torch.Tensor and tensor.device.type == "fake_xpu"
            return tensor.detach() if is_plain else original(tensor, memo)

        torch.Tensor.__deepcopy__ = deepcopy  # type: ignore[method-assign]


@mutant("serialization", "copies")
class UnpicklesWithoutGradient(Broken):
    """A parameter that has been pickled and unpickled no longer requires a gradient."""

    def install(self) -> None:
        import torch

        original = torch._utils._rebuild_parameter

        @functools.wraps(original)  # pickle looks up the function by its name
        def rebuild(data: Any, requires_grad: bool, hooks: Any) -> Any:
            return original(data, requires_grad and data.device.type != "fake_xpu", hooks)

        torch._utils._rebuild_parameter = rebuild  # type: ignore[assignment]


@mutant("serialization", "lazy conjugation")
class SavesWithoutConjugation(Broken):
    """``torch.save`` and ``pickle`` save ``x.conj()`` as ``x``."""

    def install(self) -> None:
        import torch

        original = torch._utils.get_tensor_metadata

        def metadata(tensor: Any) -> Any:
            found = original(tensor)
            return {key: value for key, value in found.items() if key != "conj"} if tensor.device.type == "fake_xpu" else found

        torch._utils.get_tensor_metadata = metadata  # type: ignore[assignment]


@mutant("dataloader", "pinned batches")
class PinsNoObjects(Broken):
    """A DataLoader with ``pin_memory=True`` does not call the method ``pin_memory`` of batches that are not tensors."""

    def install(self) -> None:
        import torch
        from torch.utils.data._utils import pin_memory as module

        original = module.pin_memory

        def pin(data: Any, device: Any = None) -> Any:
            is_object = hasattr(data, "pin_memory") and not isinstance(data, torch.Tensor)
            return data if is_object else original(data, device)

        module.pin_memory = pin


@mutant("transfer", "queued copies")
class PacksTooEarly(Broken):
    """A non-blocking copy from a strided tensor in pinned memory reads the tensor too early.

    It reads the tensor immediately, although a previous copy in the same stream may not have written to the tensor yet.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "copy_" and args[1].device.type == "cpu" and not args[1].is_contiguous():
            return func(args[0], args[1].clone(), *args[2:], **kwargs)
        return call()


@mutant("transfer", "lazy views")
class CopiesLoseTheSign(Broken):
    """``copy_`` and ``to`` ignore the negative bit of a source on the device, such as ``x.conj().imag``."""

    def install(self) -> None:
        import torch

        to, copy_ = torch.Tensor.to, torch.Tensor.copy_

        def without_sign(tensor: Any) -> Any:
            return torch._neg_view(tensor) if tensor.device.type == "fake_xpu" and tensor.is_neg() else tensor

        torch.Tensor.to = lambda tensor, *args, **kwargs: to(without_sign(tensor), *args, **kwargs)  # type: ignore[method-assign]
        torch.Tensor.copy_ = lambda tensor, source, *args, **kwargs: copy_(tensor, without_sign(source), *args, **kwargs)  # type: ignore[method-assign]


@mutant("transfer", "broadcasts")
class RepeatsASmallerSource(Broken):
    """``copy_`` from the host fills a larger target by repeating the source's elements instead of broadcasting.

    This happens only if the source and the target have the same number of dimensions.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        target, source = args[:2] if name == "copy_" else (None, None)
        if source is None or source.device.type != "cpu" or source.dim() != target.dim() or not 0 < source.numel() < target.numel():
            return call()
        repeated = source.flatten().repeat(target.numel() // source.numel()).view(target.shape)
        return func(target, repeated, *args[2:], **kwargs)
