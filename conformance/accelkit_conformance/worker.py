"""A worker process, which runs tests until its standard input ends. Requests and answers are lines of JSON.

``python -m accelkit_conformance.worker`` reads a request (one line) and then one line per test from standard input. It writes
answers to the original standard output; whatever a plugin prints goes to standard error. A crash of this process fails only the
test that it was running.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psutil

from accelkit import Accelerator, AccelkitError, PluginRecord, UnavailableError, UnsupportedError
from accelkit.discovery import loading
from accelkit.gc_pause import collector_paused
from accelkit_conformance import checks, worker_messages
from accelkit_conformance.expectations import Expectation
from accelkit_conformance.judgement import judge
from accelkit_conformance.late_errors import find_out_about_numbers, wait_for_late_errors
from accelkit_conformance.rank_group import RankGroup
from accelkit_conformance.results import CRASHED, DECLARED_NONE, TRIGGERED, NotSupported, Result
from accelkit_conformance.subject import Subject, device_index

if TYPE_CHECKING:
    from accelkit_conformance.coverage import DispatchRecorder

_RECORDED_SAMPLES = 8
_ON_EVERY_DEVICE = ("device",)  # the areas whose checks run on every device
_RECORDED = ("operators", "autograd", "layout", "modules", "optimizers", "transfer", "random", "precision", "capabilities")

# Tests with these last parameters are not recorded: the test of the same operator in float32, complex64 or int64 calls the same overloads.
_LIKE_OTHERS = ("float64", "bfloat16", "float16", "complex128", "int32", "int16", "int8", "uint8")
_REPEATED = ("conditions", "recorded_graphs")  # names of checks that are not recorded: operators/overloads already records the same calls


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    requests = worker_messages.requests()
    request = requests.get()
    sys.path[:] = request["sys_path"]
    with collector_paused():  # importing torch and the plugin creates no garbage
        worker = Worker(request, lambda answer: worker_messages.say(answers, answer))
        introduction = worker.introduce()
    gc.freeze()  # so that checks of memory, which collect garbage first, do not examine what was imported
    worker_messages.say(answers, introduction)
    memory_info = psutil.Process().memory_info  # because getrusage returns kibibytes on Linux and bytes on macOS
    while True:
        message = requests.get()
        if (fault := message.get("fault")) is not None:
            worker.use_fault(fault)
        result = worker.run(message["test"])
        worker_messages.say(answers, result.as_dict() | {"rss": memory_info().rss, "spoilt": worker.why_spoilt(result)})


class Worker:
    """An object that runs tests on one subject, in a worker process.

    The constructor imports the plugin and, if the tests need hardware, also loads the accelerators on which they run.
    """

    def __init__(self, request: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
        """Import the plugin and, if the request says that the tests need hardware, load the accelerators on which they run.

        Args:
            request: The request that the worker process read from standard input.
            say: A function that sends a message to the runner while a test runs, for example to report which call hangs.
        """
        self._say = say
        self._number = request["worker"]
        self._expectations = [Expectation.from_dict(one) for one in request["expectations"]]
        self._record = PluginRecord(**request["record"])
        self._group = RankGroup(request.get("rendezvous", ""))
        cls = loading.load_class(self._record)
        self.subject = Subject(self._record, cls, **{name: request[name] for name in ("rank", "world_size", "most_samples")})
        self.subject.tell = self._tell
        self._accelerators: list[tuple[Accelerator, int]] = []  # each with the number of its devices
        self._recorder: DispatchRecorder | None = None
        self._switchable: Any = None  # the accelerator, if it is a Switchable mutant
        if request["needs_hardware"]:
            self._load([PluginRecord(**one) for one in request["accelerators"]] or [self._record])
            if request["wants_coverage"]:
                from accelkit_conformance.coverage import DispatchRecorder

                self._recorder = DispatchRecorder(self.subject.device_type)
        declared = max((float(one.first_call_timeout) for one, _ in self._accelerators), default=0.0)
        self.subject.first_call_timeout = declared if request["first_call_timeout"] is None else request["first_call_timeout"]
        self._can_tell = self.subject.is_loaded and request["world_size"] == 1 and not self._why_not_computing()

    def introduce(self) -> dict[str, Any]:
        """Return the first message to the runner: ``first_call_timeout``, and a description of the device (empty if no device is used)."""
        return {"first_call_timeout": self.subject.first_call_timeout, "hello": self._describe()}

    def _describe(self) -> dict[str, Any]:
        if not self.subject.is_loaded:
            return {}
        from accelkit_conformance.device_info import describe

        hello = describe(self.subject)
        if self._recorder is not None:
            from accelkit_conformance.coverage import required

            hello["required_overloads"] = required()
        return hello

    def why_spoilt(self, result: Result) -> str:
        """If the test ended with an error, check whether the device still computes, and return the reason if it does not.

        Returns "" if the device computes or is not checked.
        """
        return self._why_not_computing() if result.error and result.kind not in CRASHED and self._can_tell else ""

    def _why_not_computing(self) -> str:
        try:
            checked = self.subject.accelerator.check()
        except Exception as error:
            return loading.describe(error)
        return "" if checked.is_usable else checked.reason

    def _tell(self, message: Mapping[str, str]) -> None:
        """Send the runner a message about a call to the plugin. If the message says that the call hangs, end this process."""
        self._say({**message})
        if "hung" in message:
            os._exit(1)

    def use_fault(self, name: str) -> None:
        """Replace the fault of the accelerator. The accelerator must be a ``Switchable`` mutant. An empty name removes the fault."""
        self._switchable = self.subject.accelerator
        self._switchable.use_fault(name)

    def run(self, test: str) -> Result:
        found, parameters = checks.find(test)
        start = time.perf_counter()
        blank = [key for key in self._keys(found, parameters) if self.subject.capabilities[key] == "none"]
        if blank:
            return Result(test, "unsupported", reason=f"{', '.join(blank)}: {DECLARED_NONE}", worker=self._number)
        expectations = tuple(one for one in self._expectations if one.matches(test))
        self.subject.begin(expectations)
        self.subject.announce = lambda crash: self._say(
            {"error": crash.error, "so_far": self._but_for(crash, test, expectations).as_dict()}
        )
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            error = self._call(test)
        result = judge(self.subject, test, error, expectations)
        notes = {str(one.message).split("(function")[0].strip() for one in warned if _tells_of_fallback(str(one.message))}
        if self._switchable is not None and self._switchable.was_triggered:
            notes.add(TRIGGERED)
        result = dataclasses.replace(
            result,
            seconds=round(time.perf_counter() - start, 4),
            notes=tuple(sorted(notes)),
            worker=self._number,
            samples=self.subject.num_samples,
        )
        if self._recorder is not None and is_recorded(test):
            result = dataclasses.replace(result, seen=self.record(test, self._recorder))
        return result

    def record(self, test: str, recorder: DispatchRecorder) -> tuple[str, ...]:
        """Run a test to record its ATen overloads, and return the overloads that had not been recorded before.

        The outcome of the test is ignored, because torch takes different code paths while a recorder is active.
        """
        found, parameters = checks.find(test)
        samples, self.subject.most_samples = self.subject.most_samples, _RECORDED_SAMPLES
        accelerator, index = self._places(test, found)[-1]
        assert accelerator is not None, "operators are recorded on a loaded accelerator"
        self.subject.use(accelerator, index)
        self._reset()
        with warnings.catch_warnings(), contextlib.suppress(Exception), recorder:
            warnings.simplefilter("ignore")
            found.function(self.subject, *parameters)
        self.subject.most_samples = samples
        return recorder.news()

    def _keys(self, found: checks.Check, parameters: tuple[str, ...]) -> list[str]:
        return [checks.capability(key, parameters) for key in found.requires]

    def _call(self, test: str) -> BaseException | None:
        """Run the check of a test on each device on which the test runs. Return the first error, or None if there is none.

        The error is NotSupported only if the check is unsupported on every device.
        """
        found, parameters = checks.find(test)
        unsupported: list[NotSupported] = []
        places = self._places(test, found)
        for accelerator, index in places:
            try:
                if accelerator is not None:
                    self.subject.use(accelerator, index)
                self._reset()
                if found.is_distributed:
                    self._group.join(self.subject, self._record, [one for one, _ in self._accelerators])
                if crash := next((one for one in self.subject.expectations if one.is_crash and not one.sample), None):
                    self.subject.announce(crash)
                found.function(self.subject, *parameters)
                wait_for_late_errors(self.subject)
            except NotSupported as error:
                unsupported.append(error)
            except BaseException as error:  # whatever a device's code raises is a result
                if not found.is_distributed:  # a collective that the other ranks have left never ends
                    with contextlib.suppress(Exception):
                        wait_for_late_errors(self.subject)
                if not (isinstance(error, UnavailableError) and self._record.kind != "accelerator" and error.plugin == self._record.plugin):
                    return error
                unsupported.append(NotSupported(f"{error.what}: {error.why}"))  # a package is missing, or the accelerator cannot do this
        return unsupported[0] if len(unsupported) == len(places) else None

    def _places(self, test: str, found: checks.Check) -> Sequence[tuple[Accelerator | None, int]]:
        """Return a pair (accelerator, device index) for each device on which a test runs; ``[(None, 0)]`` if no accelerator is loaded."""
        found_places = [(one, index) for one, count in self._accelerators for index in self._device_indices(test, found, count)]
        return found_places or [(None, 0)]

    def _device_indices(self, test: str, found: checks.Check, count: int) -> Sequence[int]:
        """Return the indices of the devices on which a test runs. ``count`` is the number of devices that the accelerator has.

        A distributed test runs on the device whose index is this process's rank modulo ``count``. The checks of the areas in
        ``_ON_EVERY_DEVICE`` run on every device. Every other test runs on one device, which is derived from the id of the test.
        """
        if found.is_distributed:
            return (self.subject.rank % count,)
        return range(count) if found.area in _ON_EVERY_DEVICE else (device_index(test, count),)

    def _but_for(self, crash: Expectation, test: str, expected: tuple[Expectation, ...]) -> Result:
        """Return the result that the test gets if this process now dies in the way that ``crash`` declares."""
        result = judge(self.subject, test, None, tuple(one for one in expected if one.sample or one is not crash))
        result = dataclasses.replace(result, worker=self._number, samples=self.subject.num_samples)
        if result.kind not in ("pass", "expected-failure"):
            return result
        return dataclasses.replace(result, kind="expected-failure", reason=f"{crash.reason} ({crash.issue})", error=crash.error)

    def _load(self, records: Sequence[PluginRecord]) -> None:
        """Load the accelerators on which the tests run.

        Args:
            records: The records of these accelerators. If the plugin under test is an accelerator, this is only its own record.
        """
        if records:
            import torch

            torch.backends.cudnn.allow_tf32 = False  # convolutions of float32 compute in float32, as matmuls do by default
        for record in records:
            instance = loading.instantiate(loading.load_class(record), record)
            with loading.plugin_errors(record.plugin, f"loading {record.name}"):
                instance.load()
                self.subject.use(instance)
            find_out_about_numbers(self.subject)
            self._accelerators.append((instance, len(self.subject.devices)))

    def _reset(self) -> None:
        """Reset global state, so that every test starts from the same state."""
        random.seed(0)
        if not self.subject.is_loaded:
            return
        import torch

        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.default_generator.manual_seed(0)
        with contextlib.suppress(UnsupportedError):  # a device without a generator
            self.subject.accelerator.manual_seed(0)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(0)


def is_recorded(test: str) -> bool:
    """Return whether the ATen overloads that a test calls are recorded."""
    found, parameters = checks.find(test)
    return found.area in _RECORDED and found.name not in _REPEATED and not (parameters and parameters[-1] in _LIKE_OTHERS)


def _tells_of_fallback(text: str) -> bool:
    """Return whether the text of a warning reports a fallback to the CPU.

    The function recognises the wording of torch's ``at::native::cpu_fallback`` and similar wordings that vendors use.
    """
    return "fall back" in text.lower() and "cpu" in text.lower()


if __name__ == "__main__":
    try:
        main()
    except AccelkitError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
