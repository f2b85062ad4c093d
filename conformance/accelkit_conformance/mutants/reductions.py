"""Faults in reductions, sorts and counts that appear only for many elements, or if all elements have the same sign or the same value."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken

_BLOCK = 32


@mutant("arguments", "neutral elements")
class StartsAtZero(Broken):
    """``amax`` of more than 32 integers begins with 0 instead of the lowest integer."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        is_long = name == "amax" and result.dtype.is_signed and not result.is_floating_point() and args[0].numel() > _BLOCK
        return result.clamp_(min=0) if is_long else result


@mutant("arguments", "neutral elements")
class FindsNoInfinity(Broken):
    """``argmin`` begins with infinity, and returns -1 if no element is less."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name == "argmin" and args[0].is_floating_point():
            result.masked_fill_(torch.amin(args[0], *args[1:2]) == float("inf"), -1)
        return result


@mutant("operators", "many columns", check="large_tensors")
class SortsTheFirstColumns(Broken):
    """A sort along dimension 0 returns indices of 0 for all columns after the first 2**22."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "sort.stable" and args[0].dim() == 2 and kwargs.get("dim") == 0:
            result[1][:, 1 << 22 :].zero_()
        return result


@mutant("operators", "blocks of repeated tensors", check="large_tensors")
class RepeatsWholeBlocks(Broken):
    """``repeat`` of a 4-D tensor of two-byte elements writes zeros at the end of each row whose length is not a multiple of 32."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "repeat" and result.dim() == 4 and result.element_size() == 2 and result.shape[-1] > 32:
            result[..., result.shape[-1] // 32 * 32 :].zero_()
        return result


@mutant("operators", "counters", check="large_tensors")
class CountsInFloat32(Broken):
    """``bincount`` counts up to 2**24 only."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.clamp_(max=1 << 24) if name == "bincount" else result


@mutant("arguments", "counters")
class LosesAnUpdate(Broken):
    """``index_add`` of more than 2**20 elements to a tensor of two elements loses one of the added elements."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith("index_add") and args[0].numel() == 2 and args[2].numel() > 1 << 20:
            result[:1] -= args[3][:1]
        return result


@mutant("arguments", "counters")
class CountsRunsOf65535(Broken):
    """``unique`` counts an element at most 65,535 times."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "_unique2":
            result[2].clamp_(max=65_535)
        return result


@mutant("arguments", "many rows")
class InvertsTheFirst100000Rows(Broken):
    """``unique`` along a dimension returns inverse indices of 0 for all rows after the first 100,000."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "unique_dim":
            result[1][100_000:].zero_()
        return result


@mutant("arguments", "accumulating dtypes")
class ConvertsProducts(Broken):
    """``prod`` with ``dtype=`` multiplies the elements in their own dtype, and converts the result."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith("prod") or not kwargs.get("dtype") or not args[0].is_floating_point():
            return call()
        return func(*args, **{**kwargs, "dtype": args[0].dtype}).to(kwargs["dtype"])


@mutant("arguments", "accumulating dtypes")
class ConvertsSumsOfFractions(Broken):
    """``sum`` of floating-point numbers with ``dtype=torch.int64`` adds the fractions, and truncates the sum instead of its terms."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        is_hit = name.startswith("sum") and kwargs.get("dtype") is torch.int64 and args[0].is_floating_point()
        return func(*args, **{**kwargs, "dtype": torch.float32}).to(torch.int64) if is_hit else call()


@mutant("arguments", "reductions in several blocks")
class KeepsTwoBlocks(Broken):
    """``nansum``, ``std`` and norms over more than 2**18 elements leave out all elements after the first 2**18."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_hit = name in ("nansum", "std.correction", "linalg_vector_norm") and args[0].dim() == 1 and args[0].numel() > 1 << 18
        return func(args[0][: 1 << 18], *args[1:], **kwargs) if is_hit else call()
