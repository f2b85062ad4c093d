"""Operators that are composed of other operators, and therefore lose digits, the order of equal elements, or type promotion."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.derivatives import _Functions


@mutant("operators", "cancellation")
class SubtractsOneFromExp(Broken):
    """``expm1`` is computed as ``exp(x) - 1``, which loses all digits for arguments close to zero."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return args[0].exp() - 1 if name == "expm1" and args[0].is_floating_point() else call()


@mutant("operators", "cancellation")
class AddsOneInSoftplus(Broken):
    """``softplus`` is computed as ``log(1 + exp(x))``, which is zero for arguments below about -17."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return (args[0].exp() + 1).log() if name == "softplus" and len(args) == 1 and bool((args[0] < 0).all()) else call()


@mutant("operators", "order of equal elements")
class FlipsAscendingSorts(Broken):
    """A stable sort in descending order is computed as a flipped ascending sort, which reverses the order of equal elements."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        given = dict(zip(("dim", "descending"), args[1:], strict=False)) | kwargs
        if name != "sort.stable" or not args[0].ndim or not given.get("stable") or not given.get("descending"):
            return call()
        dim = given.get("dim", -1)
        return tuple(one.flip(dim) for one in args[0].sort(dim=dim, stable=True))


@mutant("operators", "type promotion")
class ConcatenatesInTheFirstDtype(Broken):
    """``cat`` of tensors with different dtypes returns a tensor with the dtype of the first tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func([one.to(args[0][0].dtype) for one in args[0]], *args[1:], **kwargs) if name == "cat" else call()


@mutant("operators", "type promotion")
class ComputesInTheFirstDtype(Broken):
    """``maximum`` and ``minimum`` of tensors with different dtypes return a tensor with the dtype of the first tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[0], args[1].to(args[0].dtype)) if name in ("maximum", "minimum") else call()


@mutant("arguments", "cancellation in variances", check="keyword_variants")
class SubtractsTheSquareOfTheMean(Broken):
    """``layer_norm`` computes the variance as the mean of the squares minus the square of the mean, and sets a negative variance to 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "native_layer_norm" or args[2] is not None or not args[0].numel():
            return call()
        x, dims = args[0], tuple(range(-len(args[1]), 0))
        mean = x.mean(dims, keepdim=True)
        factor = ((x * x).mean(dims, keepdim=True) - mean * mean).clamp(min=0).add(args[4]).rsqrt()
        return (x - mean) * factor, mean, factor


@mutant("arguments", "fused calls", check="chained_calls")
class FusesArgmaxWithSoftmax(Broken):
    """``argmax`` of the result of ``softmax`` returns a number that is not a valid index if the dtype is bfloat16."""

    last: Any = None

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "_softmax":
            self.last = result
        if name == "argmax" and args[0] is self.last and "bfloat16" in str(args[0].dtype):
            result.fill_(-(2**63))
        return result


@mutant("arguments", "scores in float16", check="range_of_float16")
class ScalesScoresLate(_Functions):
    """``scaled_dot_product_attention`` in float16 multiplies the scores by the scale only after they have been rounded to float16."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        if name != "scaled_dot_product_attention" or "float16" not in str(args[0].dtype) or len(args) > 3:
            return call()
        return (args[0] @ args[1].mT * args[0].shape[-1] ** -0.5).softmax(-1) @ args[2]
