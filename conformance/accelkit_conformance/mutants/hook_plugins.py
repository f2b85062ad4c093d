"""Hook plugins that fail, hang, return wrong values or change what does not belong to them."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit import Availability, ClusterDetection, RuntimeState, hookimpl
from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.hook_log import HookLog

if TYPE_CHECKING:
    import torch


@mutant("hooks_calls", "hook_failures", kind="hooks", base="hook_log")
class RaisesAtStart(HookLog):
    """``runtime_created`` reads an attribute that ``RuntimeState`` does not have."""

    @hookimpl
    def runtime_created(self, state: RuntimeState) -> None:
        self.lines.append(state.device_name)  # type: ignore[attr-defined]


@mutant("hooks_calls", "hook_failures", kind="hooks", base="hook_log")
class RaisesTheSecondTime(HookLog):
    """``checkpoint_saved`` raises an error from the second call on."""

    @hookimpl
    def checkpoint_saved(self, path: Path) -> None:
        if any(line.startswith("saved ") for line in self.lines):
            raise FileExistsError(path)
        self.lines.append(f"saved {path.name}")


@mutant("hooks_calls", "slow_hooks", kind="hooks", base="hook_log")
class WaitsForServer(HookLog):
    """``setup_device`` waits forever for a server that does not answer."""

    @hookimpl(wrapper=True)
    def setup_device(self, device: torch.device) -> Generator[None, Any, Any]:
        while True:
            time.sleep(0.1)
        return (yield)


@mutant("hooks_calls", "slow_hooks", kind="hooks", base="hook_log")
class SlowUpload(HookLog):
    """``checkpoint_saved`` sleeps for four seconds, like a hook that uploads the checkpoint while the program waits."""

    @hookimpl
    def checkpoint_saved(self, path: Path) -> None:
        time.sleep(4)


@mutant("hooks_calls", "slow_hooks", kind="hooks", base="hook_log")
class TriesForever(HookLog):
    """``checkpoint_saved`` runs an endless loop that suppresses every exception, even KeyboardInterrupt."""

    @hookimpl
    def checkpoint_saved(self, path: Path) -> None:
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(0.1)


@mutant("hooks_calls", "hanging_hooks", kind="hooks", base="hook_log")
class NeverLeavesC(HookLog):
    """``doctor_checks`` runs an endless loop in C, which never releases the GIL."""

    @hookimpl
    def doctor_checks(self) -> Mapping[str, Availability]:
        sum(itertools.repeat(0))
        return {}


@mutant("hooks_calls", "hanging_hooks", kind="hooks", base="hook_log")
class ConstructorWaits(HookLog):
    """The constructor waits forever for a server."""

    def __init__(self) -> None:
        super().__init__()
        threading.Event().wait()


@mutant("hooks_calls", "hook_results", kind="hooks", base="hook_log")
class StatisticIsNumber(HookLog):
    """``get_device_stats`` returns a number instead of a mapping of names to numbers."""

    @hookimpl
    def get_device_stats(self, device: torch.device) -> Mapping[str, float]:
        return 21.0  # type: ignore[return-value]


@mutant("hooks_calls", "hook_results", kind="hooks", base="hook_log")
class StatisticIsText(HookLog):
    """A statistic from ``get_device_stats`` is a string, such as ``21 C``, and not a number."""

    @hookimpl
    def get_device_stats(self, device: torch.device) -> Mapping[str, float]:
        return {"room.temperature": "21 C"}  # type: ignore[dict-item]


@mutant("hooks_calls", "hook_results", kind="hooks", base="hook_log")
class DoctorSaysTrue(HookLog):
    """``doctor_checks`` returns a mapping whose value is True instead of an Availability."""

    @hookimpl
    def doctor_checks(self) -> Mapping[str, Availability]:
        return {"log": True}  # type: ignore[dict-item]


@mutant("hooks_calls", "hook_answers", kind="hooks", base="hook_log")
class RequeueSaysWhat(HookLog):
    """``requeue`` returns a string, which counts as True although the job was not requeued."""

    @hookimpl
    def requeue(self) -> bool | None:
        return "not requeued"  # type: ignore[return-value]


@mutant("hooks_calls", "hook_answers", kind="hooks", base="hook_log")
class ClaimsEveryJob(HookLog):
    """``detect_cluster`` claims every process, even the processes of other launchers."""

    @hookimpl
    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        return ClusterDetection("my_queue", 101, "the plugin is enabled")


@mutant("hooks_calls", "hook_answers", kind="hooks", base="hook_log")
class MakesAnyPrecision(HookLog):
    """``make_precision`` returns a precision for every name, even if no precision with this name exists."""

    @hookimpl
    def make_precision(self, name: str) -> Any:
        from accelkit import Precision

        return Precision()


@mutant("hooks_calls", "hook_side_effects", kind="hooks", base="hook_log")
class UsesRandomNumbers(HookLog):
    """``runtime_created`` draws a number from torch's default generator, which changes the random numbers that the program draws later."""

    @hookimpl
    def runtime_created(self, state: RuntimeState) -> None:
        import torch

        self.lines.append(f"run {torch.randint(1_000_000, ()).item()}")


@mutant("hooks_calls", "hook_side_effects", kind="hooks", base="hook_log")
class SetsVariables(HookLog):
    """``runtime_created`` sets an environment variable, so child processes inherit this variable."""

    @hookimpl
    def runtime_created(self, state: RuntimeState) -> None:
        os.environ["HOOK_LOG_RUN"] = state.accelerator


@mutant("hooks_calls", "hook_side_effects", kind="hooks", base="hook_log")
class SetsDefaultDtype(HookLog):
    """``setup_device`` changes torch's default dtype."""

    @hookimpl(wrapper=True)
    def setup_device(self, device: torch.device) -> Generator[None, Any, Any]:
        import torch

        result = yield
        torch.set_default_dtype(torch.bfloat16)
        return result


@mutant("hooks_order", "wrappers", kind="hooks", base="hook_log")
class DropsPrecision(HookLog):
    """The wrapper of ``make_precision`` does not return the result."""

    @hookimpl(wrapper=True)
    def make_precision(self, name: str) -> Generator[None, Any, Any]:
        yield
        self.lines.append(f"precision {name}")


@mutant("hooks_order", "wrappers", kind="hooks", base="hook_log")
class SwallowsErrors(HookLog):
    """The wrapper of ``setup_device`` logs an error of the wrapped hook and does not pass it on."""

    @hookimpl(wrapper=True)
    def setup_device(self, device: torch.device) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except Exception as error:
            self.lines.append(str(error))
            return []


@mutant("hooks_order", "wrappers", kind="hooks", base="hook_log")
class ReplacesStatistics(HookLog):
    """The wrapper of ``get_device_stats`` returns its own statistics in place of the accelerator's."""

    @hookimpl(wrapper=True)
    def get_device_stats(self, device: torch.device) -> Any:
        yield
        return {"log.size.lines": 1.0}


@mutant("hooks_order", "blame", kind="hooks", base="hook_log")
class ClaimsTheBlame(HookLog):
    """The wrapper of ``setup_device`` raises an error of its own in place of the error that the device raised."""

    @hookimpl(wrapper=True)
    def setup_device(self, device: torch.device) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except Exception:
            raise RuntimeError("the set-up failed") from None
