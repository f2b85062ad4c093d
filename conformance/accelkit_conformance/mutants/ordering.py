"""Faults in streams, events, synchronisation and deterministic mode.

In the mutants that do not wait, copies are slow, so that a missing wait causes wrong values.
"""

from __future__ import annotations

import os
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


class Slow(Broken):
    """The base class of mutants with slow non-blocking copies."""

    def install(self) -> None:
        self._slow = self.device_module.fault("slow_copy@5")  # type: ignore[attr-defined]
        self._slow.__enter__()


@mutant("streams", "waiting")
class WaitsForNobody(Slow):
    """Stream.wait_stream and Stream.wait_event do not wait."""

    def install(self) -> None:
        super().install()
        import torch

        class Stream(torch.Stream):
            def wait_stream(self, other: Any) -> None:
                pass

            def wait_event(self, event: Any) -> None:
                pass

        torch.Stream = Stream  # type: ignore[misc]


@mutant("streams", "waiting")
class SynchronisesNothing(Slow):
    """Stream.synchronize does not wait."""

    def install(self) -> None:
        super().install()
        import torch

        class Stream(torch.Stream):
            def synchronize(self) -> None:
                pass

        torch.Stream = Stream  # type: ignore[misc]


@mutant("transfer", "waiting")
class DeviceSynchronisesNothing(Slow):
    """The accelerator's synchronize does not wait."""

    def synchronize(self, device: Any) -> None:
        pass


@mutant("streams", "events")
class EventsAreNeverDone(Broken):
    """Event.query always returns False."""

    def install(self) -> None:
        import torch

        class Event(torch.Event):
            def query(self) -> bool:
                return False

        torch.Event = Event  # type: ignore[misc]


@mutant("streams", "handles")
class KeepsEvents(Broken):
    """Each event leaks 16 KiB of memory, and each of the first 500 events also leaks a file descriptor."""

    def install(self) -> None:
        import torch

        kept: list[Any] = []

        class Event(torch.Event):
            def __new__(cls, *args: Any, **options: Any) -> Any:
                kept.append((os.dup(2), bytearray(b"x" * (16 << 10))) if len(kept) < 500 else bytearray(b"x" * (16 << 10)))
                return super().__new__(cls, *args, **options)

        torch.Event = Event  # type: ignore[misc]


@mutant("streams", "the current stream")
class StaysOnTheStream(Broken):
    """Leaving a stream context does not restore the previous stream."""

    def install(self) -> None:
        import torch

        class Stream(torch.Stream):
            def __exit__(self, *exc_info: object) -> None:
                pass

        torch.Stream = Stream  # type: ignore[misc]


@mutant("dataloader", "forks")
class HangsInAFork(Broken):
    """The device hangs in a forked process."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import time

        if os.getpid() != self.home:
            time.sleep(1000)
        return call()

    def install(self) -> None:
        self.home = os.getpid()
        super().install()


@mutant("determinism", "bits from run to run")
class AddsInAnyOrder(Broken):
    """The results of ``index_add``, ``scatter_add``, ``index_put``, ``put`` and the backward pass of ``embedding`` differ in the last bits
    between runs, even in deterministic mode."""

    runs = 0

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith(("index_add", "scatter_add", "index_put", "put", "embedding_dense_backward")) and result.is_floating_point():
            type(self).runs += 1
            factor = 1 + 3e-7 * (self.runs % 3)
            return result.mul_(factor) if name.partition(".")[0].endswith("_") else result * factor
        return result


@mutant("determinism", "bits from run to run")
class ChoosesAnyEqualElement(Broken):
    """Even in deterministic mode, ``topk``, ``mode`` and ``sort`` of more than 8,192 elements choose or order equal elements differently in
    each run, unless ``sort`` is called with ``stable=True``."""

    runs = 0

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("topk", "mode", "sort", "sort.stable") or args[0].numel() <= 8192 or kwargs.get("stable"):
            return call()
        type(self).runs += 1
        position = 2 if name == "topk" else 1
        dim = kwargs.get("dim", args[position] if len(args) > position else -1)
        values, indices = func(args[0].roll(self.runs, dim), *args[1:], **kwargs)
        return values, (indices - self.runs) % args[0].shape[dim]


@mutant("determinism", "values in deterministic mode")
class PutsOneValuePerIndex(Broken):
    """In deterministic mode, ``x[indices] = value`` raises an internal error if one value is assigned to several elements."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        is_affected = name.startswith(("index_put", "_index_put_impl_")) and torch.are_deterministic_algorithms_enabled()
        if is_affected and args[2].numel() == 1 and max(index.numel() for index in args[1] if index is not None) > 1:
            raise RuntimeError("INTERNAL ASSERT FAILED: one value was expected for each index")
        return call()


@mutant("determinism", "values in deterministic mode")
class AddsWithoutFactor(Broken):
    """In deterministic mode, ``index_add`` ignores ``alpha``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        is_affected = name.startswith("index_add") and torch.are_deterministic_algorithms_enabled()
        return func(*args, **{**kwargs, "alpha": 1}) if is_affected else call()


@mutant("streams", "recordings")
class KeepsTheFirstRecording(Broken):
    """After ``Event.synchronize`` has been called, recording the event again has no effect."""

    def install(self) -> None:
        import torch

        class Event(torch.Event):
            is_over = False

            def synchronize(self) -> None:
                super().synchronize()
                self.is_over = True

            def record(self, stream: Any = None) -> None:
                if not self.is_over:
                    super().record(*([] if stream is None else [stream]))

        torch.Event = Event  # type: ignore[misc]


@mutant("streams", "other devices")
class WaitsOnItsDeviceOnly(Slow):
    """Stream.wait_stream and Stream.wait_event do not wait for a stream or an event of another device."""

    def install(self) -> None:
        super().install()
        import torch

        class Stream(torch.Stream):
            def wait_stream(self, other: Any) -> None:
                if other.device == self.device:
                    super().wait_stream(other)

            def wait_event(self, event: Any) -> None:
                if event.device in (None, self.device):
                    super().wait_event(event)

        torch.Stream = Stream  # type: ignore[misc]


@mutant("streams", "other devices")
class ForgetsTheOtherStream(Broken):
    """If leaving a stream context makes another device current again, the stream remains current on its own device."""

    def install(self) -> None:
        import torch

        class Stream(torch.Stream):
            def __exit__(self, *exc_info: Any) -> None:
                super().__exit__(*exc_info)
                index = torch.accelerator.current_device_index()
                if self.device_index != index:
                    torch.accelerator.set_stream(self)
                    torch.accelerator.set_device_index(index)

        torch.Stream = Stream  # type: ignore[misc]


@mutant("streams", "backward passes")
class BackwardIgnoresStreams(Broken):
    """The operators of a backward pass run on the default stream, whatever stream the forward operators ran on."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if torch._C._current_graph_task_id() == -1:
            return call()
        module: Any = self.device_module
        with module.stream(module.default_stream()):
            return call()


@mutant("streams", "the current stream")
class StreamsAreEnteredOnce(Broken):
    """A ``Stream`` of the device's module remembers only one previous stream.

    If it is entered again inside its own context, it remains current after both contexts have ended.
    """

    def install(self) -> None:
        import torch

        module: Any = self.device_module

        def enter(stream: Any) -> Any:
            stream.previous = (torch.accelerator.current_stream(stream.device), module.current_device())
            torch.accelerator.set_stream(stream)
            return stream

        def leave(stream: Any, *exc_info: Any) -> None:
            previous, index = stream.previous
            torch.accelerator.set_stream(previous)
            module.set_device(index)

        module.Stream.__enter__, module.Stream.__exit__ = enter, leave


@mutant("operators", "the stream of a call", check="conditions")
class NormsOnTheDefaultStream(Broken):
    """``linalg_vector_norm`` and ``topk`` run on the default stream, whatever stream is current."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        module: Any = self.device_module
        if not name.startswith(("linalg_vector_norm", "topk")):
            return call()
        with module.stream(module.default_stream(args[0].device)):
            return call()
