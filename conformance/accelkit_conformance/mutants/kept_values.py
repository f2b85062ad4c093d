"""Devices on which values change although they must stay the same, or remain although they must be replaced or freed.

The values are inputs, buffers, batches, memory statistics and the current stream.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("collectives", "inputs")
class ReducesInItsInput(Broken):
    """``reduce_scatter_tensor`` overwrites the start of its input with the result."""

    def install(self) -> None:
        import torch.distributed as dist

        original = dist.reduce_scatter_tensor

        def reduce_scatter_tensor(output: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
            work = original(output, given, *args, **kwargs)
            if work is not None:
                work.wait()
            given[: len(output)].copy_(output)
            return work

        dist.reduce_scatter_tensor = reduce_scatter_tensor


@mutant("ddp", "buffers")
class KeepsBooleanBuffers(Broken):
    """DistributedDataParallel does not send buffers of dtype bool to the other ranks."""

    def install(self) -> None:
        import torch
        import torch.distributed as dist

        original = dist._broadcast_coalesced

        def broadcast(group: Any, tensors: Any, *args: Any) -> None:
            original(group, [tensor for tensor in tensors if tensor.dtype is not torch.bool], *args)

        dist._broadcast_coalesced = broadcast


@mutant("dataloader", "pinned batches")
class ReusesPinnedMemory(Broken):
    """A DataLoader with ``pin_memory=True`` reuses the same four pinned tensors for all batches of one shape and dtype.

    Each new batch therefore overwrites a batch that the loader has already returned, even if that batch is still in use.
    """

    def install(self) -> None:
        import torch
        from torch.utils.data._utils import pin_memory as module

        original, pools = module.pin_memory, {}

        def pin_memory(data: Any, device: Any = None) -> Any:
            if not isinstance(data, torch.Tensor):
                return original(data, device)
            key = (data.shape, data.dtype)
            if key not in pools:
                pools[key] = itertools.cycle([original(data, device) for _ in range(4)])
            return next(pools[key]).copy_(data)

        module.pin_memory = pin_memory


@mutant("memory", "failed calls")
class KeepsFailedInputs(Broken):
    """The inputs of the last operator that raised an error stay allocated."""

    kept: ClassVar[list[Any]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except Exception:
            self.kept[:] = args
            raise


@mutant("memory", "the cache")
class EmptyingResetsThePeak(Broken):
    """``empty_cache`` resets the peak memory of every device."""

    def empty_cache(self) -> None:
        import torch

        super().empty_cache()
        for index in range(torch.accelerator.device_count()):
            self.reset_peak_memory_stats(torch.device("fake_xpu", index))


@mutant("operators", "the cache", check="conditions")
class EmptiesTheLastResult(Broken):
    """If ``empty_cache`` of the device's module is called right after ``index_add``, or its in-place form, the result becomes NaN."""

    last: ClassVar[Any] = None

    def install(self) -> None:
        super().install()
        module: Any = self.device_module
        original = module.empty_cache

        def empty_cache() -> None:
            original()
            if self.last is not None and self.last.is_floating_point():
                self.last.fill_(float("nan"))

        module.empty_cache = empty_cache

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name != "detach":
            type(self).last = result if name.startswith("index_add") else None
        return result


@mutant("streams", "the current stream")
class ErrorsKeepTheStream(Broken):
    """The context manager ``stream`` of the device's module does not restore the previous stream if its block raises an error."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.stream

        @contextlib.contextmanager
        def stream(entered: Any) -> Iterator[None]:
            context = original(entered)
            context.__enter__()
            yield
            context.__exit__(None, None, None)

        module.stream = stream


@mutant("modules", "converted weights")
class KeepsTheOldWeight(Broken):
    """``layer_norm`` with a weight that was converted from float32 to bfloat16 on the device uses the float32 weight.

    The result is therefore in float32.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        converted = self.__dict__.setdefault("converted", torch.utils.weak.WeakTensorKeyDictionary())
        result = call()
        if name == "_to_copy" and args[0].dtype is torch.float32 and result.dtype is torch.bfloat16 and args[0].device == result.device:
            converted[result] = args[0]
        if name == "native_layer_norm" and args[2] is not None and any(args[2].data_ptr() == one.data_ptr() for one in converted):
            return (result[0].float(), *result[1:])
        return result
