"""Random numbers with wrong seeds, states or distributions."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken, changed


@mutant("random", "seeds")
class IgnoresSeeds(Broken):
    """Seeding has no effect."""

    def install(self) -> None:
        super().install()
        self.device_module.manual_seed_all = self.device_module.manual_seed = lambda seed: None  # type: ignore[attr-defined]

    def manual_seed(self, seed: int) -> None:
        pass


@mutant("random", "seeds")
class SeedsAreCoarse(Broken):
    """The two lowest bits of a seed are ignored."""

    def manual_seed(self, seed: int) -> None:
        super().manual_seed(seed & ~3)


@mutant("random", "states")
class StatesAreNotSet(Broken):
    """``set_rng_state`` has no effect."""

    def set_rng_state(self, state: Any, device: Any) -> None:
        pass


@mutant("checkpoint", "states")
class StatesAreOld(Broken):
    """``get_rng_state`` always returns the state that it returned on its first call."""

    first: Any = None

    def get_rng_state(self, device: Any) -> Any:
        if self.first is None:
            type(self).first = super().get_rng_state(device)
        return self.first


@mutant("random", "draws")
class NeverAdvances(Broken):
    """Drawing random numbers does not advance the state."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith(("uniform_", "rand", "normal_")):
            state = super().get_rng_state(args[0].device if args and hasattr(args[0], "device") else kwargs["device"])
            result = call()
            super().set_rng_state(state, result.device)
            return result
        return call()


@mutant("random", "draws")
class RepeatsItself(Broken):
    """The second half of a large draw repeats the first half."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith(("uniform_", "rand", "normal_")) and result.ndim == 1 and result.is_floating_point() and result.numel() > 1000:
            half = result.numel() // 2
            result[half : 2 * half] = result[:half].clone()
        return result


@mutant("random", "distributions")
class UniformIsNarrow(Broken):
    """Uniform random numbers are multiplied by 0.97, so numbers from 0 to 1 never exceed 0.97."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.mul_(0.97) if name in ("uniform_", "rand") else result


@mutant("random", "distributions")
class NormalIsWide(Broken):
    """Normally distributed random numbers are multiplied by 1.05, so their standard deviation is 5% too large."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.mul_(1.05) if name.startswith(("normal_", "randn")) else result


@mutant("random", "distributions")
class DropoutKeepsTooMuch(Broken):
    """Dropout drops half as many elements as it should."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "native_dropout":
            return func(args[0], args[1] / 2, *args[2:], **kwargs)
        return func(args[0], 1 - (1 - args[1]) / 2, *args[2:], **kwargs) if name == "bernoulli_.float" and args[1] > 0.5 else call()


@mutant("random", "the host's generator")
class DrawsFromTheHost(Broken):
    """``rand`` draws its numbers from the generator of the CPU and copies them to the device."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name in ("uniform_", "rand"):
            result = call()
            return result.copy_(torch.rand(result.shape)) if name == "rand" else result
        return changed(call(), lambda x: x)


@mutant("random", "permutations")
class PermutationsRepeat(Broken):
    """The last number of a long random permutation repeats the first."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith("randperm") and result.numel() > 512:
            result[-1] = result[0]
        return result


@mutant("random", "generators")
class IgnoresGenerators(Broken):
    """``exponential_`` and ``geometric_`` ignore their argument ``generator`` and draw from the default generator."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("exponential_", "geometric_"):
            return func(*args, **{key: value for key, value in kwargs.items() if key != "generator"})
        return call()


@mutant("random", "bounds")
class HalvesReachTheEnd(Broken):
    """If more than 1,000 uniform random numbers are drawn in float16 or bfloat16, the last one is the upper end of the range."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("uniform_", "rand") and result.element_size() == 2 and result.numel() > 1000:
            result.view(-1)[-1] = 1.0 if name == "rand" else args[2] if len(args) > 2 else 1.0
        return result


@mutant("random", "destinations")
class FillsHalfOfASlice(Broken):
    """``normal_`` fills only the first half of a tensor that is not contiguous."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "normal_" or args[0].is_contiguous():
            return call()
        half = args[0].shape[0] // 2
        kept = args[0][half:].clone()
        result = call()
        args[0][half:].copy_(kept)
        return result


@mutant("random", "destinations")
class SlicesDoNotAdvance(Broken):
    """On a tensor that is not contiguous, ``normal_`` and ``uniform_`` do not advance the default generator.

    The next call therefore repeats the numbers.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("normal_", "uniform_") or args[0].is_contiguous() or kwargs.get("generator") is not None:
            return call()
        state = super().get_rng_state(args[0].device)
        result = call()
        super().set_rng_state(state, args[0].device)
        return result


@mutant("distributions", "large draws")
class RepeatsLargeDraws(Broken):
    """Random float32 tensors of more than 65,536 elements repeat their first 65,536 numbers."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name in ("rand", "randn", "normal_", "uniform_") and result.numel() > 1 << 16 and result.dtype is torch.float32:
            result.copy_(result.flatten()[: 1 << 16].repeat(result.numel() // (1 << 16) + 1)[: result.numel()].view(result.shape))
        return result
