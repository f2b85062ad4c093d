"""A hook plugin from which all mutants of hook plugins are derived.

accelkit itself includes no hook plugin from which the mutants could be derived.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit import Availability, ClusterDetection, PluginRecord, RuntimeState, hookimpl

if TYPE_CHECKING:
    import torch


class HookLog:
    """A hook plugin that logs the events of a Runtime, adds a statistic and a doctor check, and detects jobs of the queue ``my_queue``."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @hookimpl
    def runtime_created(self, state: RuntimeState) -> None:
        self.lines.append(f"created {state.accelerator}")

    @hookimpl
    def checkpoint_saved(self, path: Path) -> None:
        self.lines.append(f"saved {path.name}")

    @hookimpl(wrapper=True)
    def setup_device(self, device: torch.device) -> Generator[None, Any, Any]:
        start = time.perf_counter()
        result = yield
        self.lines.append(f"{device} was set up in {time.perf_counter() - start:.3f} s")
        return result

    @hookimpl(wrapper=True)
    def make_precision(self, name: str) -> Generator[None, Any, Any]:
        result = yield
        self.lines.append(f"precision {name}")
        return result

    @hookimpl
    def get_device_stats(self, device: torch.device) -> Mapping[str, float]:
        return {"log.size.lines": float(len(self.lines))}

    @hookimpl
    def doctor_checks(self) -> Mapping[str, Availability]:
        return {"log": Availability.usable("the log can be written")}

    @hookimpl
    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        return ClusterDetection("my_queue", 55, "MY_QUEUE_JOB is set") if environ.get("MY_QUEUE_JOB") else None

    @hookimpl
    def requeue(self) -> bool | None:
        return None


RECORD = PluginRecord("hooks", "hook_log", "accelkit", "", f"{__name__}:HookLog", is_builtin=True)
"""The record of the plugin. No distribution provides this plugin."""
