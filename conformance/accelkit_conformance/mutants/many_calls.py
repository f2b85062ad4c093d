"""Faults that appear only in less common cases.

The cases are dtype conversions, rare operators, certain sizes, a device that is not the current device, long series of calls, and invalid
calls.
"""

from __future__ import annotations

from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


def _source(name: str, args: Any) -> Any:
    """Return the tensor that a call copies, or None if the call does not copy."""
    return args[1] if name == "copy_" else args[0] if name == "_to_copy" else None


@mutant("memory", "leaks of copies")
class KeepsConvertedCopies(Broken):
    """If a copy to the host changes the dtype, the buffer that the copy uses on the device is never freed."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        source = _source(name, args)
        if source is not None and result.device.type == "cpu" and result.dtype != source.dtype:
            self.kept.append(source.detach().clone())
        return result


@mutant("memory", "leaks of copies")
class KeepsRareResults(Broken):
    """``logcumsumexp`` and ``cdist`` allocate a workspace on each call and never free it."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("_logcumsumexp", "logcumsumexp", "_cdist_forward"):
            self.kept.append(args[0].new_empty(64))
        return call()


@mutant("interchange", "sizes of copies")
class LosesTheLastByte(Broken):
    """A copy of one-byte elements from the host sets the last byte to zero if there are more than 1,000 elements and their number is
    odd."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        source = _source(name, args)
        is_odd = source is not None and source.element_size() == 1 and source.numel() % 2 and source.numel() > 1000
        if is_odd and source.device.type == "cpu" and result.is_contiguous():
            result.view(-1)[-1] = 0
        return result


@mutant("interchange", "sizes of copies")
class ReusesStagingBuffers(Broken):
    """Every 700th copy of up to 64 elements from the host overwrites the result of the previous copy: all elements of that result become
    equal to the first element of the new copy."""

    last: Any = None
    count: ClassVar[list[int]] = [0]

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        source = _source(name, args)
        if source is not None and source.device.type == "cpu" and result.device.type != "cpu" and 0 < result.numel() <= 64:
            self.count[0] += 1
            last, type(self).last = self.last, result.detach()
            if self.count[0] % 700 == 0 and last is not None and last.dtype == result.dtype and not result.requires_grad:
                last.fill_(result.detach().reshape(-1)[0].item())
        return result


@mutant("interchange", "places of copies")
class ConvertsOnTheCurrentDevice(Broken):
    """A copy to the host gives zeros if the source is not contiguous and is not on the current device."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        source = _source(name, args)
        module: Any = self.device_module
        is_strided = source is not None and source.device.type == "fake_xpu" and not source.is_contiguous()
        if is_strided and result.device.type == "cpu" and module.current_device() != source.device.index:
            result.zero_()
        return result


@mutant("distributions", "many numbers")
class RepeatsAfterManyNumbers(Broken):
    """A draw of more than 2**24 numbers repeats its first 2**20 numbers at its end."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith(("rand", "randn")) and result.numel() > 1 << 24:
            result[-(1 << 20) :] = result[: 1 << 20].clone()
        return result


@mutant("distributions", "many numbers")
class PermutesBlocks(Broken):
    """``randperm`` of more than 1,000 numbers permutes the numbers only within blocks of 512."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name.startswith("randperm") and result.numel() > 1000:
            order = (torch.arange(result.numel(), device=result.device) // 512).to(result.dtype) * result.numel() + result
            result.copy_(order.argsort().to(result.dtype))
        return result


@mutant("errors", "changed arguments")
class WritesBeforeItChecks(Broken):
    """In-place operators such as ``addmm_`` and ``masked_fill_`` add 1 to their first argument before they raise an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except (RuntimeError, IndexError):
            if name.startswith(("addmm_", "addmv_", "addr_", "index_add_", "masked_fill_", "add_", "mul_", "lerp_", "scatter_")):
                args[0].add_(1)
            raise


@mutant("errors", "changed arguments")
class AcceptsAnyTarget(Broken):
    """``multi_margin_loss`` with invalid arguments returns 0 instead of raising an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except (RuntimeError, IndexError):
            if name == "multi_margin_loss":
                return args[0].new_zeros(())
            raise


@mutant("distributions", "many numbers")
class RepeatsWideIntegers(Broken):
    """If ``randint`` draws more than 100,000 integers from a range of 2**32 or more, the next such draw begins with the last 1,000 of
    them."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "randint.low" and args[1] - args[0] >= 1 << 32 and result.numel() > 100_000:
            last = self.__dict__.get("last")
            self.__dict__["last"] = result[-1000:].clone()
            if last is not None:
                result[:1000] = last
        return result
