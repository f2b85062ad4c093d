"""Faults in version counters, in samplers with ``out=``, in deterministic mode and in reporting the current device."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("errors", "versions")
class SamplesWithoutANewVersion(Broken):
    """``normal_`` and ``exponential_`` do not increase the version counter of the tensor to which they write."""

    def install(self) -> None:
        import torch

        for name in ("normal_", "exponential_"):
            original = getattr(torch.Tensor, name)

            def sample(self: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
                if self.device.type == "fake_xpu":
                    with torch.autograd._unsafe_preserve_version_counter(self):
                        return original(self, *args, **kwargs)
                return original(self, *args, **kwargs)

            setattr(torch.Tensor, name, sample)


@mutant("errors", "versions")
class ReadingCountsAsWriting(Broken):
    """``contiguous`` and ``clone`` increase the version counter of a tensor that is not contiguous and does not require a gradient."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name == "clone" and not args[0].is_contiguous() and not args[0].requires_grad:
            torch.autograd.graph.increment_version(args[0])
        return call()


@mutant("distributions", "results of samplers")
class DrawsIntoACopy(Broken):
    """If the ``out=`` tensor is not contiguous, ``bernoulli`` and ``multinomial`` write to a copy of it and leave it unchanged."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        out = kwargs.get("out")
        if name in ("bernoulli.out", "multinomial.out") and out is not None and out.numel() and not out.is_contiguous():
            func(*args, **{**kwargs, "out": out.clone()})
            return out
        return call()


@mutant("determinism", "sums in another order")
class HalvesDeterministicGradients(Broken):
    """In deterministic mode, the gradient of bicubic interpolation is half as large as it should be."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        is_faulty = name.startswith("upsample_bicubic2d_backward") and torch.are_deterministic_algorithms_enabled()
        return result.mul_(0.5) if is_faulty else result


@mutant("determinism", "deterministic indexing")
class AssignsToOneElement(Broken):
    """In deterministic mode, ``x[index] = value`` with one index and one value changes only the first element of the indexed row."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if not name.startswith(("index_put", "_index_put")) or not torch.are_deterministic_algorithms_enabled():
            return call()
        x, indices, values, *others = args
        if len(indices) != 1 or indices[0].numel() != 1 or values.numel() != 1 or x.ndim < 2:
            return call()
        place = [torch.zeros(1, dtype=torch.int64, device=x.device)] * (x.ndim - 1)
        return func(x, [*indices, *place], values, *others, **kwargs)


@mutant("device", "current devices")
class ReportsTheFirstDevice(Broken):
    """``torch.accelerator.current_device_index`` always returns 0."""

    def install(self) -> None:
        import torch

        module: Any = self.device_module
        original = torch.accelerator.current_device_index
        module.current_device = original
        torch.accelerator.current_device_index = lambda: 0
