"""Faults that appear only if a tensor has many dimensions or a long dimension."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("operators", "dimensions")
class HasFourDimensions(Broken):
    """If a tensor has more than four dimensions, ``cumsum`` and ``cumprod`` ignore ``dim`` and run along the last dimension."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[0], -1, **kwargs) if name in ("cumsum", "cumprod") and args[0].ndim > 4 else call()


@mutant("operators", "dimensions")
class CountsRowsIn16Bits(Broken):
    """If a result of ``bmm`` or ``softmax`` has more than 65,536 rows, row ``65536 + i`` repeats row ``i``.

    A row is an entry along the first dimension.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("bmm", "_softmax") and result.ndim > 1 and len(result) > 65_536:
            result[65_536:] = result[: len(result) - 65_536].clone()
        return result


@mutant("operators", "dimensions")
class SkipsNansInLongRows(Broken):
    """``kthvalue`` over more than 128 elements treats NaN as less than every number instead of greater than every number."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        dim = args[2] if len(args) > 2 else -1
        if name != "kthvalue" or not args[0].ndim or args[0].shape[dim] <= 128:
            return call()
        return func(torch.nan_to_num(args[0], nan=-float("inf")), *args[1:], **kwargs)


@mutant("operators", "padding of rows", check="conditions")
class FillsScansWithNan(Broken):
    """``logcumsumexp`` gives NaN after two neighbouring elements that are -inf."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "_logcumsumexp" and args[0].ndim:
            x = args[0].movedim(args[1], -1)
            is_run = (x[..., 1:] == -float("inf")) & (x[..., :-1] == -float("inf"))
            result.movedim(args[1], -1)[..., 1:].masked_fill_(is_run, float("nan"))
        return result
