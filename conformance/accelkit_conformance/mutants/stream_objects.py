"""Faults in streams and events, in functions that report memory, in the cache, in addresses and in the profiler."""

from __future__ import annotations

from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.ordering import Slow


@mutant("streams", "recording events")
class RecordsOnTheCurrentStream(Slow):
    """Stream.record_event records the event on the current stream instead of on the stream itself."""

    def install(self) -> None:
        super().install()
        import torch

        class Stream(torch.Stream):
            def record_event(self, event: Any = None) -> Any:
                event = torch.Event(self.device) if event is None else event
                event.record()
                return event

        torch.Stream = Stream  # type: ignore[misc]


@mutant("streams", "foreign events")
class StreamsIgnoreEventsOfTheModule(Slow):
    """An event of the device's module cannot be recorded on a stream of torch, and ``wait_event`` of such a stream ignores the event."""

    def install(self) -> None:
        super().install()
        import torch

        class Event(torch.Event):
            def record(self, stream: Any = None) -> None:
                if isinstance(stream, Stream):
                    raise TypeError("the stream is not a stream of the module")
                super().record(*([stream] if stream is not None else []))

        class Stream(torch.Stream):
            def record_event(self, event: Any = None) -> Any:
                if isinstance(event, Event):
                    raise TypeError("the event is not a torch.Event")
                return super().record_event(*([event] if event is not None else []))

            def wait_event(self, event: Any) -> None:
                if not isinstance(event, Event):
                    super().wait_event(event)

        def record_event(stream: Any, event: Any = None) -> Any:
            event = Event("fake_xpu") if event is None else event
            event.record(stream)
            return event

        module: Any = self.device_module
        module.Event = lambda **options: Event("fake_xpu", **options)
        module.Stream.record_event = record_event
        torch.Stream = Stream  # type: ignore[misc]


@mutant("streams", "streams of threads")
class SharesStreamsBetweenThreads(Broken):
    """A stream that a thread selects with ``set_stream`` is current in all threads."""

    def install(self) -> None:
        import torch

        selected: dict[int, Any] = {}
        select, current = torch.accelerator.set_stream, torch.accelerator.current_stream

        def set_stream(stream: Any) -> None:
            selected[stream.device_index] = stream
            select(stream)

        def current_stream(device: Any = None) -> Any:
            found = current(device)
            return selected.get(found.device_index, found)

        torch.accelerator.set_stream, torch.accelerator.current_stream = set_stream, current_stream


@mutant("streams", "streams of threads")
class ReadsZeroOnOtherStreams(Broken):
    """``item`` returns 0 while a stream other than the default stream is current."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        is_default = torch.accelerator.current_stream().stream_id == 0
        return call() if name != "_local_scalar_dense" or is_default else type(call())(0)


@mutant("memory", "statistics of the module")
class CountsAtLeastAKilobyte(Broken):
    """``memory_allocated`` of the device's module returns 1 KiB more than is allocated."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.memory_allocated
        module.memory_allocated = lambda device=None: original(device) + 1024


@mutant("profiling", "totals")
class AddsTheTimeOfTheHost(Broken):
    """In the averages of a recording, the device time of an operator includes its host time."""

    def install(self) -> None:
        from torch.autograd.profiler_util import FunctionEventAvg

        original = FunctionEventAvg.add

        def add(self: Any, other: Any) -> Any:
            found = original(self, other)
            if not isinstance(other, FunctionEventAvg):
                found.self_device_time_total += other.self_cpu_time_total
            return found

        FunctionEventAvg.add = add  # type: ignore[method-assign]


@mutant("streams", "streams of other devices")
class ReturnsTheCurrentStream(Broken):
    """``torch.accelerator.current_stream`` returns the stream of the current device, whatever device it is called with."""

    def install(self) -> None:
        import torch

        original = torch.accelerator.current_stream

        def current_stream(device: Any = None, /) -> Any:
            return original()

        torch.accelerator.current_stream = current_stream


@mutant("streams", "recording events")
class ModuleStreamsRecordElsewhere(Slow):
    """``record_event`` of a stream of the device's module records the event on the current stream."""

    def install(self) -> None:
        super().install()
        import torch

        def record_event(stream: Any, event: Any = None) -> Any:
            event = torch.Event(stream.device) if event is None else event
            event.record()
            return event

        module: Any = self.device_module
        module.Stream.record_event = record_event


@mutant("streams", "methods on another device", check="methods_on_another_device")
class QueriesTheCurrentDevice(Slow):
    """``query`` of a stream returns True if the stream's device is not current."""

    def install(self) -> None:
        super().install()
        import torch

        module = self.device_module

        class Stream(torch.Stream):
            def query(self) -> bool:
                return self.device_index != module.current_device() or super().query()

        torch.Stream = Stream  # type: ignore[misc]


@mutant("streams", "methods on another device", check="methods_on_another_device")
class WaitsForTheCurrentDevice(Slow):
    """``wait_stream`` and ``wait_event`` of a stream do nothing if the stream's device is not current."""

    def install(self) -> None:
        super().install()
        import torch

        module = self.device_module

        class Stream(torch.Stream):
            def wait_event(self, event: Any) -> None:
                if self.device_index == module.current_device():
                    super().wait_event(event)

            def wait_stream(self, other: Any) -> None:
                if self.device_index == module.current_device():
                    super().wait_stream(other)

        torch.Stream = Stream  # type: ignore[misc]


@mutant("streams", "priorities", check="priorities_of_streams")
class RefusesProductsOnUrgentStreams(Broken):
    """Products of matrices raise an error on a stream that was created with a priority other than 0."""

    urgent: ClassVar[set[int]] = set()

    def install(self) -> None:
        super().install()
        import torch

        urgent = self.urgent

        class Stream(torch.Stream):
            def __new__(cls, *args: Any, priority: int = 0, **options: Any) -> Any:
                stream = super().__new__(cls, *args, priority=priority, **options)
                if priority:
                    urgent.add(stream.stream_id)
                return stream

        torch.Stream = Stream  # type: ignore[misc]

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name in ("mm", "bmm") and torch.accelerator.current_stream().stream_id in self.urgent:
            raise RuntimeError("the workspace of this stream does not exist")
        return call()


@mutant("memory", "the cache", check="empty_cache_during_work")
class EmptiesTheCacheTooEarly(Broken):
    """If work is queued on the current stream, ``empty_cache`` releases the source of the last copy to the host too early, so that the copy
    receives zeros."""

    copied: ClassVar[Any] = None

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "copy_" and args[0].device.type == "cpu":
            type(self).copied = args[0]
        return call()

    def empty_cache(self) -> None:
        import torch

        stream, copied = torch.accelerator.current_stream(), self.copied
        if copied is not None and not stream.query():
            stream.synchronize()
            copied.zero_()
        super().empty_cache()


@mutant("serialization", "addresses", check="safetensors_of_tied_weights")
class SignsAddresses(Broken):
    """``data_ptr`` of a tensor is negative."""

    def install(self) -> None:
        import torch

        original = torch.Tensor.data_ptr

        def data_ptr(tensor: torch.Tensor) -> int:
            return original(tensor) - (2**64 if tensor.device.type == "fake_xpu" else 0)

        torch.Tensor.data_ptr = data_ptr  # type: ignore[method-assign]
