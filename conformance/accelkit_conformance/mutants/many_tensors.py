"""Faults in calls that each take many tensors: foreach operators, and the check for infinite gradients."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("optimizers", "many tensors")
class FindsInfinityInTheFirstOnly(Broken):
    """The check for infinite gradients looks at the first half of the tensors only."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith("_amp_foreach_non_finite_check_and_unscale_") or len(args[0]) < 2:
            return call()
        found = args[1].clone()
        half = len(args[0]) // 2
        func(args[0][:half], args[1], args[2])
        func(args[0][half:], found, args[2])
        return None


@mutant("optimizers", "many tensors")
class UpdatesThirtyTensors(Broken):
    """A foreach operator leaves the tensors after the first thirty unchanged."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith(("_foreach_add_", "_foreach_addcdiv_")) or len(args[0]) <= 30:
            return call()
        kept = [one.clone() for one in args[0][30:]]
        result = call()
        for one, before in zip(args[0][30:], kept, strict=True):
            one.copy_(before)
        return result


@mutant("optimizers", "many tensors")
class IgnoresStridesOfTheOthers(Broken):
    """``_foreach_addcmul_`` and ``_foreach_addcdiv_`` on a transposed tensor read some of the other operands in the wrong order.

    An operand is affected if it has the same strides as the transposed tensor.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith(("_foreach_addcdiv_", "_foreach_addcmul_")):
            return call()

        def read(one: Any, first: Any) -> Any:
            is_affected = first.ndim > 1 and not first.is_contiguous() and one.stride() == first.stride()
            return one.contiguous().as_strided(first.shape, first.stride()) if is_affected else one

        return func(
            args[0], *([read(one, first) for one, first in zip(many, args[0], strict=True)] for many in args[1:3]), *args[3:], **kwargs
        )
