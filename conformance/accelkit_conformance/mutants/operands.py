"""Operators that handle the memory of tensors wrongly.

Some misread operands that are conjugated, expanded, non-contiguous or overlapping. Some return results with the wrong layout, or return the
argument itself instead of a copy. Some lose elements when they resize a storage.
"""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("arguments", "lazy operands")
class ForgetsToConjugate(Broken):
    """``bmm`` and ``dot`` read the result of ``conj()`` without conjugating it."""

    def install(self) -> None:
        import torch
        from torch.overrides import TorchFunctionMode

        def plain(one: Any) -> Any:
            is_lazy = isinstance(one, torch.Tensor) and one.device.type == "fake_xpu" and one.is_conj()
            return torch._conj(one) if is_lazy else one

        class Functions(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                args = tuple(plain(one) for one in args) if func in (torch.bmm, torch.dot) else args
                return func(*args, **(kwargs or {}))

        Functions().__enter__()


@mutant("layout", "strides of results")
class ResultsAreContiguous(Broken):
    """Results of ``exp``, ``sigmoid``, ``mul`` and ``maximum`` with three or five dimensions are always contiguous."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.contiguous() if name in ("exp", "sigmoid", "mul.Tensor", "maximum") and result.ndim in (3, 5) else result


@mutant("layout", "gaps between rows")
class IgnoresRowGaps(Broken):
    """``mm`` and ``addmm`` ignore gaps in memory between the rows of their last argument, if each of these rows is contiguous."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        matrix = args[-1] if args else None
        if name not in ("mm", "addmm") or matrix.stride(1) != 1 or matrix.stride(0) <= matrix.shape[1] or not matrix.numel():
            return call()
        return func(*args[:-1], matrix.as_strided(matrix.shape, (matrix.shape[1], 1)), **kwargs)


@mutant("arguments", "expanded arguments")
class ReadsOneRow(Broken):
    """``bmm`` and ``lerp`` misread their second tensor if its first dimension is expanded. They read zeros for every index of this
    dimension except 0.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("bmm", "lerp.Tensor", "lerp.Scalar") or args[1].ndim < 2 or args[1].stride(0) or args[1].shape[0] < 2:
            return call()
        other = args[1].clone()
        other[1:] = 0
        return func(args[0], other, *args[2:], **kwargs)


@mutant("arguments", "operands in one memory")
class WritesBeforeItReads(Broken):
    """``sub`` and ``div`` copy their first argument into the ``out=`` tensor before they read their second argument."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        out = kwargs.get("out")
        if name not in ("sub.out", "div.out") or out.shape != args[0].shape:
            return call()
        out.copy_(args[0])
        return func(out, *args[1:], **kwargs)


@mutant("layout", "storages")
class LosesOldElements(Broken):
    """If ``resize_`` makes the storage larger, it fills the tensor with zeros instead of keeping the old elements."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        before = args[0].untyped_storage().nbytes() if name == "resize_" else 0
        result = call()
        return result.zero_() if name == "resize_" and result.untyped_storage().nbytes() > before > 0 else result


@mutant("operators", "shared memory")
class ReturnsItsArgument(Broken):
    """``roll`` by zero places returns its argument instead of a copy."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return args[0] if name == "roll" and not any(args[1]) else call()


@mutant("operators", "matrices")
class SolvesTheConjugate(Broken):
    """``solve`` with complex matrices that are stored by columns reads the conjugate matrices."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "_linalg_solve_ex" and args[0].is_complex() and args[0].mT.is_contiguous():
            return func(args[0].conj().resolve_conj(), *args[1:], **kwargs)
        return call()


@mutant("operators", "dtypes of results")
class ConvertsOperandsOfMaximum(Broken):
    """``maximum`` with ``out=`` converts its operands, not its result, to the dtype of ``out``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "maximum.out":
            return func(*(one.to(kwargs["out"].dtype) for one in args), **kwargs)
        return call()


@mutant("layout", "conjugate views")
class AdjointsOnlyTranspose(Broken):
    """``adjoint`` and ``mH`` of a complex tensor transpose it and do not conjugate it."""

    def install(self) -> None:
        super().install()
        import torch

        for owner, name in ((torch, "adjoint"), (torch.Tensor, "adjoint")):
            original = getattr(owner, name)
            setattr(owner, name, lambda x, original=original: x.mT if x.device.type == "fake_xpu" else original(x))
