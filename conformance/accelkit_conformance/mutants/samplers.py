"""Faults in samplers and dropout that appear only for some parameters, dtypes or inputs, and faults in generators."""

from __future__ import annotations

from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("distributions", "parameters of samplers")
class SharesDeviations(Broken):
    """``normal`` with tensors of means and standard deviations uses the first standard deviation for all elements."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "normal.Tensor_Tensor" and args[1].numel():
            return func(args[0], args[1].flatten()[:1].expand_as(args[1]).contiguous(), *args[2:], **kwargs)
        return call()


@mutant("random", "parameters of samplers")
class IgnoresTheMedian(Broken):
    """``cauchy_`` always draws with a median of 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[0], 0.0, *args[2:], **kwargs) if name == "cauchy_" and len(args) > 1 else call()


@mutant("distributions", "dtypes of samplers")
class WidensHalves(Broken):
    """In float16 and bfloat16, ``exponential_`` draws numbers that are twice as large as they should be."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.mul_(2) if name == "exponential_" and result.element_size() == 2 else result


@mutant("distributions", "ranges of integers")
class DrawsIntegersAsFloats(Broken):
    """``randint`` and ``random_`` round int64 results to integers that float32 can represent."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name.startswith(("randint", "random_")) and result.dtype is torch.int64:
            result.copy_(result.float().double().clamp(max=2.0**63 - 2.0**39).long())  # the largest float32 number that fits into int64
        return result


@mutant("distributions", "certain outcomes")
class NeverDrawsCertainEvents(Broken):
    """``bernoulli`` of a tensor draws 0 where the probability is 1."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.masked_fill_(args[0] == 1, 0) if name == "bernoulli" else result


@mutant("distributions", "certain outcomes")
class DrawsCategoriesWithoutWeight(Broken):
    """With ``num_samples=1``, ``multinomial`` draws category 0 in every 500th row, even if category 0 has no weight."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "multinomial" and result.ndim == 2 and result.shape[1] == 1:
            result[2::500] = 0
        return result


@mutant("distributions", "masks of dropout")
class MasksWhatIsZero(Broken):
    """Dropout takes its mask from its result, so zeros in the input get no gradient."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return (result[0], result[0] != 0) if name == "native_dropout" else result


@mutant("distributions", "masks of dropout")
class DropsEqualChannels(Broken):
    """``dropout2d`` drops the same channels in the second half of the samples as in the first."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "bernoulli_.float" and result.ndim == 4 and result.shape[0] > 1 and result.shape[2:].numel() == 1:
            half = result.shape[0] // 2
            result[half : 2 * half] = result[:half].clone()
        return result


@mutant("distributions", "advancing the generator")
class AdvancesByHalf(Broken):
    """A draw of uniform random numbers begins with the second half of the previous draw of the same size."""

    last: ClassVar[dict[int, Any]] = {}

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("rand", "uniform_") and result.ndim == 1 and kwargs.get("generator") is None and result.numel() > 1:
            half = result.numel() // 2
            drawn = result.clone()
            if half in self.last:
                result[:half] = self.last[half]
            self.last[half] = drawn[half : 2 * half]
        return result


@mutant("random", "the host's generator")
class ChoosesOnTheHost(Broken):
    """If no generator is given, ``multinomial`` and ``poisson`` on the device use the generator of the CPU."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("multinomial", "poisson") and kwargs.get("generator") is None and len(args) < 4:
            return func(args[0].cpu(), *args[1:], **kwargs).to(args[0].device)
        return call()


@mutant("random", "seeds that stay")
class GeneratorsKeepASpareNumber(Broken):
    """A generator that draws a single normally distributed value also stores the negative of this value.

    The next draw of several normally distributed values, from this generator or from another, begins with the stored value. This happens
    even if the generator's state has been set in between.
    """

    spare: ClassVar[list[float]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        generator = kwargs.get("generator")
        if name.partition(".")[0] not in ("randn", "normal_") or generator is None:
            return result
        if self.spare and result.numel() > 1:
            result.view(-1)[0] = self.spare.pop()
        elif result.numel() == 1:
            self.spare[:] = [-float(result.flatten()[0])]
        return result


@mutant("random", "generators")
class AcceptsGeneratorsOfTheHost(Broken):
    """If ``normal_`` or ``uniform_`` on the device is given a generator of the CPU, it does not raise an error.

    Instead, it draws from the default generator of the device.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        generator = kwargs.get("generator")
        if name in ("normal_", "uniform_") and generator is not None and generator.device.type == "cpu" and args[0].device.type != "cpu":
            return func(*args, **{key: value for key, value in kwargs.items() if key != "generator"})
        return call()


@mutant("random", "generators")
class GeneratorsTruncateSeeds(Broken):
    """A ``torch.Generator`` uses only the lower 63 bits of its seed."""

    def install(self) -> None:
        import torch

        class Generator(torch.Generator):
            def manual_seed(self, seed: int) -> Any:
                super().manual_seed(seed % (1 << 63))
                return self

        torch.Generator = Generator  # type: ignore[misc]


@mutant("random", "single draws")
class DrawsOnceFromTheDefaultGenerator(Broken):
    """``multinomial`` with a single draw for each row ignores ``generator=``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(*args, **{**kwargs, "generator": None}) if name == "multinomial" and args[1] == 1 else call()


@mutant("random", "many dimensions")
class SharesNumbersOfChannels(Broken):
    """``uniform_`` of a tensor with four or more dimensions draws the same numbers for all indices of the second dimension."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "uniform_" and result.dim() >= 4 and result.numel():
            values = result.detach()
            values.copy_(values[:, :1].clone().expand_as(values))
        return result


@mutant("random", "ends of intervals")
class WaitsForNoTime(Broken):
    """``exponential_`` rounds the smallest of its numbers to 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "exponential_":
            result.masked_fill_(result < 2.0**-18, 0.0)
        return result


@mutant("distributions", "ranges of integers")
class DrawsNoNegativeFloats(Broken):
    """In float32 and float64, ``random_`` draws 2**32 instead of -1."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        is_hit = name == "random_.from" and result.is_floating_point() and result.element_size() > 2
        return result.masked_fill_(result == -1, 2.0**32) if is_hit else result


@mutant("distributions", "parameters of samplers")
class DrawsPositiveLogarithms(Broken):
    """``log_normal_`` uses the absolute value of the mean."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[0], abs(args[1]), *args[2:], **kwargs) if name == "log_normal_" and len(args) > 1 else call()
