"""Faults in samplers that appear only in large draws, for extreme or empty parameters, in complex dtypes, or in the joint distribution."""

from __future__ import annotations

from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.derivatives import _Functions


@mutant("random", "ends of intervals")
class RoundsUpToOne(Broken):
    """``rand_like`` rounds its largest float32 numbers to 1."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "rand_like" and result.element_size() == 4:
            result.masked_fill_(result >= 1 - 2.0**-22, 1.0)
        return result


@mutant("random", "ends of intervals")
class DrawsARareCategory(Broken):
    """Once in 2**20 rows, ``multinomial`` draws the last category, even if it has no weight."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "multinomial" and result.dim() == 2:
            result[777 :: 1 << 20] = args[0].shape[1] - 1
        return result


@mutant("distributions", "extreme parameters of samplers")
class CountsInInt32(Broken):
    """``poisson`` draws no number above 2**31 - 1."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.clamp_(max=2.0**31 - 1) if name == "poisson" else result


@mutant("distributions", "extreme parameters of samplers")
class RaisesSmallShapes(Broken):
    """``_standard_gamma`` replaces shapes below 0.05 by 0.05."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[0].clamp(min=0.05), *args[1:], **kwargs) if name == "_standard_gamma" else call()


@mutant("distributions", "dtypes of samplers")
class WidensComplexNumbers(Broken):
    """The real and the imaginary part of complex random numbers of ``randn`` and ``normal_`` have a variance of 1 instead of 1/2."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.mul_(2**0.5) if name in ("randn", "normal_") and result.is_complex() else result


@mutant("distributions", "dtypes of samplers")
class RepeatsRealParts(Broken):
    """The imaginary parts of complex numbers of ``rand_like`` are equal to the real parts."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "rand_like" and result.is_complex():
            result.imag.copy_(result.real)
        return result


@mutant("distributions", "categories")
class ContinuesWithTheNextCategory(Broken):
    """If all categories have a weight, ``multinomial`` without replacement draws successive categories."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name == "multinomial" and not any(args[2:3]) and result.shape[-1] > 1 and bool((args[0] > 0).all()):
            steps = torch.arange(result.shape[-1], device=result.device)
            result.copy_((result[..., :1] + steps) % args[0].shape[-1])
        return result


@mutant("distributions", "categories")
class DrawsEvenCategories(Broken):
    """``multinomial`` with more than 2**19 categories draws only categories with an even number."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.bitwise_and_(-2) if name == "multinomial" and args[0].shape[-1] > 1 << 19 else result


@mutant("distributions", "empty parameters")
class NeedsParameters(Broken):
    """``multinomial`` and ``binomial`` with empty parameters raise an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("multinomial", "binomial") and args[0].numel() == 0:
            raise RuntimeError("invalid configuration argument")
        return call()


@mutant("random", "first use")
class StaysAfterTheFirstState(Broken):
    """The first ``rand`` after the first call to the module's ``set_rng_state`` in a process does not advance the state."""

    states: ClassVar[list[Any]] = []

    def install(self) -> None:
        super().install()
        module: Any = self.device_module
        original = module.set_rng_state

        def set_rng_state(state: Any, *args: Any, **kwargs: Any) -> None:
            original(state, *args, **kwargs)
            if not self.states:
                self.states.append(lambda: original(state, *args, **kwargs))

        module.set_rng_state = set_rng_state

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "rand" and len(self.states) == 1:
            self.states[0]()
            self.states.append(None)
        return result


@mutant("random", "random functions under vmap")
class FusesDropout(_Functions):
    """``dropout`` calls a custom operator of the plugin. ``torch.vmap`` does not know that this operator is random, so the option
    ``randomness`` has no effect on it."""

    def install(self) -> None:
        super().install()
        import torch

        def dropout(x: Any, p: float) -> Any:
            return x * (torch.rand_like(x) >= p) / (1 - p)

        schema = "(Tensor x, float p) -> Tensor"
        self.dropout: Any = torch.library.custom_op("accelkit_conformance::fused_dropout", dropout, mutates_args=(), schema=schema)

    def change(self, name: str, call: Any, args: Any) -> Any:
        from torch._C._functorch import is_batchedtensor

        return self.dropout(args[0], 0.5) if name == "dropout" and is_batchedtensor(args[0]) else call()
