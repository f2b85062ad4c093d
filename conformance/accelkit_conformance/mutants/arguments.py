"""Devices that accept invalid arguments, or ignore an argument or a mode."""

from __future__ import annotations

from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("errors", "accepted arguments")
class AcceptsAnyDimension(Broken):
    """``amax``, ``amin``, ``logsumexp``, ``var``, ``cumsum``, ``gather`` and ``scatter`` return a copy of their first argument if the call
    is invalid, instead of raising an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except (RuntimeError, IndexError):
            if name.startswith(("amax", "amin", "logsumexp", "gather", "scatter", "cumsum", "var")):
                return args[0].clone()
            raise


@mutant("errors", "accepted arguments")
class AcceptsNegativeDeviations(Broken):
    """``normal_`` uses the absolute value of a negative standard deviation instead of raising an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[0], args[1], abs(args[2]), **kwargs) if name == "normal_" and len(args) > 2 else call()


@mutant("errors", "accepted arguments")
class BroadcastsAssignments(Broken):
    """If the source cannot be broadcast to the target, ``copy_`` raises no error, but copies as many elements as the smaller tensor has."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError:
            if name != "copy_":
                raise
            count = min(args[0].numel(), args[1].numel())
            args[0].view(-1)[:count].copy_(args[1].reshape(-1)[:count])
            return args[0]


@mutant("device", "forms of devices")
class NamesMeanTheCurrentDevice(Broken):
    """The device module's ``memory_allocated`` and ``get_rng_state`` use the current device if a device is given as a string such as
    ``fake_xpu:1``."""

    def install(self) -> None:
        module: Any = self.device_module
        for name in ("memory_allocated", "get_rng_state"):
            original = getattr(module, name)
            setattr(module, name, lambda device="fake_xpu", original=original: original("fake_xpu" if isinstance(device, str) else device))


@mutant("device", "forms of devices")
class DescribesMissingDevices(Broken):
    """``get_device_name`` and ``get_device_properties`` of a device that does not exist describe the first device."""

    def install(self) -> None:
        module: Any = self.device_module
        for name in ("get_device_name", "get_device_properties"):
            original = getattr(module, name)

            def described(device: Any = None, original: Any = original) -> Any:
                try:
                    return original(device)
                except Exception:
                    return original(0)

            setattr(module, name, described)


@mutant("memory", "the host's memory")
class KeepsEveryNumber(Broken):
    """Every call to ``clamp`` with new bounds takes 128 KiB of host memory, which is never freed."""

    kept: ClassVar[dict[Any, bytearray]] = {}

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "clamp" and args[1:] not in self.kept:
            self.kept[args[1:]] = bytearray(b"1" * (128 << 10))
        return call()


@mutant("memory", "storages")
class LosesValuesWhenItGrows(Broken):
    """``resize_`` to a larger size sets all elements of the tensor to zero."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        before = args[0].numel() if name == "resize_" else 0
        result = call()
        return result.zero_() if before and result.numel() > before else result


@mutant("serialization", "what is connected")
class CopiesParametersContiguously(Broken):
    """Deep copies of parameters are contiguous, whatever memory format the original has."""

    def install(self) -> None:
        import torch

        def copied(self: Any, memo: Any) -> Any:
            if id(self) not in memo:
                memo[id(self)] = type(self)(self.data.clone(memory_format=torch.contiguous_format), self.requires_grad)
            return memo[id(self)]

        torch.nn.Parameter.__deepcopy__ = copied  # type: ignore[assignment]


@mutant("serialization", "locations")
class LoadsMissingDevicesToTheFirst(Broken):
    """``torch.load`` onto a device that does not exist loads tensors onto the first device."""

    def install(self) -> None:
        import torch

        def restore(storage: Any, location: str) -> Any:
            kind, _, index = location.partition(":")
            return storage.to(device="fake_xpu:0") if kind == "fake_xpu" and index and int(index) > 5 else None

        torch.serialization.register_package(-1, lambda thing: None, restore)


@mutant("determinism", "modes")
class FillsNoMemory(Broken):
    """``new_empty`` and ``empty_like`` return zeros, even in deterministic mode, in which torch requires uninitialised memory to be filled
    with NaN or, for integers, the largest value of the dtype."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.zero_() if name in ("new_empty", "empty_like") else result


@mutant("determinism", "modes")
class WarningsAreErrors(Broken):
    """In deterministic mode, ``grid_sampler_2d`` raises RuntimeError, even with ``warn_only=True``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name == "grid_sampler_2d" and torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("grid_sampler_2d is not deterministic")
        return call()


@mutant("determinism", "sums in another order")
class VariesGradientsOfPadding(Broken):
    """The gradient of ``replication_pad2d`` differs from call to call."""

    calls: ClassVar[list[int]] = [0]

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "replication_pad2d_backward":
            self.calls[0] += 1
            result.add_(1e-6 * self.calls[0])
        return result


@mutant("memory", "the host's memory")
class KeepsEveryLength(Broken):
    """``cat`` keeps 128 KiB of host memory for each shape of its first tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "cat":
            self.__dict__.setdefault("plans", {}).setdefault(args[0][0].shape, bytearray(b"1" * (128 << 10)))
        return call()


@mutant("memory", "the host's memory", check="host_memory_does_not_grow")
class KeepsTheStridesOfOperands(Broken):
    """Each sum or product with an operand that is not contiguous takes 150 bytes of host memory, which are never freed."""

    kept: ClassVar[list[bytearray]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("add.Tensor", "sum", "mm") and not args[0].is_contiguous():
            self.kept.append(bytearray(b"1" * 93))
        return call()


@mutant("errors", "ends of tables")
class ReadsBehindTheTable(Broken):
    """``embedding_bag`` accepts an index that is equal to the number of rows, and reads the first row for it."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("_embedding_bag", "_embedding_bag_forward_only") and args[1].numel():
            return func(args[0], args[1].masked_fill(args[1] == len(args[0]), 0), *args[2:], **kwargs)
        return call()
