"""Devices whose work torch.profiler records wrongly, and a device that computes wrongly while torch.profiler records."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken, changed, is_pure


class _Recorded(Broken):
    """The base class of mutants with the fake XPU's fault ``recording@HOW``. HOW is the value of the subclass's attribute ``recording``."""

    recording = ""

    def install(self) -> None:
        module: Any = self.device_module
        self._fault = module.fault(f"recording@{self.recording}")  # kept, because the fault ends when this object is deleted
        self._fault.__enter__()


@mutant("profiling", "missing kernels")
class RecordsNoKernels(_Recorded):
    """Copies are recorded, but kernels are not."""

    recording = "no_kernels"


@mutant("profiling", "times")
class RecordsMicrosecondsAsNanoseconds(_Recorded):
    """The recorded duration of each kernel and copy is a thousandth of the real duration."""

    recording = "microseconds"


@mutant("profiling", "times")
class RecordsOnAnotherClock(_Recorded):
    """The recorded times of each kernel and copy are 5 ms too early."""

    recording = "early"


@mutant("profiling", "repeated kernels")
class RecordsKernelsTwice(_Recorded):
    """Each kernel and copy is recorded twice."""

    recording = "twice"


@mutant("profiling", "repeated kernels")
class KeepsOldRecordings(_Recorded):
    """A recording contains the work of earlier recordings, too."""

    recording = "stale"


@mutant("profiling", "wrong places")
class RecordsTheOperatorBefore(_Recorded):
    """Each kernel and copy is recorded as work of the operator that ran the previous kernel or copy."""

    recording = "caller"


@mutant("profiling", "wrong places")
class RecordsDevice0(_Recorded):
    """The work of every device is recorded as work of device 0."""

    recording = "device"


@mutant("profiling", "memory")
class RecordsNoFreedMemory(_Recorded):
    """Memory is recorded when it is allocated, but not when it is freed."""

    recording = "no_frees"


@mutant("profiling", "results")
class ComputesDifferentlyWhileRecorded(Broken):
    """While torch.profiler records, floating-point results are multiplied by 1.001."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        return changed(result, lambda leaf: leaf * 1.001) if is_pure(func) and torch.autograd._profiler_enabled() else result


class _OfDefaultStreams:
    """The result of a recording, without the kernels and copies that ran on streams other than the default stream."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def events(self) -> list[Any]:
        return [event for event in self._result.events() if event.device_type().name == "CPU" or event.device_resource_id() == 0]


@mutant("profiling", "streams")
class RecordsOneStream(Broken):
    """Kernels and copies are recorded only if they run on the default stream."""

    def install(self) -> None:
        from torch.autograd import profiler

        parse: Any = profiler.profile._parse_kineto_results
        profiler.profile._parse_kineto_results = lambda profile, result: parse(profile, _OfDefaultStreams(result))  # type: ignore[method-assign]


@mutant("profiling", "devices of kernels")
class RecordsOnTheFirstDevice(Broken):
    """The events of all kernels have the index 0, whatever the device is."""

    def install(self) -> None:
        from torch.autograd import DeviceType
        from torch.autograd.profiler_util import FunctionEvent

        original = FunctionEvent.__init__

        def create(event: Any, *args: Any, **kwargs: Any) -> None:
            original(event, *args, **kwargs)
            if event.device_type == DeviceType.PrivateUse1:
                event.device_index = 0

        FunctionEvent.__init__ = create  # type: ignore[method-assign]
